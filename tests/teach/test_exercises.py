"""Each exercise: the task says all, the solution passes, mistakes fail, nothing is remembered."""

import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import KvlabError
from kvlab.teach import EXERCISES, Exercise, exercise
from kvlab.teach.answers import plain
from kvlab.teach.exercise import SIZES, Miss, weight
from kvlab.teach.path.n04_backup_and_restore import HostCopyPool
from kvlab.teach.path.n05_retraction_counts import DecodeBatch
from tests.teach.repaired import REPAIRED, exposes
from tests.teach.wrong import WRONG

every_exercise = pytest.mark.parametrize("ex", EXERCISES.values(), ids=lambda ex: ex.name)


def answered(ex: Exercise, yours: Any, inputs: dict[str, Any]) -> Any:
    """The plain answer of a function."""
    return plain(ex.run(yours, *inputs.values()) if ex.run else yours(*inputs.values()))


def test_grades_rise_along_the_path_from_by_hand_to_find_the_bug() -> None:
    grades = defaultdict(list)
    for ex in EXERCISES.values():
        grades[ex.notebook].append(ex.grade)
    assert len(EXERCISES) >= 32 and len(grades) == 8 and list(grades) == sorted(grades)
    assert [sorted(found) for found in grades.values()] == list(grades.values())
    hardest = [max(found) for found in grades.values()]
    assert hardest == sorted(hardest)
    assert {ex.grade for ex in EXERCISES.values()} == {1, 2, 3, 4, 5}


@every_exercise
def test_a_task_says_what_to_fill_in_gives_an_example_and_ends_with_how_to_check(
    ex: Exercise,
) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", ex.name)
    text, html = repr(ex), ex._repr_html_()
    assert ex.told[0] in text.splitlines()[0] and f"grade {ex.grade} of 5" in text
    assert f"{ex.signature}\n" in text and "Example:" in text
    last = text.splitlines()[-1]
    assert last.strip() == f'exercise("{ex.name}").check({ex.answer.__name__})'
    assert ex.hint not in text and "`" not in html and "color:#" not in html
    names = re.findall(r"\w+(?=[,)])", ex.signature)
    assert ex.run is not None or names == list(ex.named(ex.example))


@every_exercise
def test_the_solution_passes_and_can_be_read(ex: Exercise) -> None:
    assert ex.tried(ex.answer, ex.named(ex.example)).right
    for seed in (1, 2, None):
        result = ex.check(ex.answer, seed=seed)
        assert result.passed, result
    assert repr(ex.solution()).startswith(f"def {ex.answer.__name__}(")


def as_shown(value: object) -> bool:
    """Whether a value is what its text in a task says: numbers, words, lists and pairs of them."""
    if type(value) in (list, tuple):
        return all(map(as_shown, value))  # type: ignore[call-overload]
    return type(value) in (bool, int, float, str)


@every_exercise
def test_inputs_are_plain_fresh_small_at_first_and_the_same_for_one_seed(ex: Exercise) -> None:
    assert str(ex.inputs(3, 4, 5)) == str(ex.inputs(3, 4, 5))
    drawn = [ex.inputs(seed, 0, SIZES - 1) for seed in range(30)]
    assert len(set(map(str, drawn))) > 15
    assert len(str(ex.inputs(1, 0, 0))) < 200
    for inputs in (ex.named(ex.example), *drawn):
        assert all(as_shown(value) for value in inputs.values()), inputs


def test_each_exercise_has_at_least_two_classical_mistakes() -> None:
    assert set(WRONG) == set(EXERCISES)
    assert min(len(found) for found in WRONG.values()) >= 2


@pytest.mark.parametrize(
    ("name", "mistake"), [(name, mistake) for name, found in WRONG.items() for mistake in found]
)
def test_a_classical_mistake_fails_with_a_difference_that_is_true(name: str, mistake: str) -> None:
    ex, wrong = exercise(name), WRONG[name][mistake]
    for seed in range(4):
        result = ex.check(wrong, seed=seed)
        found = result.difference
        assert found is not None, f"{mistake} passes with seed {seed}"
        again = ex.tried(wrong, found.inputs)
        assert (again.right, again.words, str(again.yours)) == (
            False,
            found.words,
            str(found.yours),
        )
        assert "cannot be tried" not in found.words
        assert ex.tried(ex.answer, found.inputs).right
        assert str(found.spec) == str(None if ex.find else ex.expected(found.inputs))
        assert "yours" in repr(result) and f"seed={seed}" in repr(result)


