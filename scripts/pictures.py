"""The pictures of the README, taken from a report: ``python -m kvlab.report.pictures``.

    make report                                     writes build/report/figures/
    .venv/bin/python -m kvlab.report.pictures       copies some of them to data/figures/

Beside each picture lies its JSON: title, definition, origin, and the checksum of the picture,
which a test compares.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kvlab.errors import KvlabError
from kvlab.files import whole_file
from kvlab.report.options import pictures_parser
from kvlab.report.place import MANIFEST
from kvlab.report.notebook_files import ReportError

PICTURES = ("owner-slots", "silent-wrong-row", "retractions-by-dcp", "drift-by-condition")
ENDINGS = ("png", "json")


def copy_pictures(report: Path, out: Path) -> list[Path]:
    """Copy the pictures of the README from ``report`` to ``out``; return what was written.

    Errors: ReportError if there is no report, or it lacks a picture; then nothing is written.
    """
    if not (report / MANIFEST).is_file():
        raise ReportError(
            f"pictures are taken from a report: {report} has no {MANIFEST}; run make report first"
        )
    names = [f"{name}.{ending}" for name in PICTURES for ending in ENDINGS]
    lacking = [name for name in names if not (report / "figures" / name).is_file()]
    if lacking:
        raise ReportError(
            f"the report has every picture of the README: {report} lacks {lacking[0]} and "
            f"{len(lacking) - 1} more files; run make report with all notebooks"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        with whole_file(out / name) as part:
            shutil.copyfile(report / "figures" / name, part)
    return [out / name for name in names]


def main(argv: Sequence[str] | None = None) -> int:
    """Copy the pictures: 0, or 1 with a sentence."""
    given = pictures_parser().parse_args(argv)
    try:
        written = copy_pictures(given.report, given.out)
    except KvlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.out}: {len(written)} files, {len(PICTURES)} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
