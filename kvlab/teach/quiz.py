"""Ten questions on the path, each with the notebook that answers it; the answers are computed.

    >>> from kvlab.teach import quiz
    >>> score = quiz.check([10, 125, 8256])      # or {1: 10, 6: "c"}; a few at a time will do
    >>> score.right
    3

``quiz()`` shows the questions, ``quiz.answers()`` is for teachers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvlab.index import DcpLayout, Shard, get_dcp_lens, raw_use_census
from kvlab.memory import ModelGeometry
from kvlab.teach.answers import NotPlain, difference, plain
from kvlab.teach.exercise import Block, Miss, Part, Shown, table
from kvlab.teach.path.n03_crash_reproduction import a_test_that_sees_it
from kvlab.teach.path.n04_backup_and_restore import to_save
from kvlab.teach.path.n05_retraction_counts import counts


@dataclass(frozen=True, slots=True)
class Question:
    """One question: ``choices`` in the order of their letters, none when a number is asked for."""

    notebook: str
    text: str
    compute: Callable[[], int | str]
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        options = (f"{x}) {words}" for x, words in zip("abcdef", self.choices, strict=False))
        return " ".join([self.text, "; ".join(options)]).strip()

    def mark(self, answer: object) -> str:
        """One of "right", "wrong" and "", for no answer."""
        try:
            mine = plain(answer)
        except NotPlain:
            return "wrong"
        if isinstance(mine, str):
            mine = self._read(" ".join(mine.lower().split()))
        if isinstance(mine, float) and mine.is_integer():
            mine = int(mine)
        if mine is None:
            return ""
        return "right" if difference(mine, self.compute()) is None else "wrong"

    def _read(self, text: str) -> float | str:
        """The letter of a choice, "c", "(c)" or its words; or the one number of a text."""
        if not self.choices:
            return number_in(text)
        words = [choice.lower() for choice in self.choices]
        if text in words:
            return "abcdef"[words.index(text)]
        letter = re.match(r"\(?([a-z])\b", text)
        return letter[1] if letter else text


@dataclass(frozen=True, slots=True, repr=False)
class Score(Shown):
    """What ``check`` found: for each question "right", "wrong" or "" (not answered)."""

    marks: tuple[str, ...]
    notebooks: tuple[str, ...]

    @property
    def right(self) -> int:
        """How many were right."""
        return self.marks.count("right")

    def block(self) -> tuple[str, list[Part]]:
        """What is shown: where to read on, and not the answers."""
        rows = [
            (number, mark or "not answered", self.notebooks[number - 1] if mark == "wrong" else "")
            for number, mark in enumerate(self.marks, 1)
        ]
        shown = table("your marks", ("question", "mark", "see"), rows)
        return f"{self.right} of {len(rows)} right", [shown]


@dataclass(frozen=True, slots=True)
class Quiz:
    """The questions; call it to see them."""

    questions: tuple[Question, ...]

    def __call__(self) -> Block:
        """The questions with their numbers."""
        rows = [(number, str(q)) for number, q in enumerate(self.questions, 1)]
        how = "Answer with quiz.check([...]), a number or a letter for each, None for a gap."
        shown = table("the path in ten numbers", ("", "question"), rows)
        return Block(f"{len(rows)} questions", (shown, how))

    def answers(self) -> Block:
        """For teachers: the right answers, computed, and the notebook that gives each."""
        rows = [(n, q.compute(), q.notebook, q.text) for n, q in enumerate(self.questions, 1)]
        return Block("Answers", (table("computed", ("", "answer", "notebook", "question"), rows),))

    def check(self, answers: object) -> Score:
        """Mark answers, a list in order or a mapping from the question's number. Never raises.

        A number may be written as text, "8,256" or "8256 rows"; a choice with its words.
        """
        given: dict[object, object] = {}
        if isinstance(answers, torch.Tensor | np.ndarray):
            answers = answers.tolist()
        if isinstance(answers, Mapping):
            given = {number_in(str(n)): mine for n, mine in answers.items()}
        elif isinstance(answers, Sequence) and not isinstance(answers, str):
            given = dict(enumerate(answers, 1))
        marks = [q.mark(given.get(n)) for n, q in enumerate(self.questions, 1)]
        return Score(tuple(marks), tuple(q.notebook for q in self.questions))


def number_in(text: str) -> float | str:
    """The one number of a text, with or without separators and a unit; else the text."""
    joined = re.sub(r"(?<=\d)[,_ ](?=\d{3}(?!\d))", "", text)
    found = re.findall(r"-?\d+(?:\.\d+)?", joined)
    if len(found) != 1 or len(found[0]) > 30:
        return text
    value = float(found[0])
    return int(value) if value.is_integer() else value


def _test_that_goes_red() -> str:
    """The letter of the one test that sees a restore into slots used as rows."""
    for letter, c, page in (("a", 1, 2), ("b", 4, 1), ("c", 4, 2)):
        W = 2 * c
        slots = [list(range(first, first + W)) for first in (W, page * W)]
        try:
            a_test_that_sees_it.rule(slots, c, 2, 4 * c)
        except Miss:
            continue
        return letter
    return "d"  # nothing is backed up at all


def _held(tokens: int, rank: int) -> int:
    return int(get_dcp_lens(torch.tensor(tokens), Shard(8, rank)))


quiz = Quiz(
    (
        Question(
            "00_start_here",
            "Two ranks. Rank 0 uses slot 5 as a row number. To which slot does the row belong?",
            lambda: DcpLayout(2, 2, 3).slot(0, 5),
        ),
        Question(
            "01_two_index_spaces",
            "Eight ranks. In which row, of the rank that owns it, is slot 1001?",
            lambda: DcpLayout(8, 64, 4).row(1001),
        ),
        Question(
            "01_two_index_spaces",
            "Pages of 64 rows on each of 4 ranks; 128 pages can be handed out. How many rows has "
            "the buffer of one rank?",
            lambda: DcpLayout(4, 64, 128).row_end,
        ),
        Question(
            "02_owner_slots",
            "A prompt of 3 tokens on 8 ranks, dealt one at a time. How many ranks hold nothing?",
            lambda: sum(_held(3, rank) == 0 for rank in range(8)),
        ),
        Question(
            "03_crash_reproduction",
            "Eight ranks, pages of 64 rows, 1024 pages. Slots are used as rows. How many pages are "
            "misread in silence from end to end?",
            lambda: raw_use_census(DcpLayout(8, 64, 1024)).silent,
        ),
        Question(
            "03_crash_reproduction",
            "A restore uses slots as rows. Which test goes red?",
            _test_that_goes_red,
            (
                "DCP 1, restored into new slots",
                "DCP 4, restored into the same slots, in which nobody wrote in between",
                "DCP 4, restored into new slots, compared with what was written",
                "DCP 4, a long run in which nobody is retracted",
            ),
        ),
        Question(
            "04_backup_and_restore",
            "A request of 100 prompt tokens has generated 30 and is retracted. How many positions "
            "are backed up?",
            lambda: to_save(100, 30, 4, 64)[0],
        ),
        Question(
            "05_retraction_counts",
            "A run retracts 3 requests in step 10, 1 in step 50 and 2 in step 90. What does the "
            "gauge of retracted requests show at its end?",
            lambda: counts([(step, "retract", 0) for step in (10, 10, 10, 50, 90, 90)])[1],
        ),
        Question(
            "06_logprob_drift",
            "At which DCP size does the code before the fix give the same bits as the code after?",
            lambda: next(
                c for c in (1, 2, 4, 8) if all(DcpLayout(c, 4, 4).row(v) == v for v in range(20))
            ),
        ),
        Question(
            "07_what_it_costs",
            "7 MLA layers, rows of 512 + 64 elements in bf16 (2 bytes). A backup of 1001 positions "
            "on 8 ranks: how many bytes does rank 0 copy?",
            lambda: (
                _held(1001, 0) * ModelGeometry("", 7, 7, 0, 512, 64, "").bytes_per_token("bf16")
            ),
        ),
    )
)
