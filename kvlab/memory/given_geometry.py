"""A model's geometry as its user gives it: the fields in one line, or a JSON file of them.

    mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64

    40 MLA layers * (384 + 64) * 2 bytes = 35,840 bytes a token in bf16

The file has the same fields, ``{"name": "mine", "mla_layers": 40, ...}``, and a name that ends in
``.json``. Only the three above are needed; every field of `ModelGeometry` may be given.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from kvlab.errors import CapacityError
from kvlab.memory.geometry import ModelGeometry

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
