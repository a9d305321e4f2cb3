"""What a token costs: from a model's public config to the number of pages a memory budget buys.

A multi-head latent attention (MLA) layer keeps one row a token: ``kv_lora_rank`` latent numbers and
``qk_rope_head_dim`` position numbers, 512 + 64 = 576 in the DeepSeek and Kimi models. Under decode
context parallelism every token lies on one of the c ranks, so all ranks together pay

    DeepSeek-V3    61 MLA layers * 576 * 2 bytes = 70,272 bytes a token in bf16
    Kimi-Linear     7 MLA layers * 576 * 2 bytes =  8,064 bytes a token in bf16

and one rank pays 1/c of that for each token of the node. A rank's buffer has N + 1 pages, because
page 0 is the padding page. Budgets are per rank; whole pages come first, then the factor c:

    a page            64 * 8,064                     =   516,096 bytes (Kimi-Linear, P=64)
    pages in 1 GiB    floor(1,073,741,824 / 516,096) =     2,080, of which one is the padding page
    tokens, c=8       2,079 * 64 * 8                 = 1,064,448

A geometry of your own is one line, ``mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64``, or a
JSON file of the same fields.

Sources: the models' public configs (``data/models/geometry.csv``); the 656-byte row is the DSA fp8
layout of FlashMLA.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvlab.errors import CapacityError
from kvlab.index import DcpLayout
from kvlab.memory.published import data_path

GIB = 2**30

#: Bytes of one element. fp8 is e4m3 or e5m2; both are stored as bytes.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
#: 512 fp8 latents, 4 fp32 scales (one for each 128 latents), 64 bf16 position numbers.
DSA_ROW = "fp8_dsa_656"
DTYPES = (*ELEMENT_BYTES, DSA_ROW)
#: The fields that a row needs, with the least value of each.
NEEDED: Mapping[str, int] = {"mla_layers": 1, "kv_lora_rank": 1, "qk_rope_head_dim": 0}
#: The fields that may be left out, with the least value of each.
OPTIONAL: Mapping[str, int] = {
    "layers": 1,
    "kda_layers": 0,
    "kda_heads": 1,
    "kda_head_dim": 1,
    "kda_conv_kernel": 1,
}
WORDS = ("name", "source", "note")
MOST = 1_000_000
EXAMPLE = "mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64"
_COUNTS: Mapping[str, int] = {**NEEDED, **OPTIONAL}


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
            _require_count(field, getattr(self, field), 0, f"{self.name} counts layers")
        if self.mla_layers + self.kda_layers > self.layers:
            raise CapacityError(
                f"{self.name}: MLA and KDA layers are among the {self.layers} layers: got "
                f"{self.mla_layers} + {self.kda_layers}; correct the layer split"
            )
        for field in ("kv_lora_rank", "qk_rope_head_dim"):
            if getattr(self, field) is not None:
                _require_count(field, getattr(self, field), 0, f"{self.name} counts elements")

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


def _require_count(field: str, value: object, low: int, rule: str) -> None:
    if type(value) is not int or value < low:
        raise CapacityError(
            f"{field} is an int of at least {low} ({rule}): got {value!r}; pass a whole number"
        )


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


def plan_pool(
    model: ModelGeometry,
    budget_bytes: int,
    dcp_size: int,
    page_size: int = 64,
    dtype: str = "bf16",
) -> DcpLayout:
    """The largest pool that one rank's ``budget_bytes`` pays for. Errors: CapacityError."""
    _require_count("budget_bytes", budget_bytes, 0, "bytes of one rank; gib(x) converts GiB")
    _require_count("dcp_size", dcp_size, 1, "the ranks that share a request's KV")
    _require_count("page_size", page_size, 1, "tokens of a page on one rank")
    page_bytes = page_size * model.bytes_per_token(dtype)
    if page_bytes == 0:
        raise CapacityError(
            f"a pool needs MLA layers with a row: got {model.mla_layers} MLA layers of "
            f"{model.row_elements} elements for {model.name}; a model without MLA has no such pool"
        )
    pages = budget_bytes // page_bytes
    if pages < 2:
        raise CapacityError(
            f"a pool needs 2 pages a rank, one of them the padding page: got a budget of "
            f"{budget_bytes} bytes for {model.name} in {dtype}, bound {2 * page_bytes} "
            f"(2 pages of {page_size} tokens, {page_bytes} bytes each); raise the budget or lower "
            f"page_size"
        )
    return DcpLayout(dcp_size, page_size, pages - 1)


