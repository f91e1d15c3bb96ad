"""Looked up first; a draft model where there is nothing to look up, or where that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import cast

import numpy as np
import pytest

from stages.llm.attention import Slab
from stages.llm.decoder import Ask
from stages.llm.draft_length import Acceptance
from stages.llm.draft_worth import Pace
from stages.llm.drafter import Wanted
from stages.llm.limits import Limits
from stages.llm.proposals import Proposals
from stages.llm.rooms import Room
from stages.llm.sequence import Sequence

FREE_TEXT, COPY = (5, 6, 7, 8), (5, 6, 7, 8, 5)


class Place:
    """A slab without tensors."""

    capacity = 64


class Sure:
    """A draft model that always says 9, and that reads as it is told. `unread_`: tokens of rows to read."""

    def __init__(self, **unread: int) -> None:
        self.step, self.token = Pace(), Pace()
        self.unread_ = unread
        self.asked: list[tuple[str, int]] = []
        self.told: list[str] = []
        self.left: list[str] = []

    def reach(self, s: Sequence) -> int:
        return 0 if self.unread(s) else 6

    def unread(self, s: Sequence) -> int:
        return self.unread_.get(str(s.ask.row[0]), 0)

    def read(self, ones: Iterable[Sequence]) -> None:
        self.told = [str(s.ask.row[0]) for s in ones]

    def draft(self, wanted: Wanted) -> list[list[int]]:
        self.asked = [(str(s.ask.row[0]), most) for s, most in wanted]
        return [[9] * most for _, most in wanted]

    def leave(self, s: Sequence) -> None:
        self.left.append(str(s.ask.row[0]))

    def reset(self) -> None:
        self.asked = []


def row(name: str, tokens: tuple[int, ...], most: int = 40) -> Sequence:
    """A row that decodes, with all tokens but the last in its cache."""
    s = Sequence(Ask(np.asarray(tokens, np.int32), most, (name,)), lambda tokens: "", drafts=True)
    s.room = Room(cast(Slab, Place()), 0)
    s.done = len(tokens) - 1
    return s


def proposals(drafter: Sure | None, drafts: int = 4, tick: float = 0.0) -> Proposals:
    """Of an engine whose steps take 1 s, and hardly more for more tokens."""
    times = count()
    found = Proposals(Limits(4096, drafts=drafts), drafter, lambda: tick * next(times))
    for tokens in (1, 2, 100):
        found.learn(tokens, 1 + tokens / 1e6)
    return found


def test_what_was_said_before_is_looked_up_and_the_draft_model_says_the_rest() -> None:
    drafter, copies, free = Sure(), row("copies", COPY), row("free", FREE_TEXT)
    proposals(drafter).guess([copies, free])
    assert copies.drafts == [6, 7, 8, 5]
    assert free.drafts == [9] * 4
    assert (copies.by_model, free.by_model) == (0, 4)
    assert drafter.asked == [("free", 4)]


def test_without_a_draft_model_what_cannot_be_looked_up_is_not_drafted() -> None:
    copies, free = row("copies", COPY), row("free", FREE_TEXT)
    proposals(None).guess([copies, free])
    assert (copies.drafts, free.drafts) == ([6, 7, 8, 5], [])


def test_a_row_whose_lookups_are_wrong_is_left_to_the_draft_model_until_that_is_worse() -> None:
    drafter, copies = Sure(), row("copies", COPY)
    copies.acceptance = Acceptance(0.3)
    made = proposals(drafter)
    made.guess([copies])
    assert copies.drafts == [9] * 4
    for _ in range(20):
        made.took(copies, 0)
        copies.trust = copies.trust.after(4, 0)
    made.guess([copies])
    assert copies.drafts == [6, 7, 8, 5]


def test_what_the_draft_model_says_is_not_held_against_lookups() -> None:
    free = row("free", FREE_TEXT)
    made = proposals(Sure())
    made.guess([free])
    before = free.acceptance
    free.take([9, 9, 3], frozenset())
    assert free.acceptance == before
    assert (free.trust.tried, free.trust.stood) == (3, 2)
    assert (free.drafted, free.accepted) == (4, 2)


def test_a_draft_model_whose_pass_takes_as_long_as_a_step_drafts_nothing() -> None:
    drafter, free = Sure(), row("free", FREE_TEXT)
    drafter.step.add(1.0)
    proposals(drafter).guess([free])
    assert (free.drafts, drafter.asked) == ([], [])


def test_one_that_is_always_wrong_is_soon_asked_no_more() -> None:
    drafter = Sure()
    made = proposals(drafter)
    drafter.step.add(0.3)
    steps = 0
    while drafter.asked or not steps:
        free = row("free", FREE_TEXT)
        drafter.asked = []
        made.guess([free])
        made.took(free, 0)
        steps += 1
    assert 1 < steps < 20


def test_prompts_are_read_where_the_answer_repays_it() -> None:
    drafter = Sure(long=500, short=20, last=20)
    drafter.step.add(0.1)
    drafter.token.add(0.05)
    ones = [
        row("long", FREE_TEXT),
        row("short", FREE_TEXT),
        row("last", FREE_TEXT, 2),
        row("read", FREE_TEXT),
    ]
    proposals(drafter).guess(ones)
    assert drafter.told == ["short"]
    assert [s.by_model for s in ones] == [0, 0, 0, 4]


def test_while_nothing_is_known_of_it_prompts_are_read() -> None:
    drafter = Sure(long=500)
    proposals(drafter).guess([row("long", FREE_TEXT)])
    assert drafter.told == ["long"]


@pytest.mark.parametrize(("most", "drafted"), [(1, 0), (2, 1), (3, 2), (40, 4)])
def test_the_last_token_of_an_answer_is_not_drafted(most: int, drafted: int) -> None:
    free = row("free", FREE_TEXT, most)
    proposals(Sure()).guess([free])
    assert len(free.drafts) == drafted


def test_drafts_fit_into_the_slot() -> None:
    free = row("free", tuple(range(100, 162)))
    proposals(Sure()).guess([free])
    assert len(free.drafts) == 2


def test_rows_that_are_over_are_told_and_time_is_taken() -> None:
    drafter, free = Sure(), row("free", FREE_TEXT)
    made = proposals(drafter, tick=0.25)
    made.guess([free])
    assert made.spent == 0.25
    made.leave(free)
    made.reset()
    assert (drafter.left, drafter.asked) == (["free"], [])


def test_no_drafts_are_no_drafts() -> None:
    free = row("free", COPY)
    proposals(None, drafts=0).guess([free])
    assert free.drafts == []
