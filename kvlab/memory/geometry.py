"""What a token costs: from a model's public config to the number of pages a memory budget buys.

A multi-head latent attention (MLA) layer keeps one row a token, 512 + 64 = 576 numbers in the
DeepSeek and Kimi models. Under decode context parallelism every token lies on one of the c ranks.
Budgets are per rank; whole pages come first, one of them for padding, then the factor c:

    a page of Kimi-Linear, P=64, bf16   64 * 7 MLA layers * 576 * 2 = 516,096 bytes
    pages in 1 GiB                      2,080, of which one is the padding page
    tokens, c=8                         2,079 * 64 * 8              = 1,064,448

Sources: the models' public configs (``data/models/geometry.csv``); the 656-byte row is the DSA fp8
layout of FlashMLA.
"""

import csv
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvlab.errors import CapacityError
from kvlab.index import DcpLayout
from kvlab.memory.published import data_path

GIB = 2**30

#: Bytes of one element. fp8 is e4m3 or e5m2; both are stored as bytes.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
#: 512 fp8 latents, 4 fp32 scales (one for each 128 latents), 64 bf16 position numbers.
DSA_ROW = "fp8_dsa_656"
DTYPES = (*ELEMENT_BYTES, DSA_ROW)
NEEDED = ("mla_layers", "kv_lora_rank", "qk_rope_head_dim")
WORDS = ("name", "source", "note")
MOST = 1_000_000
EXAMPLE = "mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64"


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
        for field in COUNTS:
            value = getattr(self, field)
            if value is None and not field.endswith("layers"):
                continue
            if type(value) is not int or not 0 <= value <= MOST:
                raise CapacityError(
                    f"{field} is a whole number in [0, {MOST:,}]: got {value!r} for {self.name}; "
                    f"correct it"
                )
        if self.mla_layers + self.kda_layers > self.layers:
            raise CapacityError(
                f"{self.name}: MLA and KDA layers are among the {self.layers} layers: got "
                f"{self.mla_layers} + {self.kda_layers}; correct the layer split"
            )

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
            raise CapacityError(f"a row is stored in one of {', '.join(DTYPES)}: got {dtype!r}")
        return elements * ELEMENT_BYTES[dtype]

    def bytes_per_token(self, dtype: str = "bf16") -> int:
        """Bytes of one token in all MLA layers: what all ranks together pay, each token once."""
        return self.mla_layers * self.row_bytes(dtype)


COUNTS = tuple(field.name for field in fields(ModelGeometry) if field.name not in WORDS)


def load_geometries() -> dict[str, ModelGeometry]:
    """Return the models of ``data/models/geometry.csv`` by name, in the order of the file."""
    models = {}
    with data_path("models", "geometry.csv").open(encoding="utf-8", newline="") as handle:
        for record in csv.DictReader(handle):
            name = record.pop("model")
            counts = {key: int(record[key]) if record[key] else None for key in COUNTS}
            words = {"name": name, "source": record["source"], "note": record["note"]}
            models[name] = ModelGeometry(**words, **counts)  # type: ignore[arg-type]
    return models


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
    """The largest pool that one rank's ``budget_bytes`` pays for. Errors: CapacityError, and
    LayoutError for sizes below 1."""
    DcpLayout(dcp_size, page_size, 1)  # refuses sizes below 1
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

    ``layers`` is the sum of the MLA and KDA layers where it is left out. Errors: CapacityError for
    a file that cannot be read, for a field that is unknown, missing, given twice or out of bounds.
    """
    in_file = text.endswith(".json")
    where = Path(text).name if in_file else repr(text)
    pairs = _of_file(Path(text)) if in_file else _of_line(text)
    given: dict[str, Any] = dict(pairs)
    if len(given) != len(pairs):
        raise CapacityError(f"each field of a geometry is given once: one stands twice in {where}")
    for key in given:
        if key not in COUNTS and key not in WORDS:
            own = ", not all of a model's config.json" if "num_hidden_layers" in given else ""
            raise CapacityError(
                f"a geometry has the fields {', '.join((*COUNTS, *WORDS))}{own}: got {key!r} in "
                f"{where}; write e.g. {EXAMPLE}"
            )
    missing = [key for key in NEEDED if key not in given]
    if missing:
        raise CapacityError(
            f"a row of the KV cache needs {', '.join(NEEDED)}: {where} lacks "
            f"{', '.join(missing)}; give it as in {EXAMPLE}"
        )
    for key in WORDS:
        word = given.get(key, "own")
        if not isinstance(word, str) or not word.strip() or not word.isprintable() or word[80:]:
            raise CapacityError(
                f"{key} is a text of 1 to 80 printable characters: got {word!r} in {where}"
            )
    given = {"name": "own geometry", "source": "given by the user", "kda_layers": 0, **given}
    kinds = (given["mla_layers"], given["kda_layers"])
    given.setdefault("layers", sum(kinds) if all(type(n) is int for n in kinds) else 0)
    model = ModelGeometry(**given)
    if not model.mla_layers * model.row_elements:
        raise CapacityError(f"a geometry has MLA layers with a row: got 0 of either in {where}")
    return model


def _of_line(text: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for place, part in enumerate(text.split(","), start=1):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not (key and value):
            raise CapacityError(
                f"a geometry is key=value joined by commas, or a file that ends in .json: got "
                f"{part!r} as part {place} of {text!r}; write e.g. {EXAMPLE}"
            )
        whole = value.isascii() and value.isdigit() and key not in WORDS
        pairs.append((key, int(value) if whole else value))
    return pairs


def _of_file(path: Path) -> tuple[tuple[str, Any], ...]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=tuple)
    except OSError as error:
        raise CapacityError(
            f"a geometry is read from a file: {str(path)!r} gives {error.strerror or error}; name "
            f"another one, or give the fields in one line, {EXAMPLE}"
        ) from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, brackets without end
        raise CapacityError(
            f"a geometry is one JSON object: {path.name} is none ({error}); correct it, or give "
            f"the fields in one line, {EXAMPLE}"
        ) from None
    if not isinstance(found, tuple):
        raise CapacityError(
            f"a geometry is one JSON object with the fields {', '.join(NEEDED)}: {path.name} holds "
            f"a {type(found).__name__}; write {{...}} with these"
        )
    return found
