"""``python -m kvlab.lab.training OUT``: train the tiny checkpoint, save it, and measure it."""

import sys
from collections.abc import Sequence

import torch
from tqdm import tqdm

from kvlab.errors import KvlabError
from kvlab.lab.training.loop import Recipe, smoke
from kvlab.lab.training.options import parser
from kvlab.lab.training.run import Sample, finish, make


def main(argv: Sequence[str] | None = None) -> int:
    """Train or measure; 0 when the folder is complete, 1 if it could not be, 130 if interrupted."""
    given = parser().parse_args(argv)
    threads = torch.get_num_threads()
    recipe = smoke(given.seed) if given.smoke else Recipe(seed=given.seed)
    sample = Sample(windows=8, length=192, questions=2) if given.smoke else Sample()
    try:
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        if given.measure_only:
            finish(given.out, sample)
        else:
            with tqdm(total=recipe.steps, unit="step", disable=not sys.stderr.isatty()) as bar:
                make(given.out, recipe, sample, lambda done, _: _moved(bar, done))
    except KvlabError as error:
        print(f"kvlab training: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"kvlab training: interrupted; {given.out} holds the weights of the last line of its "
            f"log, if there is one; --measure-only measures them, and to train on, begin again in "
            f"another folder: the same seed takes the same course",
            file=sys.stderr,
        )
        return 130
    finally:
        torch.set_num_threads(threads)
    print(f"{given.out}: trained and measured; for its figure: python -m kvlab.viz.training OUT")
    return 0


def _moved(bar: "tqdm[None]", done: int) -> None:
    bar.update(done - bar.n)


if __name__ == "__main__":
    raise SystemExit(main())
