"""Prompts that share a prefix meet: each edge is computed once, and nobody waits for ever."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from stages.llm.extents import PAGE
from stages.llm.order import Meeting, depth_first
from stages.llm.radix import Tokens, page_bytes

Pages = tuple[int, ...]
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12)


def tokens(pages: Pages) -> list[int]:
    return [p for p in pages for _ in range(PAGE)]


class Lru:
    """A cache of page prefixes; what was used longest ago goes first, and of one prompt its end."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.kept: OrderedDict[Pages, None] = OrderedDict()

    def cached(self, prompt: Tokens) -> int:
        pages = tuple(prompt[::PAGE])
        return PAGE * sum(pages[: k + 1] in self.kept for k in range(len(pages)))

    def compute(self, pages: Pages) -> int:
        """Pages that had to be computed."""
        path = [pages[: k + 1] for k in range(len(pages))]
        new = sum(p not in self.kept for p in path)
        for prefix in reversed(path):
            self.kept[prefix] = None
            self.kept.move_to_end(prefix)
        while len(self.kept) > self.room:
            self.kept.popitem(last=False)
        return new


def computed(prompts: Iterable[Pages], room: int) -> int:
    cache = Lru(room)
    return sum(cache.compute(p) for p in prompts)


def distinct(prompts: Iterable[Pages]) -> int:
    return len({p[: k + 1] for p in prompts for k in range(len(p))})


def no_cache(prompt: Tokens) -> int:
    return 0


def drain(meeting: Meeting[int]) -> list[int]:
    found = []
    while (what := meeting.first()) is not None:
        meeting.take(what)
        found.append(what)
    return found


@settings(deadline=None)
@given(PROMPTS)
def test_every_edge_is_computed_once_with_a_cache_of_the_longest_prompt(prompts: list[Pages]) -> None:
    cache = Lru(max(map(len, prompts)))
    meeting: Meeting[int] = Meeting(cache.cached, most=len(prompts))
    for i, pages in enumerate(prompts):
        meeting.add(i, tokens(pages))
    total, seen = 0, set()
    while (what := meeting.first()) is not None:
        meeting.take(what)
        seen.add(what)
        total += cache.compute(prompts[what])
    assert seen == set(range(len(prompts)))
    assert total == distinct(prompts)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5))
def test_no_order_computes_less(prompts: list[Pages]) -> None:
    room = max(map(len, prompts))
    places = depth_first([page_bytes(tokens(p), 99) for p in prompts], [0] * len(prompts))
    ours = computed([prompts[i] for i in places], room)
    assert ours == min(computed(order, room) for order in permutations(prompts))


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), st.none()), max_size=60), st.integers(0, 4))
def test_nobody_is_passed_over_more_often_than_allowed(steps: list[int | None], most: int) -> None:
    """A number: a prompt of this branch comes; None: the next one is admitted."""
    meeting: Meeting[int] = Meeting(no_cache, most)
    waiting: dict[int, int] = {}
    for name, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            meeting.add(name, tokens((step,)))
            waiting[name] = 0
        elif (what := meeting.first()) is not None:
            meeting.take(what)
            del waiting[what]
            waiting = {k: n + (k < what) for k, n in waiting.items()}
            assert all(n <= most for n in waiting.values())
    assert len(meeting) == len(waiting) == 0


def test_without_passing_over_the_first_come_goes_first() -> None:
    meeting: Meeting[int] = Meeting(no_cache, most=0)
    for i, branch in enumerate([2, 0, 2, 1, 0]):
        meeting.add(i, tokens((branch,)))
    assert drain(meeting) == [0, 1, 2, 3, 4]


def test_those_that_share_most_with_the_cache_come_first_then_the_earliest() -> None:
    cache = Lru(9)
    cache.compute((2, 5))
    meeting: Meeting[int] = Meeting(cache.cached, most=99)
    for i, pages in enumerate([(4, 1), (2, 7), (3, 1), (2, 5, 1), (4, 2), (2, 5, 1)]):
        meeting.add(i, tokens(pages))
    assert drain(meeting) == [3, 5, 1, 0, 4, 2]


def test_a_prompt_that_comes_later_joins_its_branch() -> None:
    meeting: Meeting[int] = Meeting(no_cache, most=99)
    for i, branch in enumerate([1, 2, 1]):
        meeting.add(i, tokens((branch, i)))
    meeting.take(0)
    meeting.add(3, tokens((1, 3)))
    meeting.take(2)
    assert drain(meeting) == [1, 3]


def test_prompts_one_longer_than_the_other_need_no_deep_stack() -> None:
    raw = [page_bytes([0] * PAGE * k, 10**6) for k in range(1, 1500)]
    assert depth_first(raw, [0] * len(raw)) == list(range(len(raw)))


def test_nobody_waits_twice_and_passing_is_counted_from_zero() -> None:
    meeting: Meeting[int] = Meeting(no_cache, most=1)
    meeting.add(0, [1])
    with pytest.raises(ValueError, match="waits already"):
        meeting.add(0, [1])
    with pytest.raises(PlanError, match="0 times or more"):
        Meeting(no_cache, -1)


def test_nothing_waits_in_an_empty_meeting() -> None:
    cached: Callable[[Tokens], int] = no_cache
    assert Meeting[int](cached, 3).first() is None
    assert depth_first([], []) == []