@pytest.mark.parametrize(
    ("name", "mistake", "letters"),
    [
        ("owner-by-hand", "the two swapped", 6),
        ("bounds-of-two-spaces", "no padding page", 9),
        ("ragged-tail", "whole turns only", 14),
        ("localize-then-chunk", "cut first", 40),
        ("restore-into-new-slots", "slots as rows", 30),
        ("books-of-the-scheduler", "enough room", 6),
    ],
)
def test_the_failing_input_that_is_shown_is_small_enough_to_be_redone_by_hand(
    name: str, mistake: str, letters: int
) -> None:
    for seed in range(4):
        found = exercise(name).check(WRONG[name][mistake], seed=seed).difference
        assert found is not None and weight(found.inputs)[0] <= letters


# A repaired method is no table of answers.
@pytest.mark.parametrize("ex", [e for e in EXERCISES.values() if not e.run], ids=lambda e: e.name)
def test_a_table_of_answers_remembered_from_other_seeds_fails(ex: Exercise) -> None:
    table: dict[str, Any] = {}
    for number in range(600):
        inputs = ex.inputs("others", number, number // 60)
        table[str(list(inputs.values()))] = answered(ex, ex.answer, inputs)
    first = next(iter(table.values()))
    assert len(table) > 150
    assert not ex.check(lambda *given: table.get(str(list(given)), first), seed=1).passed


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(KvlabError, match=r"got 'owner', which is none of owner-by-hand, "):
        exercise("owner")


@pytest.mark.parametrize("name", REPAIRED)
def test_the_suspect_is_exposed_by_the_solution_and_without_its_bug_by_nothing(name: str) -> None:
    ex = exercise(name)
    for number in range(40):
        inputs = ex.inputs("pairs", number, number // 4)
        assert exposes(name, answered(ex, ex.answer, inputs), *inputs.values())
        for answer in (ex.answer, *WRONG[name].values()):
            given = answered(ex, answer, inputs)
            assert not exposes(name, given, *inputs.values(), suspect=REPAIRED[name])


@pytest.mark.parametrize("name", [ex.name for ex in EXERCISES.values() if ex.find])
@pytest.mark.parametrize(
    "answer", [3, "word", [], [[]], [[], []], [[None]], [[1.5], [2.5]], [["a"], 0], [True]]
)
def test_an_answer_of_another_shape_is_judged_and_not_raised(name: str, answer: Any) -> None:
    result = exercise(name).check(lambda *given: answer, seed=1)
    assert result.status == "wrong" and "cannot be tried" not in repr(result)


INF = float("inf")
MISSES: dict[str, tuple[tuple[Any, ...], list[tuple[Any, str]]]] = {
    "localized-twice": (
        (2, 2, 1),
        [(3, "of the padding page"), (4, "on rank 0"), (5, "by rank 0"), (7, "an audit sees it")],
    ),
    "a-test-that-sees-it": (
        (2, 1, 5),
        [
            ([[2], [True]], "a slot is a whole number"),
            ([[], []], "there are none"),
            ([[2, 3], [12, 13]], "slots are 2 .. 11"),
            ([[3], [4]], "1 in its page, not 0"),
            ([[2, 5], [4, 5]], "page 1 is not full"),
            ([[2, 3, 2, 3], [4, 5, 6, 7]], "a page is named twice"),
            ([[2, 3], [4]], "a request has one length"),
            ([[2, 3], [2, 3]], "this test passes"),
            ([[10, 11], [8, 9]], "it crashes, 11 is past the 6 rows"),
        ],
    ),
    "mid-page-seam": (
        (2, 4, 8, 24),
        [(True, "no position"), (8, "does not cut"), (10, "no multiple"), (16, "each once")],
    ),
    "books-of-the-scheduler": (
        (2, 2),
        [
            ([[[4, 1]], 0], "two or more requests"),
            ([[[4, 5], [4, 1]], False], "a number of free pages"),
            ([[[4, 5], [4, True]], 0], "no [prompt, generated]"),
            ([[[4, 1], [4, 0]], 0], "of at least 1 each"),
            ([[[4, 1], [4, 1]], 2], "nobody leaves"),
            ([[[4, 1], [9, 1]], 0], "the books are right"),
        ],
    ),
    "merge-of-three": (
        ([1.0, 2.0, 6.0],),
        [([0.0], "3 numbers"), ([51, 0, 0], "no LSE"), ([0, 0, -INF], "it merges to 1.5")],
    ),
    "a-full-host": (
        (10, 2),
        [
            ([[0], [1]], "each with 2 sizes"),
            ([[10, 10], [-1, 0]], "each with 2 sizes"),
            ([[10, 10], [10, 10]], "it never fits"),
            ([[0, 0], [1, 1]], "nothing was declined"),
            ([[11, 0], [1, 0]], "fits beside the 0 bytes"),
        ],
    ),
    "arena-over-its-bound": (
        (10,),
        [
            ([0], "none of them 0"),
            ([11], "no arena"),
            ([1, -1, -1], "not lent"),
            ([-1], "not lent"),
        ],
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_what_is_not_asked_for_is_refused_in_words(name: str) -> None:
    ex = exercise(name)
    inputs, answers = MISSES[name]
    assert exposes(name, plain(ex.answer(*inputs)), *inputs)
    for answer, words in answers:
        with pytest.raises(Miss) as miss:
            ex.rule(answer, *inputs)
        assert words in str(miss.value), answer


few, ranks, lse = st.integers(1, 6), st.integers(2, 5), st.floats(-50, 50) | st.just(-float("inf"))
requests = st.lists(st.tuples(few.map(lambda x: 7 * x), few).map(list), min_size=2, max_size=6)


@given(c=ranks, P=few, running=requests, free=st.integers(0, 4))
def test_the_scheduler_is_off_only_when_a_victims_next_token_opens_a_page(
    c: int, P: int, running: list[list[int]], free: int
) -> None:
    answer = ([[*request] for request in running], free)
    name = "books-of-the-scheduler"
    assert not exposes(name, list(answer), c, P, suspect=REPAIRED[name])
    batch = DecodeBatch(P * c, running, free)
    opens = [(sum(victim) - 1) % (P * c) == 0 for victim in batch.retract()]
    assert exposes(name, list(answer), c, P) == (not batch.audit()) == any(opens)


@given(c=ranks, P=few, kept=st.integers(0, 3), length=st.integers(1, 60), cut=st.integers(1, 60))
def test_the_allocator_is_exposed_by_every_seam_within_a_page_and_by_no_other(
    c: int, P: int, kept: int, length: int, cut: int
) -> None:
    kept *= P * c
    given = ("mid-page-seam", kept + cut, c, P, kept, kept + length)
    assert not exposes(*given, suspect=REPAIRED["mid-page-seam"])
    legal = cut < length and cut % P == 0
    assert exposes(*given) == (legal and cut % (P * c) != 0)


@given(st.lists(st.tuples(st.floats(-9, 9), lse), min_size=2, max_size=5))
def test_a_merge_that_adds_the_exponentials_up_is_right_and_the_other_for_two_ranks(
    shards: list[tuple[float, float]],
) -> None:
    outs, lses = [o for o, _ in shards], [x for _, x in shards]
    assert not exposes("merge-of-three", lses, outs, suspect=REPAIRED["merge-of-three"])
    assert not exposes("merge-of-three", lses[:2], outs[:2])


@given(
    capacity=few, ops=st.lists(st.integers(-4, 12), max_size=12), sizes=st.lists(few, min_size=4)
)
def test_a_host_and_an_arena_without_their_bug_pass_every_test(
    capacity: int, ops: list[int], sizes: list[int]
) -> None:
    host = ("a-full-host", [sizes[:2], sizes[2:4]], capacity, 2)
    assert not exposes(*host, suspect=REPAIRED["a-full-host"])
    arena = ("arena-over-its-bound", ops, capacity)
    assert not exposes(*arena, suspect=REPAIRED["arena-over-its-bound"])


@given(c=ranks, P=few, old=few, new=few, length=st.integers(1, 30))
def test_a_pool_that_localizes_both_ends_passes_every_test(
    c: int, P: int, old: int, new: int, length: int
) -> None:
    W, name = P * c, "a-test-that-sees-it"
    runs = [list(range(page * W, page * W + min(length, W))) for page in (old, new)]
    assert not exposes(name, runs, c, P, 7, suspect=REPAIRED[name])


def test_the_backup_of_the_pool_to_repair_is_right_on_every_rank() -> None:
    pool = HostCopyPool(2, 2, 2)
    pool.write([4, 5, 6], [7, 8, 9])
    assert pool.back_up([4, 5, 6]) == [[(2, 7), (3, 9)], [(2, 8)]]
