"""The quick benchmark on a GPU: each part, both backends, and the aims of a GPU."""

import json
from typing import Any

import pytest

from kvlab.lab.bench.__main__ import main, parts_on
from kvlab.lab.bench.clock import open_place
from kvlab.ops import status


@pytest.mark.gpu
def test_the_quick_benchmark_runs_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda", "--quick", "--json"]) == 0
    document: Any = json.loads(capsys.readouterr().out)
    place = open_place("cuda")
    rows = document["rows"]
    assert {row["part"] for row in rows} == set(parts_on(place))
    assert "driver" in document["conditions"]["device"]
    assert {row["backend"] for row in rows} == set(place.backends)
    assert all(row["share_of_copy"] > 0 for row in rows if row["baseline"].endswith("copy"))
    aimed = {row["op"] for row in rows if row["aim"] is not None}
    assert {"backup", "restore", "merge"} <= aimed
    assert place.slug


@pytest.mark.gpu
def test_the_clock_waits_for_what_a_call_queued_on_a_gpu() -> None:
    place = open_place("cuda")
    assert (place.on_cpu, place.backends[0]) == (False, "torch")
    assert ("triton" in place.backends) == (status().backend_for("cuda") == "triton")
    import torch

    stream = torch.cuda.current_stream(place.device)
    big = torch.ones(2**26, device=place.device)
    for _ in range(50):
        big = big * 1.0001
    place.wait()
    assert stream.query()
    beside = torch.cuda.Stream(place.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(beside):
        for _ in range(50):
            big = big * 1.0001
    place.wait()
    assert beside.query()