def gib(amount: float) -> int:
    """Return ``amount`` GiB in whole bytes, rounded down. Errors: CapacityError."""
    if not 0 <= amount < 2**33:
        raise CapacityError(
            f"a budget in GiB lies in [0, {2**33}): got {amount!r}; pass GiB of one rank, not bytes"
        )
    return int(amount * GIB)


def given_geometry(text: str) -> ModelGeometry:
    """The geometry of ``key=value,...``, or of the JSON file that ``text`` names.

    ``layers`` is the sum of the MLA and KDA layers where it is left out.

    Errors: CapacityError for a file that cannot be read, for a field that is unknown, missing,
    given twice or out of bounds, and as `ModelGeometry`.
    """
    if text.endswith(".json"):
        where, fields = Path(text).name, _of_file(Path(text))
    else:
        where, fields = repr(text), _of_line(text)
    for key in fields:
        if key not in _COUNTS and key not in WORDS:
            raise CapacityError(
                f"a geometry has the fields {', '.join((*_COUNTS, *WORDS))}: got {key!r} in "
                f"{where}; {_instead(fields)}"
            )
    missing = [key for key in NEEDED if key not in fields]
    if missing:
        raise CapacityError(
            f"a row of the KV cache needs {', '.join(NEEDED)}: {where} lacks "
            f"{', '.join(missing)}; give it as in {EXAMPLE}"
        )
    words = {key: _word(key, fields[key], where) for key in WORDS if key in fields}
    counts = {key: _count(key, fields[key], where) for key in _COUNTS if key in fields}
    counts.setdefault("kda_layers", 0)
    counts.setdefault("layers", counts["mla_layers"] + counts["kda_layers"])
    named = {"name": "own geometry", "source": "given by the user"} | words
    return ModelGeometry(**named, **counts)  # type: ignore[arg-type]  # each word by its name


def _of_line(text: str) -> dict[str, object]:
    fields: dict[str, object] = {}
    for place, part in enumerate(text.split(","), start=1):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise CapacityError(
                f"a geometry is key=value joined by commas, or a file that ends in .json: got "
                f"{part!r} as part {place} of {text!r}; write e.g. {EXAMPLE}"
            )
        if key in fields:
            raise CapacityError(_twice(key, repr(text)))
        fields[key] = int(value) if value.isascii() and value.isdigit() else value
    return fields


def _of_file(path: Path) -> dict[str, object]:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields: dict[str, object] = {}
        for key, value in pairs:
            if key in fields:
                raise CapacityError(_twice(key, path.name))
            fields[key] = value
        return fields

    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except OSError as error:
        raise CapacityError(
            f"a geometry is read from a file: {str(path)!r} gives {error.strerror or error}; name "
            f"another one, or give the fields in one line, {EXAMPLE}"
        ) from None
    except CapacityError:
        raise
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, brackets without end
        raise CapacityError(
            f"a geometry is one JSON object: {path.name} is none ({error}); correct it, or give "
            f"the fields in one line, {EXAMPLE}"
        ) from None
    if not isinstance(found, dict):
        raise CapacityError(
            f"a geometry is one JSON object with the fields {', '.join(NEEDED)}: {path.name} holds "
            f"a {type(found).__name__}; write {{...}} with these"
        )
    return found


def _count(key: str, value: object, where: str) -> int:
    low = _COUNTS[key]
    if type(value) is not int or not low <= value <= MOST:
        raise CapacityError(
            f"{key} is a whole number in [{low}, {MOST:,}]: got {value!r} in {where}; correct it"
        )
    return value


def _word(key: str, value: object, where: str) -> str:
    text = str(value) if type(value) is int else value  # name=70 in a line is a name
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > 80:
        raise CapacityError(
            f"{key} is a text of 1 to 80 printable characters: got {value!r} in {where}; shorten "
            f"or leave it out"
        )
    return text


def _twice(key: str, where: str) -> str:
    return f"each field of a geometry is given once: {key!r} stands twice in {where}; keep one"


def _instead(fields: Mapping[str, object]) -> str:
    if "num_hidden_layers" in fields:
        return (
            "this is a model's own config.json: take kv_lora_rank and qk_rope_head_dim from it, "
            "and as mla_layers num_hidden_layers less the layers without MLA"
        )
    return f"write e.g. {EXAMPLE}"
