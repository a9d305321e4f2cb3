"""How the values of a row become its bytes, and back: a plain cast, or fp8 with a scale a row.

fp8 spends its 256 codes on sizes from 2**-9 to 448 (e4m3). A row whose values are all small would
lose most of them, so a *scaled* row is divided by ``scale = amax / 448`` first, and the float32
scale stands behind its elements, in the same row of the same buffer. Whatever moves rows (backup,
restore, hand-over, compaction) then moves both; a scale in another buffer can be left behind.

Worked example, e4m3, row [0.5, -1, 0.01]: scale 1/448 = 0.002232; stored 224, -448, 4.5 and the
scale; read back 0.5, -1, 0.010045. Read with another row's scale, 1, it is 224, -448, 4.5.

An element of size x in a row of scale s comes back within max(x / 16, s / 1024) in e4m3, which
keeps 3 bits after the first, and within max(x / 8, s / 131072) in e5m2. A row that holds a NaN or
an infinity comes back as NaN, every element: its scale is none.

Source: per-token scales as in SGLang's ``per_token_group_quant_fp8``, one group a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.errors import PoolError
from kvlab.index.layout import require_int

# index_put and index_select lack fp8 kernels, so fp8 rows are stored as bytes and viewed on read.
_STORED_AS = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.bfloat16,
    torch.float16: torch.float16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
_SCALE_BYTES = 4
# The least scale: below it the division would leave the normal numbers of float32.
_LEAST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class RowCodec:
    """``elements`` values of ``dtype`` a row; ``scaled``: with a float32 scale behind them.

    Errors: PoolError for a dtype that cannot be stored, or a scale for one that is not fp8;
    LayoutError for a row of no elements.
    """

    dtype: torch.dtype
    elements: int
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in _STORED_AS:
            raise PoolError(
                f"a row is stored as one of {', '.join(str(d) for d in _STORED_AS)}: got "
                f"{self.dtype}"
            )
        require_int("elements", self.elements, 1, "values of one row")
        if self.scaled and self.stored != torch.uint8:
            raise PoolError(
                f"a scale a row is for fp8, whose range is short: got scaled=True for rows of "
                f"{self.dtype}; leave scaled out"
            )

    @property
    def stored(self) -> torch.dtype:
        """Dtype of the buffer."""
        return _STORED_AS[self.dtype]

    @property
    def width(self) -> int:
        """Elements of the buffer in one row; a scale begins at a multiple of its 4 bytes."""
        return self._scale_at + _SCALE_BYTES if self.scaled else self.elements

    @property
    def taken(self) -> torch.dtype:
        """Dtype of the values that ``encode`` takes."""
        return torch.float32 if self.scaled else self.dtype

    @property
    def meaning(self) -> str:
        """The dtype, and whether a scale goes with it."""
        return f"{self.dtype} x a float32 scale a row" if self.scaled else str(self.dtype)

    def encode(self, values: Tensor) -> Tensor:
        """Values ``(m, elements)`` of dtype ``taken`` as rows of the buffer ``(m, width)``."""
        if not self.scaled:
            return values.view(self.stored)
        top = values.abs().amax(dim=1, keepdim=True)
        scale = (top / torch.finfo(self.dtype).max).clamp_min(_LEAST)
        rows = values.new_zeros(len(values), self.width, dtype=torch.uint8)
        rows[:, : self.elements] = (values / scale).to(self.dtype).view(torch.uint8)
        rows[:, self._scale_at :] = scale.view(torch.uint8)
        return rows

    def decode(self, rows: Tensor) -> Tensor:
        """Values ``(m, elements)`` of rows ``(m, width)``: in ``dtype``, scaled ones in float32."""
        if not self.scaled:
            return rows.view(self.dtype)
        codes = rows[:, : self.elements].view(self.dtype)
        return codes.to(torch.float32) * self.scales(rows)[:, None]

    def scales(self, buffer: Tensor) -> Tensor:
        """The scales of a buffer ``(..., rows, width)``, float32 ``(..., rows)``: a view, so a
        write to it is a write to the rows. Errors: PoolError where rows have no scale."""
        if not self.scaled:
            raise PoolError(
                f"rows of {self.meaning} have no scale: make the pool with an fp8 dtype and "
                f"scaled=True"
            )
        return buffer[..., self._scale_at :].view(torch.float32)[..., 0]

    def filled(self, value: float, device: torch.device) -> Tensor:
        """One row ``(width,)`` of this value throughout, its scale 1. Errors: PoolError unless the
        value is a number."""
        given: object = value
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise PoolError(
                f"rows are filled with one number, NaN and infinity included: got {given!r} "
                f"({type(given).__name__}); pass a float"
            )
        values = torch.full((self.elements,), value, device=device).to(self.dtype)
        if not self.scaled:
            return values.view(self.stored)
        row = torch.zeros(self.width, dtype=torch.uint8, device=device)
        row[: self.elements] = values.view(torch.uint8)
        self.scales(row[None]).fill_(1.0)
        return row

    def audit(self, buffer: Tensor) -> list[str]:
        """The broken law: a scale is a finite number and not below 0 (0: never written)."""
        if not self.scaled:
            return []
        scales = self.scales(buffer)
        wrong = torch.nonzero(~(torch.isfinite(scales) & (scales >= 0)))
        if not len(wrong):
            return []
        layer, row = (int(x) for x in wrong[0])
        return [
            f"{len(wrong)} of {scales.numel()} rows have a scale that is no finite number of at "
            f"least 0: first layer {layer}, row {row} with {float(scales[layer, row])}"
        ]

    @property
    def _scale_at(self) -> int:
        return -(-self.elements // _SCALE_BYTES) * _SCALE_BYTES
