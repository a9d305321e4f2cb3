"""``kvlab retraction`` with a geometry of one's own, and the picture that it draws."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from kvlab.lab import retraction as study_module
from tests.cli.conftest import Run

MINE = "mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64"
NODE = ["--page-size", 4, "--reserved-decode-tokens", 2, "--dcp-sizes", "1,2", "--budgets"]
BASE = [*NODE, 0.0009]  # 29 pages of 4 tokens on a rank


def test_a_geometry_of_ones_own_decides_the_pages_and_is_named(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    budget = 30.5 * 4 * 35_840 / 2**30
    words = ["retraction", "--trace", trace, *NODE, budget, "--geometry"]
    done = run(*words, f"{MINE},name=mine-40")
    assert done.code == 0
    assert "mine-40 in bf16, 35,840 bytes a token, backup\n" in done.out
    found = json.loads(run(*words, MINE, "--json").out)
    assert [row["num_pages"] for row in found["rows"]] == [29, 29]
    assert found["rows"][0]["retractions"] > 0
    assert found["parameters"]["model"] == "own geometry"
    fields = {"mla_layers": 40, "kv_lora_rank": 384, "qk_rope_head_dim": 64}
    assert found["parameters"]["geometry"] == fields
    (tmp_path / "mine.json").write_text(json.dumps(fields))
    again = json.loads(run(*words, tmp_path / "mine.json", "--json").out)
    assert again["rows"] == found["rows"]
    assert again["origin"]["command"].endswith("--geometry mine.json --json")


def test_budgets_are_suggested_for_the_geometry_that_is_given(run: Run, trace: Path) -> None:
    def budgets(*words: object) -> list[float]:
        done = run("retraction", "--trace", trace, "--dcp-sizes", 16, *words, "--json")
        found: list[float] = json.loads(done.out)["parameters"]["budgets_gib"]
        return found

    twice = MINE.replace("40", "80")
    ratios = [
        b / a
        for a, b in zip(budgets("--geometry", MINE), budgets("--geometry", twice), strict=True)
    ]
    assert ratios == pytest.approx([2] * len(ratios), rel=0.02)


def test_a_geometry_and_a_name_exclude_each_other_and_a_bad_one_is_one_sentence(run: Run) -> None:
    both = run("retraction", "--model", "Kimi-K2", "--geometry", MINE)
    assert both.code == 2
    assert "argument --geometry: not allowed with argument --model" in both.err
    bad = run("retraction", "--geometry", "mla_layers=40")
    assert (bad.code, bad.out) == (1, "")
    assert bad.err.startswith("error: a row of the KV cache needs mla_layers, kv_lora_rank, ")
    unknown = run("retraction", "--model", "mine")
    assert "pass a ModelGeometry of your own (kvlab retraction --geometry)" in unknown.err


@pytest.mark.parametrize(("columns", "inches"), [(None, 3.5), (1, 3.5), (2, 7.2)])
def test_a_picture_is_as_wide_as_the_columns_it_is_for(
    columns: int | None, inches: float, run: Run, trace: Path, tmp_path: Path
) -> None:
    asked = [] if columns is None else ["--columns", columns]
    for ending in ("pdf", "svg", "png"):
        out = tmp_path / f"counts.{ending}"
        done = run("retraction", "--trace", trace, *BASE, "--figure", out, *asked)
        assert (done.code, done.err) == (0, f"wrote {out} ({inches:g} in wide)\n")
    pdf = (tmp_path / "counts.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", pdf)
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * inches)
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert b"/Subtype /Type3" not in pdf
    with Image.open(tmp_path / "counts.png") as image:
        assert image.width == 200 * inches
    assert f'width="{72 * inches:g}pt"' in (tmp_path / "counts.svg").read_text()
    assert not (tmp_path / "counts.txt").exists()


def test_a_caption_beside_the_picture_has_definition_and_origin_and_leaves_the_picture_lower(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    out, inside = tmp_path / "counts.png", tmp_path / "inside.png"
    words = ["retraction", "--trace", trace, *BASE, "--csv", tmp_path / "counts.csv", "--figure"]
    assert run(*words, inside, "--caption", "inside").code == 0
    done = run(*words, out, "--caption", "beside")
    assert done.err.endswith(f"wrote {tmp_path / 'counts.txt'}\n")
    title, definition, origin = (tmp_path / "counts.txt").read_text().split("\n\n")
    assert title.startswith("Retractions ")
    assert definition.endswith("over a whole run of 24 requests, simulated.")
    assert origin.startswith("kvlab retraction --trace trace.csv --page-size 4")
    assert "model=Kimi-Linear-48B-A3B" in origin
    assert str(tmp_path) not in origin
    with Image.open(out) as bare, Image.open(inside) as full:
        assert bare.width == full.width
        assert bare.height < full.height - 100
    assert len(pd.read_csv(tmp_path / "counts.csv")) == 2


@pytest.mark.parametrize("out", ["counts", "counts.jpg", "-", "pdf"])
def test_the_ending_says_what_is_drawn(out: str, run: Run) -> None:
    done = run("retraction", "--figure", out)
    assert done.code == 2
    assert (
        f"argument --figure: OUT ends in .pdf, .svg, .png, which says what is drawn: got '{out}"
        in (done.err)
    )


def test_a_place_without_a_folder_is_refused_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "simulate", lambda *_: pytest.fail("a run was made"))
    done = run("retraction", "--figure", tmp_path / "none" / "a.pdf")
    assert (done.code, done.out) == (2, "")
    assert "OUT lies in an existing folder" in done.err


@pytest.mark.parametrize("words", [["--columns", 1], ["--caption", "beside"]])
def test_what_is_of_a_picture_needs_one(words: list[object], run: Run) -> None:
    done = run("retraction", *words)
    assert (done.code, done.out) == (1, "")
    assert f"{words[0]} is of a picture: got {words[0]} {words[1]} without --figure" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_table_that_cannot_be_written_does_not_cost_the_picture(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.svg"
    done = run("retraction", "--trace", trace, *BASE, "--csv", "/dev/full", "--figure", out)
    assert done.code == 1
    assert "error: a table is written to a file that can be made: '/dev/full'" in done.err
    assert out.read_text().rstrip().endswith("</svg>")


def test_a_hint_names_no_memory_with_which_the_longest_request_would_be_aborted(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,50000,5\n1,10,5\n")
    words = ["retraction", "--trace", path, "--dcp-sizes", 1, "--concurrency", 1]
    suggested = run(*words)
    assert "with less memory the longest request would be aborted" in suggested.err
    assert "--budgets" not in suggested.err
    ample = run(*words, "--budgets", 1)
    least = re.search(r"\(--budgets ([0-9.]+)\)", ample.err)
    assert least is not None
    assert float(least[1]) < 1
    again = json.loads(run(*words, "--budgets", least[1], "--json").out)
    assert again["rows"][0]["aborted"] == 0
