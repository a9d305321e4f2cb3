"""The node and the crash on a GPU: the same counts and the same wrong rows as on the CPU."""

from dataclasses import replace

import pandas as pd
import pytest

from kvlab.engine import FingerprintCells, NodeConfig, StepNode
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from kvlab.lab.crash import Code, CrashStudy

LAYOUT = DcpLayout(4, 4, 60)


@pytest.mark.gpu
def test_a_node_on_a_gpu_counts_as_one_on_the_cpu() -> None:
    config = NodeConfig(DcpLayout(4, 4, 32), reserved_decode_tokens=16)
    requests = tuple(Request(i, 0.0, 16, 192) for i in range(4))
    cells = FingerprintCells(config.layout, device="cuda")
    there = StepNode(config, cells, check_every_step=True).run(requests, record=True)
    assert there == StepNode(config).run(requests, record=True)
    assert there.counters.retracted_requests > 0


@pytest.mark.gpu
@pytest.mark.parametrize("code", ["before", "after"])
def test_low_use_gives_the_same_rows_on_both_devices(code: Code) -> None:
    here = CrashStudy(LAYOUT, "low", code).run()
    there = replace(here.study, device="cuda").run()
    assert there.summary() == here.summary()
    pd.testing.assert_frame_equal(there.restored, here.restored)
    pd.testing.assert_frame_equal(there.damaged, here.damaged)
