"""What holds for each of the five explorers, and what each shows beside brute force."""

import inspect
import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread

from kvlab.engine import NodeConfig, StepNode
from kvlab.errors import KvlabError, StudyError
from kvlab.lab.backup_walk import STEPS, backup_walk
from kvlab.lab.drift import MARGIN, read_study, read_token_drift
from kvlab.lab.merge_case import REPORTED, MergeCase
from kvlab.lab.timeline import RESERVE, node_walk, requests
from kvlab.memory.published import data_path
from kvlab.viz import widgets
from kvlab.viz.panel import Panel
from kvlab.viz.save import figure_definition, figure_title
from kvlab.viz.style import WIDTH_IN
from kvlab.viz.tokens import REQUESTS, SIZES, TITLES, line_of
from kvlab.viz.widgets import (
    backup_stepper,
    drift_explorer,
    drift_explorer_figure,
    merge_explorer,
    retraction_timeline,
    retraction_timeline_figure,
)
from tests.viz.figure_checks import nothing_overlaps

NAMES = [name for name in widgets.__all__ if not name.endswith("_figure")]
SETTING = (st.sampled_from(SIZES), st.sampled_from([1, 2]), st.integers(1, 16))
LSE = st.lists(st.floats(-30, 30), min_size=1, max_size=6)
FOLDER = data_path("runs", "drift", "summary.csv").parent
STUDY = read_study(FOLDER)


def explorer(name: str) -> Panel:
    """The panel of that name."""
    made: Panel = getattr(widgets, name)()
    return made


def twin(name: str) -> Callable[..., Figure]:
    """Its static twin."""
    found: Callable[..., Figure] = getattr(widgets, f"{name}_figure")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_has_the_controls_as_arguments_with_the_values_that_they_start_with(
    name: str,
) -> None:
    asked = inspect.signature(twin(name)).parameters
    defaults = {key: one.default for key, one in asked.items() if key != "width"}
    panel, told = explorer(name), widgets.__doc__ or ""
    assert defaults == panel.values
    for control in panel.values:  # named in the docstring and on the screen
        short = control.rsplit("_", 1)[0] if control[-1].isdigit() else control
        assert short in told
        assert panel.control(control).description


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_as_wide_as_a_column_and_nothing_leaves_it(name: str, width: str) -> None:
    fig = twin(name)(width=width)
    assert fig.get_figwidth() == WIDTH_IN[width]
    assert figure_title(fig) and len(figure_definition(fig)) > 60
    assert nothing_overlaps(fig)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_twin_with_its_table_for_one_column_and_two(
    name: str, tmp_path: Path
) -> None:
    panel = explorer(name)
    for width in ("single", "double"):
        svg, pdf, png, csv, _ = panel.export(tmp_path, width)
        assert svg.stem == name.replace("_", "-")
        assert ElementTree.parse(svg).getroot().tag.endswith("svg")
        assert pdf.read_bytes().startswith(b"%PDF") and b"/FontFile2" in pdf.read_bytes()
        assert imread(png).shape[1] == pytest.approx(200 * WIDTH_IN[width], abs=1)
        assert len(pd.read_csv(csv)) == len(panel.table())


@pytest.mark.parametrize("name", NAMES)
def test_hover_boxes_lie_inside_the_picture_and_apart(name: str) -> None:
    drawing = explorer(name).drawing()
    wide, high = drawing.figure.get_size_inches()
    boxes = [spot.pixels() for spot in drawing.spots]
    assert boxes
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 96 * wide + 1 and 0 <= top < bottom <= 96 * high + 1
    for one, other in itertools.combinations(boxes[:200], 2):
        across = min(one[2], other[2]) - max(one[0], other[0])
        down = min(one[3], other[3]) - max(one[1], other[1])
        assert across <= 1 or down <= 1, (one, other)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_kernel_there_are_a_picture_its_words_and_the_numbers(name: str) -> None:
    panel = explorer(name)
    data, about = panel._repr_mimebundle_()
    assert {"image/png", "text/html", "text/plain"} <= data.keys()
    assert panel.text in str(data["text/plain"]) and panel.text in str(about["image/png"]["alt"])
    assert str(data["text/html"]).count("<tr") > 2
    assert len(str(data["image/png"])) < 130_000


