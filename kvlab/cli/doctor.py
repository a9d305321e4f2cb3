"""``kvlab doctor``: what of kvlab works on this machine, and what to do about the rest.

It asks and changes nothing, and takes about as long as starting kvlab. The exit code is 0 unless
something that the core needs is broken: Python, torch and the libraries under the pools, the CPU.
"""

import argparse
import sys
from dataclasses import asdict

import pandas as pd

from kvlab.cli.doctor_checks import Check
from kvlab.cli.doctor_machine import machine_questions, serves
from kvlab.cli.doctor_project import project_questions
from kvlab.cli.output import Answer, Places, add_output_arguments, deliver, file_of
from kvlab.lab.origin import commit, versions

SUMMARY = "what works on this machine, and what to do about the rest"
DESCRIPTION = """\
Look at Python, torch, the devices, Triton, the libraries of figures and notebooks, the recorded
data and the build folder. Each line says ok, or will not work and what to do. Nothing is changed
and nothing is run on a device.
"""
EPILOG = """\
examples:
  kvlab doctor
  kvlab doctor --json

exit codes:
  0 the core works, whatever else a line says; 1 something that the core needs is broken
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kvlab doctor``."""
    add_output_arguments(parser, "one row a check")


def places(given: argparse.Namespace) -> tuple[Places, Places]:
    """What the options read, what they write."""
    return {}, {"--csv": file_of(given.csv)}


def run(given: argparse.Namespace) -> int:
    """Ask, print, and return 1 if the core will not work."""
    checks = examine()
    broken = [check for check in checks if check.needed and not check.ok]

    def document() -> dict[str, object]:
        return {
            "core_works": not broken,
            "checks": [record(check) for check in checks],
            "backend": serves(),
            "versions": versions(),
            "commit": commit(),
        }

    def table() -> pd.DataFrame:
        return pd.DataFrame([record(check) for check in checks])

    deliver(Answer(lambda: text(checks), document, table), given)
    if broken:
        names = ", ".join(check.name for check in broken)
        print(f"error: the core of kvlab will not work here: {names}", file=sys.stderr)
    return 1 if broken else 0


def examine() -> list[Check]:
    """The answers to all questions, in order. Errors: none."""
    return [
        check
        for question in [*machine_questions(), *project_questions()]
        for check in question.answers()
    ]


def record(check: Check) -> dict[str, object]:
    """A check as plain values: name, ok, state, needed, found, do."""
    facts = asdict(check)
    return {"name": facts.pop("name"), "ok": facts.pop("ok"), "state": check.state, **facts}


def text(checks: list[Check]) -> str:
    """The lines for people: what to do stands below what will not work."""
    name, state = (
        max(len(cell) for cell in cells)
        for cells in zip(*((c.name, c.state) for c in checks), strict=True)
    )
    lines = []
    for check in checks:
        lines.append(f"{check.name:{name}}  {check.state:{state}}  {check.found}")
        if check.do is not None:
            lines.append(f"{'':{name}}  {'':{state}}  do: {check.do}")
    broken = sum(not check.ok for check in checks)
    core = "the core works" if all(c.ok for c in checks if c.needed) else "THE CORE IS BROKEN"
    lines.append(f"{len(checks) - broken} of {len(checks)} ok; {core}")
    return "\n".join(lines)
