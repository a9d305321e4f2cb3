"""What a token costs: from a model's public config to the number of pages a memory budget buys.

A multi-head latent attention (MLA) layer keeps one row a token: ``kv_lora_rank`` latent numbers and
``qk_rope_head_dim`` position numbers, 512 + 64 = 576 in the DeepSeek and Kimi models. Under decode
context parallelism every token lies on one of the c ranks, so all ranks together pay

    DeepSeek-V3    61 MLA layers * 576 * 2 bytes = 70,272 bytes a token in bf16
    Kimi-Linear     7 MLA layers * 576 * 2 bytes =  8,064 bytes a token in bf16

and one rank pays 1/c of that for each token of the node. A rank's buffer has N + 1 pages, because
page 0 is the padding page. Budgets are per rank; whole pages come first, then the factor c:

    100 tokens a rank, P=32, c=4  ->  3 whole pages  ->  3 * 32 * 4 = 384 tokens on the node

Recurrent (KDA) layers keep a state a request instead, sharded over heads by tensor parallelism
but not by DCP.

Sources: the models' public configs (``data/models/geometry.csv``); the 656-byte row is the DSA fp8
layout of FlashMLA; the state's shapes and dtypes are those of SGLang's Kimi Linear support.
"""

import csv
from dataclasses import dataclass

from kvlab.errors import CapacityError
from kvlab.memory.published import data_path

GIB = 2**30

#: Bytes of one element. fp8 is e4m3 or e5m2; both are stored as bytes.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
#: 512 fp8 latents, 4 fp32 scales (one for each 128 latents), 64 bf16 position numbers.
DSA_ROW = "fp8_dsa_656"
DTYPES = (*ELEMENT_BYTES, DSA_ROW)


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """The sizes of one model that its KV cache depends on. None: no public config verifies it."""

    name: str
    layers: int
    mla_layers: int
    kda_layers: int
    kv_lora_rank: int | None
    qk_rope_head_dim: int | None
    source: str
    note: str = ""
    kda_heads: int | None = None
    kda_head_dim: int | None = None
    kda_conv_kernel: int | None = None

    def __post_init__(self) -> None:
        for field in ("layers", "mla_layers", "kda_layers"):
            require_count(field, getattr(self, field), 0, f"{self.name} counts layers")
        if self.mla_layers + self.kda_layers > self.layers:
            raise CapacityError(
                f"{self.name}: MLA and KDA layers are among the {self.layers} layers: got "
                f"{self.mla_layers} + {self.kda_layers}; correct the layer split"
            )
        for field in ("kv_lora_rank", "qk_rope_head_dim"):
            if getattr(self, field) is not None:
                require_count(field, getattr(self, field), 0, f"{self.name} counts elements")

    @property
    def row_elements(self) -> int:
        """Numbers in one row of one MLA layer. Errors: CapacityError if the width is unknown."""
        if self.kv_lora_rank is None or self.qk_rope_head_dim is None:
            raise CapacityError(
                f"bytes need the width of a latent row (kv_lora_rank + qk_rope_head_dim): "
                f"{self.name} has {self.kv_lora_rank} + {self.qk_rope_head_dim}, since no public "
                f"config that we read states it ({self.source}); pass a ModelGeometry of your own "
                f"with the width (kvlab retraction --geometry), or use a verified model"
            )
        return self.kv_lora_rank + self.qk_rope_head_dim

    def row_bytes(self, dtype: str = "bf16") -> int:
        """Bytes of one row of one MLA layer, in any of `DTYPES`. Errors: CapacityError."""
        elements = self.row_elements
        if dtype == DSA_ROW:
            if (self.kv_lora_rank, self.qk_rope_head_dim) != (512, 64):
                raise CapacityError(
                    f"{DSA_ROW} is the layout of a row of 512 + 64 elements: got "
                    f"{self.kv_lora_rank} + {self.qk_rope_head_dim} for {self.name}; use 'fp8'"
                )
            return 512 + 4 * (512 // 128) + 2 * 64
        if dtype not in ELEMENT_BYTES:
            raise CapacityError(
                f"a row is stored in one of {', '.join(DTYPES)}: got dtype {dtype!r} for "
                f"{self.name}; name one of these"
            )
        return elements * ELEMENT_BYTES[dtype]

    def bytes_per_token(self, dtype: str = "bf16") -> int:
        """Bytes of one token in all MLA layers: what all ranks together pay, each token once."""
        return self.mla_layers * self.row_bytes(dtype)

    def state_bytes(self, tp_size: int = 1) -> int:
        """Bytes of one request's KDA state on one of ``tp_size`` ranks; 0 without KDA layers.

        A layer keeps the last ``kernel - 1`` inputs of three short convolutions in bf16 and a
        matrix of head_dim * head_dim a head in fp32. Errors: CapacityError.
        """
        require_count("tp_size", tp_size, 1, "the ranks that share the heads")
        if self.kda_layers == 0:
            return 0
        heads, width, kernel = self.kda_heads, self.kda_head_dim, self.kda_conv_kernel
        if heads is None or width is None or kernel is None:
            raise CapacityError(
                f"state bytes need kda_heads, kda_head_dim and kda_conv_kernel: {self.name} has "
                f"{heads}, {width} and {kernel} for {self.kda_layers} KDA layers ({self.source}); "
                f"pass a ModelGeometry of your own with them"
            )
        if heads % tp_size:
            raise CapacityError(
                f"tp_size divides the KDA heads: got tp_size={tp_size} with {heads} heads of "
                f"{self.name}; use a divisor of {heads}"
            )
        conv = 3 * (kernel - 1) * width * ELEMENT_BYTES["bf16"]
        return self.kda_layers * (heads // tp_size) * (conv + width**2 * ELEMENT_BYTES["fp32"])


def require_count(field: str, value: object, low: int, rule: str) -> int:
    """Return ``value`` if it is an int of at least ``low``. Errors: CapacityError."""
    if type(value) is not int or value < low:
        raise CapacityError(
            f"{field} is an int of at least {low} ({rule}): got {value!r}; pass a whole number"
        )
    return value


def load_geometries() -> dict[str, ModelGeometry]:
    """Return the models of ``data/models/geometry.csv`` by name, in the order of the file."""
    path = data_path("models", "geometry.csv")
    with path.open(encoding="utf-8", newline="") as handle:
        models = [_from_record(record) for record in csv.DictReader(handle)]
    return {model.name: model for model in models}


def _from_record(record: dict[str, str]) -> ModelGeometry:
    def number(field: str) -> int | None:
        return int(record[field]) if record[field] else None

    return ModelGeometry(
        name=record["model"],
        layers=int(record["layers"]),
        mla_layers=int(record["mla_layers"]),
        kda_layers=int(record["kda_layers"]),
        kv_lora_rank=number("kv_lora_rank"),
        qk_rope_head_dim=number("qk_rope_head_dim"),
        source=record["source"],
        note=record["note"],
        kda_heads=number("kda_heads"),
        kda_head_dim=number("kda_head_dim"),
        kda_conv_kernel=number("kda_conv_kernel"),
    )


def geometry(model: str | ModelGeometry) -> ModelGeometry:
    """Return one shipped model by its name, and a geometry of your own as it is.

    Errors: CapacityError for a name that is not shipped, listing those that are.
    """
    if isinstance(model, ModelGeometry):
        return model
    models = load_geometries()
    if model not in models:
        raise CapacityError(
            f"a model is named as in data/models/geometry.csv: got {model!r}, which is none of "
            f"{', '.join(models)}; name one of these or pass a ModelGeometry of your own (kvlab "
            f"retraction --geometry)"
        )
    return models[model]
