"""How the values of a row become its bytes, and back: a plain cast, or fp8 with a scale a row.

fp8 spends its codes on sizes from 2**-9 to 448 (e4m3): a row of small values would lose most. So a
*scaled* row is divided by ``scale = amax / 448``, and the float32 scale stands behind its elements:
whatever moves rows moves both. Row [0.5, -1, 0.01]: scale 1/448, stored 224, -448, 4.5, read back
0.5, -1, 0.010045. An element x comes back within max(x / 16, scale / 1024) in e4m3, max(x / 8,
scale / 131072) in e5m2; a row with a NaN or an infinity as NaN, every element.

Source: per-token scales as in SGLang's ``per_token_group_quant_fp8``, one group a row.
"""

import torch
from torch import Tensor

from kvlab.errors import PoolError

# index_put and index_copy lack fp8 kernels, so fp8 rows are stored as bytes and viewed on read.
_STORED_AS = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.bfloat16,
    torch.float16: torch.float16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
# The least scale: below it the division would leave the normal numbers of float32.
_LEAST = torch.finfo(torch.float32).tiny


class RowCodec:
    """``elements`` values of ``dtype`` a row; ``stored``: dtype of the buffer, ``width``: its
    elements in one row, ``taken``: dtype of the values that ``encode`` takes. Errors: PoolError."""

    def __init__(self, dtype: torch.dtype, elements: int, scaled: bool = False) -> None:
        if dtype not in _STORED_AS:
            raise PoolError(
                f"a row is stored as one of {', '.join(str(d) for d in _STORED_AS)}: got {dtype}"
            )
        self.dtype, self.elements, self.scaled = dtype, elements, scaled
        self.stored = _STORED_AS[dtype]
        if scaled and self.stored != torch.uint8:
            raise PoolError(f"a scale a row is for fp8: got scaled=True for rows of {dtype}")
        self._scale_at = -(-elements // 4) * 4  # a float32 begins at a multiple of its 4 bytes
        self.width = self._scale_at + 4 if scaled else elements
        self.taken = torch.float32 if scaled else dtype
        self.meaning = f"{dtype} x a float32 scale a row" if scaled else str(dtype)

    def encode(self, values: Tensor) -> Tensor:
        """Values ``(m, elements)`` of dtype ``taken`` as rows of the buffer ``(m, width)``."""
        if not self.scaled:
            return values if values.dtype == self.stored else values.view(self.stored)
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
            raise PoolError(f"rows of {self.meaning} have no scale; make the pool scaled=True")
        return buffer[..., self._scale_at :].view(torch.float32)[..., 0]

    def filled(self, value: float, device: torch.device) -> Tensor:
        """One row ``(width,)`` of this value throughout, its scale 1."""
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
        layer, row = wrong[0].tolist()
        return [
            f"{len(wrong)} of {scales.numel()} rows have a scale that is no finite number of at "
            f"least 0: first layer {layer}, row {row} with {float(scales[layer, row])}"
        ]
