"""The drift study: every condition at every DCP size, teacher-forced and free-running.

    study = DriftStudy(Path("data/checkpoints/tiny-kimi-linear"), default_prompts())
    write_study(study.run(cache=Path("build/drift")), Path("data/runs/drift"))

Runs are spread over processes of one thread each and kept as they finish, one file a run, so that a
study that is killed goes on where it stopped.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from kvlab.errors import StudyError
from kvlab.lab.drift.defects import DTYPES, NAMES, REFERENCE, Point, condition
from kvlab.lab.drift.prompts import RUNNING, Prompts
from kvlab.lab.drift.results import Study
from kvlab.lab.drift.tables import Find, assemble
from kvlab.lab.keep import Keep, Note, Progress, Values, finished, point_key
from kvlab.lab.origin import collect_origin

VIEWS = ("forced", "free")
MOST_RANKS = 256


@dataclass(frozen=True)
class DriftStudy:
    """What a study runs.

    Args:
        model: folder of a checkpoint, as ``load_model`` reads it.
        prompts: the requests.
        dcp_sizes: values of c.
        conditions: names; the right twin of each, and ``no_retraction``, are taken along.
        dtypes: of ``DTYPES``; a condition is run in those that it has.
        seed, temperature: of the free view.

    Errors: StudyError for an unknown name, an empty or repeated list, a model that is no folder.
    """

    model: Path
    prompts: Prompts
    dcp_sizes: tuple[int, ...] = (1, 2, 4, 8)
    conditions: tuple[str, ...] = NAMES
    dtypes: tuple[str, ...] = DTYPES
    seed: int = 0
    temperature: float = 0.7

    def __post_init__(self) -> None:
        sizes = range(1, MOST_RANKS + 1)
        known = {"dcp_sizes": sizes, "conditions": NAMES, "dtypes": DTYPES}
        for name, allowed in known.items():
            axis = getattr(self, name)
            if not axis or len({*axis} & {*allowed}) != len(axis):
                told = f"1 .. {MOST_RANKS}" if allowed is sizes else ", ".join(map(str, allowed))
                raise StudyError(f"{name} are at least one of {told}, each once: got {axis}")
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

    def points(self) -> list[Point]:
        """The rows of the summary, conditions in the order of the catalog. What a condition is
        compared with is taken along, in its dtypes."""
        asked = [condition(name) for name in self.conditions]
        names = {"no_retraction", *self.conditions, *(known.fixed for known in asked)}
        known = [condition(name) for name in NAMES if name in names]
        return [
            Point(found, c, dtype)
            for dtype in self.dtypes
            for found in known
            for c in self.dcp_sizes
            if any(dtype in x.dtypes for x in known if found.name in (x.name, x.fixed))
        ]

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
            "views": list(VIEWS),
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
        """The tables. Arguments and errors as ``runs``; ``command``: for the origin."""
        find = self.runs(jobs=jobs, keep=Keep(cache, note), progress=progress)
        origin = collect_origin(command, self.seed, self.parameters(), "cpu").as_dict()
        return assemble(self.points(), find, self.prompts, origin)

    def runs(
        self, *, jobs: int | None = None, keep: Keep, progress: Progress | None = None
    ) -> Find:
        """The arrays of all runs, by view and point: the references first, then what needs them.

        Arguments and errors as ``finished``; errors also as ``load_model``.
        """
        told = progress or (lambda done, total: None)
        alone = {x: Point(REFERENCE, 1, x) for x in self.dtypes}
        first = {self._key(view, p): (view, p) for p in alone.values() for view in VIEWS}
        # Points that are the same run share a key.
        rest = {self._key(view, p): (view, p) for p in self.points() for view in VIEWS}
        total, found = len(first) + len(rest), dict[str, Values]()
        for runs in (first, rest):
            work = {}
            for key, (view, point) in runs.items():
                text = found.get(self._key("forced", alone[point.dtype]))
                work[key] = partial(_make, self, view, point, text if view == "forced" else None)
            made = finished(
                work, keep=keep, jobs=jobs, progress=lambda n, _: told(len(found) + n, total)
            )
            found.update(made)
        return lambda view, point: found[self._key(view, point)]

    def _key(self, view: str, point: Point) -> str:
        # Neither what was drawn nor its reference depends on anything else.
        drawn = [self.seed, self.temperature] if view == "free" else []
        return point_key(self._facts, view, point.known.runs_as, point.dcp_size, point.dtype, drawn)

    @cached_property
    def _facts(self) -> list[object]:
        prompts = hashlib.sha256(json.dumps(self.prompts.tokens).encode()).hexdigest()
        return [model_digest(Path(self.model)), prompts, self.prompts.workload.digest, RUNNING]


def _make(study: DriftStudy, view: str, point: Point, reference: Values | None) -> Values:
    """Make one run, in one thread. ``reference``: the forced one of its dtype, for a forced run."""
    from kvlab.lab.drift.run import forced_run, free_run, reference_run

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if point.known == REFERENCE:
            return reference_run(study, point.dtype, view)
        return free_run(study, point) if reference is None else forced_run(study, point, reference)
    finally:
        torch.set_num_threads(threads)


def model_digest(folder: Path) -> str:
    """SHA-256 over config, weights and their index, which decide what a model says."""
    named = [folder / "config.json", *sorted(folder.glob("*.safetensors*"))]
    found = [f"{path.name} {_sha256(path)}\n" for path in named if path.is_file()]
    return hashlib.sha256("".join(found).encode()).hexdigest()


def weights_digest(folder: Path) -> str:
    """What an origin names: the SHA-256 of ``model.safetensors``, as any tool prints it;
    ``model_digest`` where there is no such file."""
    path = folder / "model.safetensors"
    return _sha256(path) if path.is_file() else model_digest(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
