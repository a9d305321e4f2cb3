"""What decides a run is in its key: the whole of the model's weights, the whole code of a run."""

from pathlib import Path

import pytest

from kvlab.lab.drift import cache


def test_large_weights_that_differ_in_their_middle_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "WHOLE", 640)
    weights = bytearray(10_000)
    path = tmp_path / "model.safetensors"
    path.write_bytes(weights)
    found = {cache.model_digest(tmp_path)}
    for layer in range(4):  # as fine-tuning does it: a stretch of the file, neither of its ends
        changed = weights.copy()
        changed[2000 * layer + 500 : 2000 * layer + 1000] = b"\1" * 500
        path.write_bytes(changed)
        found.add(cache.model_digest(tmp_path))
    for at in (0, -1):
        changed = weights.copy()
        changed[at] = 1
        path.write_bytes(changed)
        found.add(cache.model_digest(tmp_path))
    path.write_bytes(weights + b"\0")
    found.add(cache.model_digest(tmp_path))
    assert len(found) == 8
