"""A place says how to wait, how much its caches hold, and what it cannot hold."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import place as place_module
from kvlab.lab.bench.place import (
    cpu_cache_bytes,
    device_slug,
    machine_bytes,
    open_place,
    slug,
)
from kvlab.lab.bench.run import CPU_PARTS, PARTS, parts_on, run_bench
from tests.lab.bench.support import HERE

THERE = replace(HERE, device=torch.device("cuda", 0), device_bytes=4 * 2**30)


def test_a_cpu_is_waited_for_by_doing_nothing_and_has_torch_alone() -> None:
    place = open_place()
    assert place.wait() is None  # type: ignore[func-returns-value]
    assert (place.on_cpu, place.backends, place.backend) == (True, ("torch",), "torch")
    assert place.cache_bytes > 0
    assert device_slug(place) == "cpu"


def test_a_gpu_is_waited_for_with_all_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    facts = SimpleNamespace(L2_cache_size=50 * 2**20, total_memory=140 * 2**30)
    for name, answer in (
        ("is_available", lambda: True),
        ("device_count", lambda: 2),
        ("set_device", lambda _: None),
        ("get_device_properties", lambda _: facts),
        ("synchronize", waited.append),
    ):
        monkeypatch.setattr(torch.cuda, name, answer)
    told = SimpleNamespace(backend_for=lambda _: "torch")
    monkeypatch.setattr(place_module, "status", lambda: told)
    place = open_place("cuda:1")
    place.wait()
    assert waited == [torch.device("cuda", 1)]
    assert (place.on_cpu, place.cache_bytes) == (False, 50 * 2**20)


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "cpu:0", ""])
def test_a_device_of_another_kind_is_refused(device: str) -> None:
    with pytest.raises(StudyError, match="runs on 'cpu', 'cuda' or 'cuda:N': got"):
        open_place(device)


def test_a_cuda_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(StudyError, match=r"got 'cuda:99', torch .* can use \d+ CUDA devices; run"):
        open_place("cuda:99")


def test_inputs_are_gone_through_that_exceed_the_cache_twice() -> None:
    place = replace(HERE, cache_bytes=1000)
    assert place.sets(100) * 100 >= 2000
    assert [place.sets(n) for n in (100, 300, 5000)] == [32, 7, 2]
    assert place.sets(5000, least=1) == 1
    assert replace(place, cache_bytes=2**30).sets(1) == 2**14


def test_on_a_cpu_both_needs_are_of_one_memory_and_elsewhere_of_two() -> None:
    place = replace(HERE, host_bytes=8 * 2**30)
    assert place.lacks(3 * 2**30, 3 * 2**30) is None
    why = place.lacks(3 * 2**30, 4 * 2**30)
    assert why == (
        "a timing must not swap: it takes 7.00 GiB of memory, at most 6.00 may be taken, three "
        "quarters of 8.00"
    )
    there = replace(THERE, host_bytes=8 * 2**30)
    assert there.lacks(6 * 2**30, 3 * 2**30) is None
    assert "4.00 GiB of device memory, at most 3.00" in str(there.lacks(0, 4 * 2**30))
    assert "7.00 GiB of host memory, at most 6.00" in str(there.lacks(7 * 2**30, 0))


def test_a_device_that_is_no_cpu_has_the_parts_that_run_on_it() -> None:
    assert parts_on(HERE) == list(PARTS)
    assert set(PARTS) - set(parts_on(THERE)) == set(CPU_PARTS)
    with pytest.raises(
        StudyError, match=r"on cuda:0 has the parts .*owner_write: got \['decode'\]"
    ):
        run_bench(["decode"], place=THERE)


@pytest.mark.parametrize(
    ("name", "want"),
    [("NVIDIA H200", "nvidia-h200"), (" A/B (c)  80GB_", "a-b-c-80gb"), ("cpu", "cpu")],
)
def test_a_slug_is_letters_digits_and_single_hyphens(name: str, want: str) -> None:
    assert slug(name) == want


def test_a_name_without_letters_has_no_slug() -> None:
    with pytest.raises(StudyError, match=r"named with letters or digits: got '---'"):
        slug("---")


def test_the_largest_cache_is_the_one_to_exceed(tmp_path: Path) -> None:
    assert cpu_cache_bytes(tmp_path) == 64 * 2**20
    for i, size in enumerate(("48K", "2M", "1024K", "what", "512")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(f"{size}\n")
    assert cpu_cache_bytes(tmp_path) == 2 * 2**20


def test_a_container_has_no_more_memory_than_its_bound(tmp_path: Path) -> None:
    whole = machine_bytes(tmp_path / "none")
    assert whole > 0
    for text, want in (("max\n", whole), ("4096\n", 4096), (f"{2**62}\n", whole)):
        (tmp_path / "memory.max").write_text(text)
        assert machine_bytes(tmp_path / "memory.max") == want
