"""What only a GPU can show: capture in a graph, and that nothing waits."""

import pytest
import torch

from kvlab.index import Shard
from kvlab.ops import (
    gather_rows,
    localize_fixed_shape,
    localize_run,
    merge_stacked,
    remap_topk,
    status,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(status().backend_for("cuda") != "triton", reason=status().why),
]


def test_a_graph_captures_the_fixed_shape_and_replays_it_on_new_ids() -> None:
    ids = torch.randint(-1, 1000, (512,), device="cuda")
    localize_fixed_shape(ids, Shard(4, 1))  # compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = localize_fixed_shape(ids, Shard(4, 1))
    for _ in range(3):
        ids.copy_(torch.randint(-1, 1000, (512,)))
        graph.replay()
        assert torch.equal(rows, localize_fixed_shape(ids, Shard(4, 1), backend="torch"))


def test_cuda_tensors_are_served_by_the_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvlab.ops.kernels import localize, merge, rows

    served: list[str] = []
    for module, name in (
        (localize, "localize_run"),
        (localize, "localize_fixed_shape"),
        (localize, "remap_topk"),
        (rows, "copy_rows"),
        (merge, "merge_stacked"),
    ):
        kept = getattr(module, name)

        def note(*args: object, _name: str = name, _kept: object = kept, **more: object) -> object:
            served.append(_name)
            assert callable(_kept)
            return _kept(*args, **more)

        monkeypatch.setattr(module, name, note)
    ids = torch.arange(8, device="cuda")
    localize_run(ids, Shard(2, 0))
    localize_fixed_shape(ids, Shard(2, 0))
    remap_topk(ids[None], Shard(2, 0))
    buffer = torch.zeros(1, 8, 4, device="cuda")
    gather_rows(buffer, ids, torch.empty(8, 4, device="cuda"), block_rows=8, page_size=1)
    merge_stacked(torch.zeros(2, 3, 4, device="cuda"), torch.zeros(2, 3, device="cuda"))
    assert served == [
        "localize_run", "localize_fixed_shape", "remap_topk", "copy_rows", "merge_stacked"
    ]  # fmt: skip


def test_a_run_does_not_wait_for_the_device() -> None:
    ids = torch.arange(3, 4099, device="cuda")
    localize_run(ids, Shard(8, 3), 3)  # compiled before the watch
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = localize_run(ids, Shard(8, 3), 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(rows.cpu(), torch.arange(3, 4099, 8) // 8)


def test_gradients_and_float64_are_merged_by_torch() -> None:
    out = torch.randn(2, 3, 4, device="cuda", requires_grad=True)
    lse = torch.randn(2, 3, device="cuda")
    merge_stacked(out, lse).out.sum().backward()  # type: ignore[no-untyped-call]
    assert out.grad is not None
    assert merge_stacked(out.detach().double(), lse.double()).out.dtype == torch.float64
