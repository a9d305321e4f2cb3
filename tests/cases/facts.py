"""The case file, and a dict that knows which of its facts were read."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PATH = Path(__file__).resolve().parents[2] / "data/cases/index_cases.jsonl"
CASES = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


class Facts:
    """A dict that knows which of its keys were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.values[key]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str, default: Any) -> Any:
        self.read.add(key)
        return self.values.get(key, default)

    def unread(self) -> set[str]:
        return self.values.keys() - self.read


def ids(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
