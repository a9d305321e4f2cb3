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
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from kvlab.errors import StudyError
from kvlab.lab.drift.assemble import assemble
from kvlab.lab.drift.cache import model_digest, weights_digest
from kvlab.lab.drift.conditions import DTYPES, NAMES, Condition, condition
from kvlab.lab.drift.prompts import Prompts
from kvlab.lab.drift.results import Study
from kvlab.lab.drift.run import Reference, Setting, forced_run, free_run, reference_run
from kvlab.lab.keep import Keep, Note, Progress, Values, finished, point_key
from kvlab.lab.origin import collect_origin

VIEWS = ("forced", "free")
#: Most requests at once; the stored ones come about every third forward and reach 17.
RUNNING, MOST_RANKS = 20, 256


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
        keep = Keep(cache, note)
        first, rest = self.tasks()
        told = progress or (lambda done, total: None)
        total = len(first) + len(rest)
        runs = finished(
            {self._key(task): partial(_make, self, task, None) for task in first},
            keep=keep,
            jobs=jobs,
            progress=lambda done, _: told(done, total),
        )
        references = {task.dtype: runs[self._key(task)] for task in first if task.view == "forced"}
        runs |= finished(
            {
                self._key(task): partial(
                    _make, self, task, references[task.dtype] if task.view == "forced" else None
                )
                for task in rest
            },
            keep=keep,
            jobs=jobs,
            progress=lambda done, _: told(len(first) + done, total),
        )

        def find(view: str, name: str, dcp_size: int, dtype: str) -> Values | None:
            return runs.get(self._key(Task(view, name, dcp_size, dtype)))

        origin = collect_origin(command, self.seed, self.parameters(), "cpu").as_dict()
        return assemble(self.points(), find, self.prompts, origin)

    def _key(self, task: Task) -> str:
        # Neither what was drawn nor its reference depends on anything else.
        drawn = [self.seed, self.temperature] if task.view == "free" else []
        runs_as = task.name if task.name == "reference" else condition(task.name).runs_as
        return point_key(*self._facts, task.view, runs_as, task.dcp_size, task.dtype, *drawn)

    @cached_property
    def _facts(self) -> list[object]:
        prompts = hashlib.sha256(json.dumps(self.prompts.tokens).encode()).hexdigest()
        return [model_digest(Path(self.model)), prompts, self.prompts.workload.digest, RUNNING]


def _make(study: DriftStudy, task: Task, reference: Values | None) -> Values:
    """Make one run, in one thread; ``reference``: the one of a run of the forced view."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _arrays(study, task, reference)
    finally:
        torch.set_num_threads(threads)


def _arrays(study: DriftStudy, task: Task, reference: Values | None) -> Values:
    if task.name == "reference":
        made, arrays = reference_run(study.setting, task.dtype, task.view)
        lengths = np.array([len(output) for output in made.tokens], np.int32)
        return {**arrays, "logprobs": made.logprobs.numpy(), "length": lengths}
    known = condition(task.name)
    if reference is None:
        return free_run(study.setting, known, task.dcp_size, task.dtype)
    cuts = np.cumsum(reference["length"])[:-1]
    outputs = tuple(tuple(part.tolist()) for part in np.split(reference["token"], cuts))
    found = Reference(outputs, torch.from_numpy(reference["logprobs"]))
    return forced_run(study.setting, known, task.dcp_size, task.dtype, found)
