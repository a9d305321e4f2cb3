"""The drift study: every condition at every DCP size, teacher-forced and free-running.

    study = DriftStudy(model="data/checkpoints/tiny-kimi-linear")
    result = study.run(cache=Path("build/drift"))
    write_study(result, Path("data/runs/drift"))

Runs are spread over processes of one thread each and kept as they finish, one file a run, so that a
study that is killed goes on where it stopped. Importing this module imports transformers.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from joblib import Parallel, delayed

from kvlab.errors import StudyError
from kvlab.lab.drift.assemble import assemble
from kvlab.lab.drift.cache import Arrays, Note, RunCache, code_digest, model_digest, weights_digest
from kvlab.lab.drift.conditions import DTYPES, NAMES, Condition, condition
from kvlab.lab.drift.prompts import Prompts
from kvlab.lab.drift.results import Study
from kvlab.lab.drift.run import Reference, Setting, forced_run, free_run, reference_run
from kvlab.lab.origin import collect_origin

Progress = Callable[[int, int], None]
VIEWS = ("forced", "free")
#: Most requests at once; the stored ones come about every third forward and reach 17.
RUNNING, MOST_RANKS = 20, 256
_NAMES = {
    "reference": frozenset({"token", "logprob", "logprobs", "length"}),
    "forced": frozenset({"logprob", "kl", "rank", "events", "restores"}),
    "free": frozenset({"token", "logprob", "events"}),
}


@dataclass(frozen=True, slots=True)
class Task:
    """One run to be made. ``name``: a condition of those that share it, or "reference"."""

    view: str
    name: str
    dcp_size: int
    dtype: str


@dataclass(frozen=True)
class DriftStudy:
    """What a study runs.

    Args:
        model: folder of a checkpoint, as ``load_model`` reads it.
        prompts: the requests.
        dcp_sizes: values of c.
        conditions: names; the right twin of each, and ``no_retraction``, are taken along.
        dtypes: of ``DTYPES``; a condition is run in those that it has.
        views: "forced" or both.
        seed, temperature: of the free view.

    Errors: StudyError for an unknown name, an empty or repeated list, a model that is no folder.
    """

    model: Path
    prompts: Prompts
    dcp_sizes: tuple[int, ...] = (1, 2, 4, 8)
    conditions: tuple[str, ...] = NAMES
    dtypes: tuple[str, ...] = DTYPES
    views: tuple[str, ...] = VIEWS
    seed: int = 0
    temperature: float = 0.7

    def __post_init__(self) -> None:
        for name, axis, known in (
            ("dcp_sizes", self.dcp_sizes, None),
            ("conditions", self.conditions, NAMES),
            ("dtypes", self.dtypes, DTYPES),
            ("views", self.views, VIEWS),
        ):
            if not axis or len(set(axis)) != len(axis):
                raise StudyError(f"{name} must name at least one value, each once: got {axis}")
            for i, value in enumerate(axis):
                if known is not None and value not in known:
                    raise StudyError(
                        f"{name} are of {', '.join(known)}: got {value!r} at place {i} of "
                        f"{len(axis)}; name one of these"
                    )
        for i, size in enumerate(self.dcp_sizes):
            if not 1 <= size <= MOST_RANKS:
                raise StudyError(
                    f"a DCP size is in [1, {MOST_RANKS}]: got {size} at place {i} of "
                    f"{self.dcp_sizes}; all ranks are pools of one process"
                )
        if "forced" not in self.views:
            raise StudyError(
                f"the forced view is the one that drift is measured in: got views={self.views}; "
                f"add 'forced'"
            )
        if not 0 < self.temperature < math.inf:
            raise StudyError(
                f"temperature must be finite and above 0: got {self.temperature!r}; the free view "
                f"draws its tokens, 0.01 is as good as the likeliest"
            )
        if not Path(self.model).is_dir():
            raise StudyError(
                f"a model is the folder of a checkpoint: {str(self.model)!r} is none; pass one "
                f"with config.json and safetensors, or train it first"
            )

    @cached_property
    def setting(self) -> Setting:
        """What all runs share."""
        return Setting(str(self.model), self.prompts, RUNNING, self.seed, self.temperature)

    def known(self) -> list[Condition]:
        """The conditions, with those that they are compared with, in the order of the catalogue."""
        asked = [condition(name) for name in self.conditions]
        names = {"no_retraction", *self.conditions, *(c.fixed for c in asked)}
        return [condition(name) for name in NAMES if name in names]

    def points(self) -> list[tuple[Condition, int, str]]:
        """(condition, DCP size, dtype) of the rows of the summary.

        What a condition is compared with is run in its dtypes too.
        """
        known = self.known()
        return [
            (found, c, dtype)
            for dtype in self.dtypes
            for found in known
            for c in self.dcp_sizes
            if any(dtype in x.dtypes for x in known if found.name in (x.name, x.fixed))
        ]

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """The references, and the runs that need them."""
        first = [Task(v, "reference", 1, d) for d in self.dtypes for v in self.views]
        rest: dict[tuple[str, str, int, str], Task] = {}
        for found, c, dtype in self.points():
            for view in self.views:
                rest.setdefault((view, found.runs_as, c, dtype), Task(view, found.name, c, dtype))
        return first, list(rest.values())

    def parameters(self) -> dict[str, object]:
        """What decides the figures, as plain values for an origin stamp."""
        return {
            "model": Path(self.model).name,
            "model_sha256": weights_digest(Path(self.model))[:12],
            "requests": len(self.prompts.tokens),
            "workload": self.prompts.workload.source,
            "digest": self.prompts.workload.digest[:12],
            "dcp_sizes": list(self.dcp_sizes),
            "conditions": list(self.conditions),
            "dtypes": list(self.dtypes),
            "views": list(self.views),
            "temperature": self.temperature,
        }

    def run(
        self,
        *,
        jobs: int | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
        note: Note | None = None,
        command: str = "kvlab drift",
    ) -> Study:
        """The tables.

        Args:
            jobs: processes; None takes the cores of this machine.
            cache: folder of finished runs; None keeps none.
            progress: called with (runs done, runs).
            note: called with a sentence for each damaged file of the cache.
            command: for the origin.

        Errors: StudyError for jobs below 1 or a cache that cannot be written; as ``load_model``.
        """
        if jobs is not None and jobs < 1:
            raise StudyError(f"jobs counts processes, at least 1: got {jobs}; None takes all cores")
        with _folder(cache) as folder:
            kept = RunCache(folder)
            first, rest = self.tasks()
            total = len(first) + len(rest)
            done = 0
            arrays: dict[Task, Arrays] = {}
            for stage in (first, rest):
                missing = []
                for task in stage:
                    found = kept.read(self._key(task), _names(task), note)
                    if found is None:
                        missing.append(task)
                    else:
                        arrays[task] = found
                done += len(stage) - len(missing)
                if progress is not None:
                    progress(done, total)
                for task in self._made(missing, folder, jobs):
                    made = kept.read(self._key(task), _names(task))
                    assert made is not None  # written by the worker just now
                    arrays[task] = made
                    done += 1
                    if progress is not None:
                        progress(done, total)
        origin = collect_origin(command, self.seed, self.parameters(), "cpu").as_dict()
        return assemble(self.points(), self._find(arrays), self.prompts, origin)

    def _find(self, arrays: dict[Task, Arrays]) -> Callable[[str, str, int, str], Arrays | None]:
        """Arrays by (view, condition or "reference", DCP size, dtype); None where none was run."""
        shared = {
            (task.view, _runs_as(task.name), task.dcp_size, task.dtype): found
            for task, found in arrays.items()
        }
        return lambda view, name, c, dtype: shared.get((view, _runs_as(name), c, dtype))

    def _made(self, missing: list[Task], folder: Path, jobs: int | None) -> Iterator[Task]:
        workers = min(jobs or os.cpu_count() or 1, len(missing))
        if workers <= 1:
            for task in missing:
                yield _make(self, task, folder)
            return
        pool = Parallel(n_jobs=workers, return_as="generator_unordered")
        with warnings.catch_warnings():
            # The first bfloat16 operation of a process takes 300 MB, for which joblib replaces it.
            warnings.filterwarnings("ignore", message="A worker stopped")
            yield from pool(delayed(_make)(self, task, folder) for task in missing)

    def _key(self, task: Task) -> str:
        facts = [*self._facts, task.view, _runs_as(task.name), task.dcp_size, task.dtype]
        # Neither what was drawn nor its reference depends on anything else.
        facts += [self.seed, self.temperature] if task.view == "free" else []
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    @cached_property
    def _facts(self) -> list[object]:
        prompts = hashlib.sha256(json.dumps(self.prompts.tokens).encode()).hexdigest()
        return [
            *(code_digest(), model_digest(Path(self.model))),
            *(prompts, self.prompts.workload.digest, RUNNING),
        ]


def _names(task: Task) -> frozenset[str]:
    return _NAMES["reference" if task.name == "reference" else task.view]


def _runs_as(name: str) -> str:
    return name if name == "reference" else condition(name).runs_as


@contextmanager
def _folder(cache: Path | None) -> Iterator[Path]:
    if cache is not None:
        yield cache
    else:
        with TemporaryDirectory() as made:
            yield Path(made)


def _make(study: DriftStudy, task: Task, folder: Path) -> Task:
    """Make one run and keep it; in a process of its own, or in this one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        RunCache(folder).write(study._key(task), _arrays(study, task, folder))
    finally:
        torch.set_num_threads(threads)
    return task


def _arrays(study: DriftStudy, task: Task, folder: Path) -> Arrays:
    if task.name == "reference":
        reference, arrays = reference_run(study.setting, task.dtype, task.view)
        lengths = np.array([len(output) for output in reference.tokens], np.int32)
        return {**arrays, "logprobs": reference.logprobs.numpy(), "length": lengths}
    known = condition(task.name)
    if task.view == "free":
        return free_run(study.setting, known, task.dcp_size, task.dtype)
    key = study._key(Task("forced", "reference", 1, task.dtype))
    found = _reference(folder / f"{key}.npz")
    return forced_run(study.setting, known, task.dcp_size, task.dtype, found)


@lru_cache(maxsize=3)
def _reference(path: Path) -> Reference:
    with np.load(path, allow_pickle=False) as kept:
        cuts = np.cumsum(kept["length"])[:-1]
        outputs = tuple(tuple(part.tolist()) for part in np.split(kept["token"], cuts))
        return Reference(outputs, torch.from_numpy(kept["logprobs"]))
