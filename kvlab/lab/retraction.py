"""How often does a decode node retract, as the DCP size and the memory budget grow?

One run of the counting node for each (DCP size, budget of one *rank*). More ranks hold more tokens,
since each token is stored once: capacity grows by exactly c, and retractions stop where the working
set fits. Every number is *simulated*: a step has no duration unless arrivals are placed on steps.
"""

from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import pandas as pd

from kvlab.engine import NodeConfig, simulate
from kvlab.engine.workload import Workload
from kvlab.errors import StudyError
from kvlab.lab.keep import Keep, Note, Progress, Values, finished, point_key
from kvlab.memory import ModelGeometry, geometry, plan_pool
from kvlab.memory.geometry import gib

GIB = 2**30
#: The columns that every table of this study has, in this order, before the others.
COLUMNS = (
    *("dcp_size", "budget_gib", "capacity_tokens", "requests", "retractions", "retracted_tokens"),
    *("aborted", "backup_gib"),
)
_OTHERS = (
    *("finished", "forwards", "decode_tokens", "resumed", "declined_backups", "recomputed_tokens"),
    *("peak_pages", "peak_running", "peak_host_gib", "num_pages", "label"),
)
Model = str | ModelGeometry


@dataclass(frozen=True, slots=True)
class RetractionStudy:
    """Retraction counts over DCP sizes and memory budgets.

    Args:
        workload: the requests; its digest is part of every row's identity.
        model: a name of ``data/models/geometry.csv``, or a `ModelGeometry` of your own.
        dtype: storage of a row.
        page_size: rows of one page (P).
        concurrency: closed loop of that many requests; None: open loop, by arrival time.
        restore: "backup" or "recompute".
        host_gib: host memory for all backups of the node, all ranks, GiB; None: no bound.
        host_full: what becomes of a victim whose backup does not fit: "abort" or "recompute".
        reserved_decode_tokens: room kept for each running request at admission. Upstream's default
            is 512, at which short outputs hardly run the pool dry; 64 shows the effect.
        force_retract_interval, step_time_s: as in ``NodeConfig``.
        dcp_sizes: values of c; budgets_gib: KV memory of one *rank*, GiB.

    Errors: StudyError for empty axes or host memory below 0; CapacityError for a budget below two
    pages.
    """

    workload: Workload
    model: Model = "Kimi-Linear-48B-A3B"
    dtype: str = "bf16"
    page_size: int = 64
    concurrency: int | None = 128
    restore: str = "backup"
    host_gib: float | None = None
    host_full: str = "abort"
    reserved_decode_tokens: int = 64
    force_retract_interval: int | None = None
    step_time_s: float = 0.025
    dcp_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    budgets_gib: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)

    def __post_init__(self) -> None:
        for name, axis in (("dcp_sizes", self.dcp_sizes), ("budgets_gib", self.budgets_gib)):
            if not axis or len(set(axis)) != len(axis):
                raise StudyError(f"{name} must name at least one value, each once: got {axis}")
        if self.host_gib is not None and not 0 <= self.host_gib < 2**33:
            raise StudyError(
                f"host_gib lies in [0, {2**33}), in GiB of all ranks together: got "
                f"{self.host_gib!r}; None is no bound"
            )
        if self.host_gib is not None and self.restore == "recompute":
            raise StudyError(
                f"a host that holds no backup needs no bound: got host_gib={self.host_gib!r} with "
                f"restore='recompute'; leave it out, or use restore='backup'"
            )
        for c, budget in self.points():
            last = self.workload.requests[-1]
            self.config(c, budget).arrival_step(last.arrival_s, last.rid)

    def points(self) -> list[tuple[int, float]]:
        """The (DCP size, budget) pairs, budget by budget."""
        return [(c, budget) for budget in self.budgets_gib for c in self.dcp_sizes]

    def config(self, dcp_size: int, budget_gib: float) -> NodeConfig:
        """The node of one point. Errors: CapacityError when the budget buys no page."""
        model = geometry(self.model)
        layout = plan_pool(model, gib(budget_gib), dcp_size, self.page_size, self.dtype)
        token_bytes = model.bytes_per_token(self.dtype)
        host = None if self.host_gib is None else gib(self.host_gib) // token_bytes
        return NodeConfig(
            layout,
            concurrency=self.concurrency,
            restore=self.restore,  # type: ignore[arg-type]  # NodeConfig checks the word
            admission="reserved" if self.restore == "backup" else "new_token_ratio",
            reserved_decode_tokens=self.reserved_decode_tokens,
            step_time_s=self.step_time_s,
            force_retract_interval=self.force_retract_interval,
            host_capacity_tokens=host,
            host_full=self.host_full,  # type: ignore[arg-type]  # NodeConfig checks the word
            token_bytes=token_bytes,
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers, which all ranks together pay. Errors: CapacityError."""
        return geometry(self.model).bytes_per_token(self.dtype)

    def parameters(self) -> dict[str, object]:
        """What decides the figures, as plain values for an origin stamp. A host without a bound
        decides nothing and is not named; a geometry of your own is named with its fields."""
        found: dict[str, object] = {
            "workload": self.workload.name,
            "digest": self.workload.digest[:12],
            "model": geometry(self.model).name,
        }
        if isinstance(self.model, ModelGeometry):
            sizes = ("mla_layers", "kv_lora_rank", "qk_rope_head_dim")
            found["geometry"] = {name: getattr(self.model, name) for name in sizes}
        silent = {"host_gib", "host_full"} if self.host_gib is None else set()
        for name in (f.name for f in fields(self) if f.name not in {*found, *silent}):
            value = getattr(self, name)
            found[name] = list(value) if isinstance(value, tuple) else value
        return found

    def run(
        self,
        *,
        jobs: int | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
        note: Note | None = None,
    ) -> pd.DataFrame:
        """One row a point, in the order of ``points``; arguments and errors as ``finished``, rows
        are kept in the folder ``cache``.

        Columns: ``COLUMNS``, then finished, forwards, decode_tokens, resumed, declined_backups,
        recomputed_tokens, peak_pages, peak_running, peak_host_gib, num_pages, label ('simulated').
        """
        work = {self._key(*point): partial(_point, self, *point) for point in self.points()}
        rows = finished(work, keep=Keep(cache, note), jobs=jobs, progress=progress)
        return pd.DataFrame([rows[key] for key in work])

    def _key(self, dcp_size: int, budget_gib: float) -> str:
        config = asdict(self.config(dcp_size, budget_gib))
        return point_key(self.workload.digest, asdict(geometry(self.model)), config, budget_gib)


def suggest_budgets(
    workload: Workload, model: Model, dtype: str = "bf16", concurrency: int | None = 128
) -> tuple[float, ...]:
    """Four budgets a rank (GiB) below the working set of a workload, for a first look.

    The working set is what ``concurrency`` requests of mean length hold (open loop: what 128
    would). The budgets rise in equal ratios to 1/2 of it, from 1/16 or ``least_budget`` if larger.
    """
    mean = sum(r.prompt_tokens + r.output_tokens for r in workload.requests) / len(workload)
    working = (concurrency or 128) * mean * geometry(model).bytes_per_token(dtype) / GIB
    low = max(working / 16, least_budget(workload, model, dtype))
    ratio = max(working / 2 / low, 1) ** (1 / 3)
    return tuple(sorted({float(f"{low * ratio**step:.3g}") for step in range(4)}))


def least_budget(workload: Workload, model: Model, dtype: str = "bf16") -> float:
    """GiB of one rank that the longest request needs at DCP 1; with less it would be aborted."""
    longest = max(r.prompt_tokens + r.output_tokens for r in workload.requests)
    return 1.05 * (longest + 512 + 128) * geometry(model).bytes_per_token(dtype) / GIB


def _point(study: RetractionStudy, dcp_size: int, budget: float) -> Values:
    config = study.config(dcp_size, budget)
    done = simulate(study.workload, config).counters
    # A retracted request holds KV for all its tokens but the newest.
    given_back = done.retracted_input_tokens + done.retracted_output_tokens
    found: Values = asdict(done) | {
        "dcp_size": dcp_size,
        "budget_gib": budget,
        "capacity_tokens": config.layout.capacity_tokens,
        "retractions": done.retracted_requests,
        "retracted_tokens": given_back - done.retracted_requests,
        "backup_gib": done.backup_bytes / GIB,
        "resumed": done.resumed_requests,
        "peak_host_gib": done.peak_host_tokens * config.token_bytes / GIB,
        "num_pages": config.layout.num_pages,
        "label": "simulated",
    }
    return {name: found[name] for name in (*COLUMNS, *_OTHERS)}
