"""Copy the pictures of the README and their origin from a report: ``python -m scripts.pictures``.

    make report                                  writes build/report/figures/
    .venv/bin/python -m scripts.pictures         copies some of them to data/figures/

Beside each picture lies its JSON: title, definition, origin, and the checksum of the picture,
which a test compares.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kvlab.files import whole_file

PICTURES = ("owner-slots", "silent-wrong-row", "retractions-by-dcp", "drift-by-condition")
NAMES = [f"{name}.{ending}" for name in PICTURES for ending in ("png", "json")]


def main(argv: Sequence[str] | None = None) -> int:
    """Copy all the pictures or none: 0, or 1 with a sentence."""
    parser = argparse.ArgumentParser("python -m scripts.pictures", description=__doc__)
    for name, folder in (("--report", Path("build/report")), ("--out", Path("data/figures"))):
        parser.add_argument(name, type=Path, default=folder, metavar="DIR", help="%(default)s")
    given = parser.parse_args(argv)
    figures = given.report / "figures"
    lacking = [name for name in NAMES if not (figures / name).is_file()]
    if lacking:
        print(
            f"error: {given.report} lacks {lacking[0]} and {len(lacking) - 1} more files of the "
            "README's pictures; run make report with all notebooks first",
            file=sys.stderr,
        )
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        with whole_file(given.out / name) as part:
            shutil.copyfile(figures / name, part)
    print(f"{given.out}: {len(NAMES)} files, {len(PICTURES)} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