def choices(control: Any) -> list[object]:
    """Every value that a control can be moved to; for a text, a few."""
    if control.has_trait("options"):
        return [value for _, value in control._options_full]
    if isinstance(control.value, bool):
        return [False, True]
    if isinstance(control.value, str):
        return ["3, 1", "1", "5, 2, 9, 1, 12, 4", "12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1"]
    end = control.max + control.step / 2
    return list(np.arange(control.min, end, control.step).tolist())


@pytest.mark.parametrize("name", NAMES)
def test_random_moves_over_all_that_the_controls_reach_draw_or_refuse_in_words(
    name: str,
) -> None:
    panel, rng, drawn = explorer(name), random.Random(7), 0
    for _ in range(40):
        moved = rng.choice(list(panel.values))
        panel.set(**{moved: rng.choice(choices(panel.control(moved)))})
        drawn += not panel.text.startswith("Not drawn")
    assert drawn > 10


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("backup_stepper", {"step": 6}, r"a step .* in \[0, 6\): got 6; 0 before, 1 backed up"),
        ("backup_stepper", {"dcp_size": 0}, r"dcp_size must be at least 1"),
        ("merge_explorer", {"ranks": 5}, r"1 to 4 ranks, one for each lse: got ranks=5"),
        ("drift_explorer", {"token": -1}, r"a token of this request lies in \[0, \d+\): got -1"),
        ("drift_explorer", {"condition": "natural", "dtype": "fp8"}, "was run in float32: choose"),
        ("retraction_timeline", {"step": -1}, r"a step of this run lies in \[0, \d+\): got -1"),
        ("retraction_timeline", {"dcp_size": 1, "capacity": 32}, "needs a request that fits the"),
        ("owner_explorer", {"slot": -1}, r"a slot of this pool lies in \[0, 208\): got -1"),
        ("owner_explorer", {"width": "wide"}, "width is one of 'single', 'double': got 'wide'"),
    ],
)
def test_a_twin_refuses_in_words_what_no_control_reaches(
    name: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(KvlabError, match=message):
        twin(name)(**values)


@settings(max_examples=12, deadline=None)
@given(*SETTING, st.sampled_from(["low", "full"]))
def test_with_the_fix_every_position_comes_back_and_nobody_is_hurt(
    c: int, size: int, length: int, pool: Any
) -> None:
    walk = backup_walk(c, size, length, pool)
    assert [step.name for step in walk.steps] == list(STEPS)
    last = walk.steps[-1]
    assert (last.wrong, last.damaged, last.failed) == (0, 0, False)
    mine = last.cells[(last.cells["request"] == walk.victim)]
    assert sorted(mine["position"]) == list(range(length))
    assert (mine["position"] % c == mine["rank"]).all()
    host = walk.steps[1].cells.query("place == 'host'")
    assert len(host) == length and (host["request"] == walk.victim).all()


@settings(max_examples=12, deadline=None)
@given(*SETTING)
def test_without_the_fix_a_low_victim_is_lost_in_silence_and_others_with_it(
    c: int, size: int, length: int
) -> None:
    walk = backup_walk(c, size, length, "low", False)
    last = walk.steps[-1]
    if c == 1:
        assert (last.wrong, last.damaged) == (0, 0)
        return
    assert not any(step.failed for step in walk.steps)
    assert last.wrong > 0
    host = walk.steps[1].cells.query("place == 'host'")
    assert len(host) == c * length  # every rank copied a row a position
    framed = int((last.cells["verdict"] == "wrong").sum())
    assert framed == last.wrong + last.damaged


@pytest.mark.parametrize("c", [2, 4, 8])
def test_without_the_fix_a_full_pool_ends_the_process_at_the_backup(c: int) -> None:
    walk = backup_walk(c, 2, 5, "full", False)
    assert [step.failed for step in walk.steps] == [False, True, True, True, True, True]
    assert "out of bounds" in walk.steps[1].told
    assert walk.steps[4].told.startswith("Not reached. Rank 0 used slots as rows")


def test_freed_rows_hold_no_token_and_the_newcomer_takes_them() -> None:
    walk = backup_walk(4, 2, 12, "low")
    before, freed, reused = (
        walk.steps[at].cells.query("place == 'buffer'").set_index(["rank", "row"])["request"]
        for at in (0, 2, 3)
    )
    mine = before[before == walk.victim].index
    assert (freed[mine] == -1).all()
    assert (reused[mine] > walk.victim).all()


def test_hover_boxes_of_the_stepper_say_what_the_table_has() -> None:
    panel = backup_stepper().set(step=5, fix=False)
    table, said = panel.table(), [spot.text for spot in panel.drawing().spots]
    assert sum("no token" not in text for text in said) == len(table)
    for row in table.head(30).to_dict("records"):
        (mine,) = [
            text for text in said if text.startswith(f"Rank {row['rank']}, row {row['row']}, ")
        ]
        assert f"request {row['request']}, position {row['position']}" in mine


@given(LSE, st.data(), st.sampled_from(["-inf", "+inf", "NaN"]))
def test_weights_are_shares_of_the_exponentials_of_who_has_keys_for_every_report_but_zero(
    lse: list[float], data: st.DataObject, reported: str
) -> None:
    empty = tuple(data.draw(st.lists(st.booleans(), min_size=len(lse), max_size=len(lse))))
    table = MergeCase(tuple(lse), empty, reported).table()
    mass = np.where(empty, 0.0, np.exp(np.array(lse)))
    want = mass / mass.sum() if mass.any() else mass
    np.testing.assert_allclose(table["right_weight"], want, atol=1e-12)
    np.testing.assert_array_equal(table["weight"], table["right_weight"])


def test_an_empty_rank_reported_as_zero_weighs_as_much_as_lse_zero_does() -> None:
    case = MergeCase((0.0, 5.0), (False, True), "0")
    assert case.table()["weight"].tolist() == [0.5, 0.5]
    assert case.outputs() == (1.0, 0.5)


def test_two_shards_in_the_wrong_base_merge_as_in_the_worked_example() -> None:
    case = MergeCase((math.log(2), math.log(8)), (False, False), log_base="wrong")
    np.testing.assert_allclose(case.table()["weight"], [0.1192, 0.8808], atol=1e-4)
    np.testing.assert_allclose(case.table()["right_weight"], [0.2, 0.8])
    assert case.outputs()[0] == pytest.approx(1.8)


@pytest.mark.parametrize(("reported", "lost"), [("-inf", 0), ("0", 0), ("+inf", 2), ("NaN", 2)])
def test_a_plain_softmax_turns_into_no_number_where_it_is_told_inf_or_nan(
    reported: str, lost: int
) -> None:
    table = MergeCase((1.0, 2.0), (False, True), reported, merge="plain").table()
    assert int(table["weight"].isna().sum()) == lost


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"lse": (), "empty": ()}, "an lse in nats, finite, and an empty flag for each"),
        ({"lse": (math.inf,), "empty": (False,)}, "finite"),
        ({"lse": (1.0,), "empty": (False,), "reported": "1"}, "reported is one of -inf"),
        ({"lse": (1.0,), "empty": (False,), "log_base": "2"}, "log_base is one of right, wrong"),
    ],
)
def test_what_is_no_case_is_refused(case: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        MergeCase(**case)


def test_every_setting_of_the_merge_is_drawn_and_says_the_two_outputs() -> None:
    panel = merge_explorer()
    words = itertools.product(REPORTED, ("right", "wrong"), ("checked", "plain"), (1, 4))
    for (reported, base, merge, ranks), gone in itertools.product(words, (False, True)):
        flags = {f"empty_{rank}": gone for rank in range(4)}
        panel.set(reported=reported, log_base=base, merge=merge, ranks=ranks, **flags)
        assert not panel.text.startswith("Not drawn")
        told: Any = ((2.0, 1.0, -1.0, 0.5)[:ranks], (gone,) * ranks, reported, base, merge)
        right, merged = MergeCase(*told).outputs()
        same = abs(merged - right) <= 1e-9
        assert ("gives the same" in panel.text) == same
        assert same or "Nothing raises" in panel.text


@pytest.mark.parametrize("restore", ["backup", "recompute"])
@pytest.mark.parametrize(("c", "capacity"), [(1, 96), (2, 64), (4, 32), (8, 32)])
def test_the_run_is_that_of_the_node_that_steps_over_real_pools(
    c: int, capacity: int, restore: Any
) -> None:
    walk = node_walk(c, capacity, restore)
    config = NodeConfig(
        walk.layout,
        restore=restore,
        admission="reserved" if restore == "backup" else "new_token_ratio",
        reserved_decode_tokens=RESERVE,
    )
    assert walk.result == StepNode(config, check_every_step=True).run(requests(), record=True)


@pytest.mark.parametrize("restore", ["backup", "recompute"])
def test_the_numbers_of_a_step_are_counted_from_the_events(restore: Any) -> None:
    walk = node_walk(2, 64, restore)
    words = {"arrive": "waiting", "admit": "running", "resume": "running", "retract": "retracted"}
    for step in range(0, walk.steps, 7):
        state: dict[int, str] = {}
        for event in walk.result.events:
            last = event.step < step or (event.step == step and event.kind in words)
            if last and event.kind in words:
                state[event.rid] = words[event.kind]
                if restore == "recompute" and event.kind == "retract":
                    state[event.rid] = "waiting"
            elif last:
                state.pop(event.rid, None)
        now = walk.at(step)
        for name in ("running", "retracted", "waiting"):
            assert now[name] == sorted(rid for rid, kind in state.items() if kind == name)


@pytest.mark.parametrize("restore", ["backup", "recompute"])
def test_every_setting_of_the_time_line_is_drawn_or_refused_in_words(restore: Any) -> None:
    panel = retraction_timeline()
    refused = 0
    for c, capacity in itertools.product(SIZES, (32, 64, 96, 160, 256)):
        panel.set(dcp_size=c, capacity=capacity, restore=restore)
        if panel.text.startswith("Not drawn"):
            refused += 1
            assert "all 6 requests were aborted; take more rows or more ranks" in panel.text
        else:
            end = node_walk(c, capacity, restore).steps - 1
            assert panel.set(step=end).text.startswith(f"Step {end}: ")
    assert 0 < refused < 5


def test_more_ranks_hold_more_and_retract_less() -> None:
    counts = [node_walk(c, 64).result.counters.retracted_requests for c in (2, 4, 8)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0 == counts[-1]


@pytest.mark.parametrize(("capacity", "restore"), [(0, "backup"), (65, "backup")])
def test_what_is_no_node_is_refused(capacity: int, restore: Any) -> None:
    with pytest.raises(StudyError, match="a rank has whole pages of 4 rows: got"):
        retraction_timeline_figure(2, capacity, restore)


def test_a_hover_box_of_the_time_line_is_a_stay_of_the_table() -> None:
    panel = retraction_timeline()
    table, spots = panel.table(), panel.drawing().spots
    lasting = table[table["end"] > table["begin"]]
    assert len(spots) == len(lasting)
    for spot, stay in zip(spots, lasting.to_dict("records"), strict=True):
        assert spot.text.startswith(f"Request {stay['rid']}, ")
        assert f"steps {stay['begin']} to {stay['end'] - 1}" in spot.text


def test_the_largest_drift_of_each_line_is_that_of_the_study() -> None:
    lines = read_token_drift()
    # Of no finite number the study keeps no maximum.
    lines["most"] = [np.nanmax([*drift, -1.0]) for drift in lines["abs_dlogprob"]]
    both = lines.merge(STUDY.requests, on=["condition", "dcp_size", "dtype", "rid"])
    assert len(both) == len(lines) == 12 * len(STUDY.summary)
    want = both["max_abs_dlogprob"].fillna(-1.0)
    np.testing.assert_allclose(both["most"], want, rtol=0.006, atol=1e-12)
    lost = [int(np.isnan(drift).sum()) for drift in both["abs_dlogprob"]]
    assert lost == both["nan_tokens"].tolist()


def test_the_tokens_are_those_of_the_run_that_the_study_keeps() -> None:
    about: Any = STUDY.origin["timeline"]
    for rid, mine in STUDY.tokens.groupby("rid"):
        if rid in REQUESTS:
            line = line_of(about["condition"], about["dtype"], about["dcp_size"], int(str(rid)))
            assert list(line.tokens) == mine["token"].tolist()
            np.testing.assert_allclose(line.drift, mine["abs_dlogprob"], rtol=0.006)
            first = mine.loc[mine["restored"], "position"].min()
            assert (line.back[0] if line.back else None) == (None if pd.isna(first) else first)


def test_every_run_is_drawn_or_told_in_which_dtypes_it_was_run() -> None:
    panel = drift_explorer()
    for condition in TITLES.values():
        run = set(STUDY.summary.loc[STUDY.summary["condition"] == condition, "dtype"])
        for dtype, request in zip(("float32", "bfloat16", "fp8"), (0, 7, 11), strict=True):
            panel.set(
                condition=condition, dtype=dtype, dcp_size=SIZES[request % 4], request=request
            )
            refused = panel.text.startswith("Not drawn")
            assert refused == (dtype not in run)
            assert not refused or f"{condition} was run in " in panel.text


def test_the_sentence_and_the_boxes_of_the_tokens_say_what_the_table_has() -> None:
    panel = drift_explorer().set(request=7, token=4)
    table, line = panel.table(), line_of("forced_before_fix", "float32", 4, 7)
    above = int((table["abs_dlogprob"] > MARGIN * line.floor).sum())
    assert f"Of {len(table)} tokens {above} are above 2 ε" in panel.text
    row = table.iloc[4]
    assert panel.text.startswith(f"Token 4, {row['token']}: |Δℓ| {row['abs_dlogprob']:.3g} nats")
    spots = panel.drawing().spots
    for spot, at, level in zip(spots, table["position"], table["level"], strict=True):
        assert spot.text.startswith(f"Token {at}, ") and level in spot.text
    for request in REQUESTS:  # the cursor ends with the tokens
        last = len(panel.set(request=request).table()) - 1
        assert panel.set(token=last).text.startswith(f"Token {last}, ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("tokens", "words", 1), "and columns condition"),
        (None, "No such file"),
    ],
)
def test_a_damaged_table_is_refused_by_name(tmp_path: Path, change: object, message: str) -> None:
    if callable(change):
        text = (FOLDER / "token_drift.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "token_drift.csv").write_text(change("".join(text[:3])), encoding="utf-8")
    with pytest.raises(StudyError, match=message):
        read_token_drift(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_names_of_floor_and_tolerance_do_not_lie_on_one_another(dtype: str) -> None:
    fig = drift_explorer_figure("forced_fixed", dtype, 8, 6, 24, "single")
    fig.draw_without_rendering()
    named = [t for t in fig.axes[0].texts if t.get_text() in ("2 ε", "0.20")]
    assert len(named) >= 2
    for one, other in itertools.combinations(named, 2):
        assert not one.get_window_extent().padded(-1).overlaps(other.get_window_extent().padded(-1))
