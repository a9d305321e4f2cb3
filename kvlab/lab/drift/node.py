"""The node of a condition: how large its pools are, and who leaves when.

Pages hold one row (P = 1). What a victim gives up is then taken by others within one forward, so it
comes back to other slots although it was away for one forward only. (SGLang's decode nodes sort
their free pages, ``need_sort``, and get the same from that.)

Silent regime: ids lie in [W, (u + 1) W) when u pages are in use, lowest first. All of them are
rows of a rank, so that code which takes ids for rows raises nothing, when (u + 1) W <= (N + 1) P,
that is N + 1 >= c (u + 1). "forced" and "calm" pools are that large at every c.
"""

from kvlab.engine import NodeConfig
from kvlab.index import DcpLayout
from kvlab.lab.drift.conditions import Condition
from kvlab.lab.drift.prompts import STEP_S, Prompts

PAGE_SIZE = 1
#: One request leaves every third forward: the default of SGLANG_TEST_RETRACT_INTERVAL.
INTERVAL = 3
#: Capacity of a short pool, as a share of what all running requests hold when they end: so short
#: that there are 10 retractions or more at each c (with --quick at least one), and no abort.
SHORT = 0.195


def node_config(condition: Condition, dcp_size: int, prompts: Prompts, running: int) -> NodeConfig:
    """The node on which a condition is run; ``running`` requests at once."""
    forced = condition.schedule == "forced"
    return NodeConfig(
        layout(condition, dcp_size, prompts, running),
        concurrency=None,
        max_running=running,
        step_time_s=STEP_S,
        reserved_decode_tokens=0,  # else a short pool admits so few that it never runs dry
        restore="recompute" if condition.restore == "recompute" else "backup",
        force_retract_interval=INTERVAL if forced else None,
    )


def layout(condition: Condition, dcp_size: int, prompts: Prompts, running: int) -> DcpLayout:
    """Pools of a condition: see the module."""
    wide = PAGE_SIZE * dcp_size
    if condition.schedule != "natural":
        most = running * -(-prompts.positions // wide)
        return DcpLayout(dcp_size, PAGE_SIZE, dcp_size * (most + 1))
    requests = prompts.workload.requests
    mean = sum(r.prompt_tokens + r.output_tokens for r in requests) / len(requests)
    tokens = max(SHORT * running * mean, prompts.positions + wide)
    return DcpLayout(dcp_size, PAGE_SIZE, -(-int(tokens) // wide))
