"""Ten questions on the path, each with the notebook that answers it; the answers are computed.

    >>> from kvlab.teach import quiz
    >>> score = quiz.check([10, 125, 8256])      # or {1: 10, 6: "c"}; a few at a time will do
    >>> score.right, score.asked
    (3, 10)

``quiz()`` shows the questions, ``quiz.answers()`` is for teachers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvlab.index import DcpLayout, Shard, get_dcp_lens, raw_use_census
from kvlab.memory import ModelGeometry
from kvlab.teach.answers import NotPlain, Plain, difference, plain
from kvlab.teach.exercise import Block, Shown, table
from kvlab.teach.path import n04_backup, n05_retraction
from kvlab.teach.suspects import RetractionPool


@dataclass(frozen=True, slots=True)
class Question:
    """One question: ``choices`` by letter, or none when a number is asked for."""

    notebook: str
    text: str
    compute: Callable[[], int | str]
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def asked(self) -> str:
        """The text with its choices."""
        options = "; ".join(f"{letter}) {words}" for letter, words in self.choices)
        return f"{self.text} {options}" if options else self.text


@dataclass(frozen=True, slots=True, repr=False)
class Score(Shown):
    """What ``check`` found: for each question "right", "wrong" or "" (not answered)."""

    marks: tuple[str, ...]
    notebooks: tuple[str, ...]

    @property
    def right(self) -> int:
        """How many were right."""
        return self.marks.count("right")

    @property
    def asked(self) -> int:
        """How many there are."""
        return len(self.marks)

    def block(self) -> Block:
        """What is shown: where to read on, and not the answers."""
        rows = [
            (number, mark or "not answered", notebook if mark == "wrong" else "")
            for number, (mark, notebook) in enumerate(
                zip(self.marks, self.notebooks, strict=True), 1
            )
        ]
        title = f"{self.right} of {self.asked} right"
        return Block(title, (table("your marks", ("question", "mark", "see"), rows),))


@dataclass(frozen=True, slots=True)
class Quiz:
    """The questions; call it to see them."""

    questions: tuple[Question, ...]

    def __call__(self) -> Block:
        """The questions with their numbers."""
        rows = [(number, q.asked) for number, q in enumerate(self.questions, 1)]
        how = "Answer with quiz.check([...]), a number or a letter for each, None for a gap."
        return Block(
            f"{len(rows)} questions",
            (table("the path in ten numbers", ("", "question"), rows), how),
        )

    def answers(self) -> Block:
        """For teachers: the right answers, computed, and the notebook that gives each."""
        rows = [(n, q.compute(), q.notebook, q.text) for n, q in enumerate(self.questions, 1)]
        return Block("Answers", (table("computed", ("", "answer", "notebook", "question"), rows),))

    def check(self, answers: Sequence[object] | Mapping[int, object]) -> Score:
        """Mark answers, a list in order or a mapping from the question's number. Never raises.

        A number may be written as text, "8,256" or "8256 rows"; a choice with its words.
        """
        given: dict[object, object] = {}
        if isinstance(answers, torch.Tensor | np.ndarray):
            answers = answers.tolist()
        if isinstance(answers, Mapping):
            given = {_number(str(n)): mine for n, mine in answers.items()}
        elif isinstance(answers, Sequence) and not isinstance(answers, str):
            given = dict(enumerate(answers, 1))
        marks = [_mark(q, given.get(n)) for n, q in enumerate(self.questions, 1)]
        return Score(tuple(marks), tuple(q.notebook for q in self.questions))


def _mark(question: Question, answer: object) -> str:
    right: Plain = question.compute()
    try:
        mine = plain(answer)
    except NotPlain:
        return "wrong"
    if mine is None:
        return ""
    if isinstance(mine, str):
        mine = _letter(mine, question) if question.choices else _number(mine)
    if isinstance(mine, float) and mine.is_integer():
        mine = int(mine)
    return "right" if difference(mine, right) is None else "wrong"


def _letter(text: str, question: Question) -> str:
    """The letter of a choice: "c", "(c)", "C) the words of it", or the words alone."""
    told = " ".join(text.lower().split())
    for letter, words in question.choices:
        if told == words.lower():
            return letter
    found = re.match(r"\(?([a-z])\b", told)
    return found[1] if found else told


def _number(text: str) -> float | str:
    """The one number of a text, with or without separators and a unit; else the text."""
    joined = re.sub(r"(?<=\d)[,_ ](?=\d{3}(?!\d))", "", text)
    found = re.findall(r"-?\d+(?:\.\d+)?", joined)
    if len(found) != 1 or len(found[0]) > 30:
        return text
    value = float(found[0])
    return int(value) if value.is_integer() else value


def _comes_back_wrong(c: int, same: bool) -> bool:
    """Whether comparing with what was written sees a backup and a restore with the bug."""
    pool, old = RetractionPool(c, 2, 4 * c), list(range(2 * c, 4 * c))
    new = old if same else [v + 2 * c for v in old]
    tokens = [101 + i for i in range(len(old))]
    pool.write(old, tokens)
    pool.restore(pool.back_up(old), new)
    return pool.read(new) != tokens


def _the_test() -> str:
    seen = {"a": _comes_back_wrong(1, False), "b": _comes_back_wrong(4, True)}
    seen |= {"c": _comes_back_wrong(4, False), "d": False}  # d: nothing is backed up at all
    (letter,) = (letter for letter, red in seen.items() if red)
    return letter


def _same_at() -> int:
    """The DCP size at which every slot is its own row."""
    layouts = [DcpLayout(c, 4, 4) for c in (1, 2, 4, 8)]
    (found,) = (x for x in layouts if all(x.row(v) == v for v in range(x.slot_end)))
    return found.dcp_size


def _rank_bytes() -> int:
    model = ModelGeometry("model", 7, 7, 0, 512, 64, "the question")
    return int(get_dcp_lens(torch.tensor(1001), Shard(8, 0))) * model.bytes_per_token("bf16")


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
            lambda: sum(int(get_dcp_lens(torch.tensor(3), Shard(8, r))) == 0 for r in range(8)),
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
            _the_test,
            (
                ("a", "DCP 1, restored into new slots"),
                ("b", "DCP 4, restored into the same slots, in which nobody wrote in between"),
                ("c", "DCP 4, restored into new slots, compared with what was written"),
                ("d", "DCP 4, a long run in which nobody is retracted"),
            ),
        ),
        Question(
            "04_backup_and_restore",
            "A request of 100 prompt tokens has generated 30 and is retracted. How many positions "
            "are backed up?",
            lambda: n04_backup.to_save(100, 30, 4, 64)[0],
        ),
        Question(
            "05_retraction_counts",
            "A run retracts 3 requests in step 10, 1 in step 50 and 2 in step 90. What does the "
            "gauge of retracted requests show at its end?",
            lambda: n05_retraction.counts(
                [(step, "retract", 0) for step in (10, 10, 10, 50, 90, 90)]
            )[1],
        ),
        Question(
            "06_logprob_drift",
            "At which DCP size does the code before the fix give the same bits as the code after?",
            _same_at,
        ),
        Question(
            "07_what_it_costs",
            "7 MLA layers, rows of 512 + 64 elements in bf16 (2 bytes). A backup of 1001 positions "
            "on 8 ranks: how many bytes does rank 0 copy?",
            _rank_bytes,
        ),
    )
)
