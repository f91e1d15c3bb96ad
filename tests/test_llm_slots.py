"""Slots of the arena: no overlap, no leak, never above the budget, and everything comes back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from stages.llm.extents import PAGE, Extent, pages_of
from stages.llm.slots import Slots

BYTES = 96
Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "grow", "release"]), st.integers(0, 99), st.integers(1, 150)),
    max_size=80,
)


class Held:
    """What a trace holds, page by page, beside the allocator: slot -> page -> held."""

    def __init__(self, pages: int) -> None:
        self.slots = Slots(pages * PAGE * BYTES, BYTES)
        self.pages: dict[int, list[bool]] = {}

    def play(self, step: Step) -> None:
        """One step; what is refused must have had no room."""
        kind, which, tokens = step
        slot = sorted(self.pages)[which % len(self.pages)] if self.pages else -1
        if kind == "reserve":
            self.reserve(tokens)
        elif kind == "grow" and self.pages:
            self.grow(slot, tokens)
        elif kind == "release" and self.pages:
            self.release(slot, which % len(self.pages[slot]), tokens)

    def reserve(self, tokens: int) -> None:
        fits = self.slots.fits(tokens - 1, 1)
        slot = self.slots.reserve(tokens)
        assert (slot is not None) == fits
        if slot is not None:
            assert slot not in self.pages
            self.pages[slot] = [True] * pages_of(tokens)

    def grow(self, slot: int, tokens: int) -> None:
        before = self.slots.capacity(slot)
        behind = set(
            range(self.slots.offset(slot) + before, self.slots.offset(slot) + pages_of(tokens) * PAGE)
        )
        room = (
            self.pages[slot][-1] and not behind & self.taken() and max(behind, default=0) < self.slots.tokens
        )
        assert self.slots.grow(slot, tokens) == (room or not behind)
        self.pages[slot] += [True] * ((self.slots.capacity(slot) - before) // PAGE)

    def release(self, slot: int, first: int, tokens: int) -> None:
        stop = first
        held = self.pages[slot]
        while stop < len(held) and held[stop] and (stop - first) * PAGE < tokens:
            stop += 1
        self.slots.release(Extent(slot, first * PAGE, stop * PAGE))
        held[first:stop] = [False] * (stop - first)
        if not any(held):
            del self.pages[slot]

    def taken(self) -> set[int]:
        """Places in the arena that are held, each once."""
        found = [
            self.slots.offset(slot) + i * PAGE + k
            for slot, pages in self.pages.items()
            for i, held in enumerate(pages)
            if held
            for k in range(PAGE)
        ]
        assert len(found) == len(set(found)), "two slots overlap"
        return set(found)


def longest_gap(taken: set[int], tokens: int) -> int:
    edges = [-1, *sorted(taken), tokens]
    return max(b - a - 1 for a, b in pairwise(edges))


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(1, 24))
def test_nothing_overlaps_or_leaks_and_the_budget_holds(steps: list[Step], pages: int) -> None:
    held = Held(pages)
    for step in steps:
        held.play(step)
        taken = held.taken()
        assert all(0 <= place < held.slots.tokens for place in taken)
        assert held.slots.free_bytes == (pages * PAGE - len(taken)) * BYTES
        assert held.slots.largest == longest_gap(taken, pages * PAGE)
    for slot, own in list(held.pages.items()):
        for i, is_held in enumerate(own):
            if is_held:
                held.slots.release(Extent(slot, i * PAGE, (i + 1) * PAGE))
    assert held.slots.largest == held.slots.free_tokens == pages * PAGE


def test_a_budget_is_used_in_whole_pages() -> None:
    slots = Slots(3 * PAGE * BYTES + BYTES, BYTES)
    assert (slots.tokens, slots.free_bytes) == (3 * PAGE, 3 * PAGE * BYTES)
    assert slots.fits(2 * PAGE, PAGE)
    assert not slots.fits(2 * PAGE, PAGE + 1)


def test_the_smallest_run_that_is_long_enough_is_taken() -> None:
    slots = Slots(10 * PAGE * BYTES, BYTES)
    for tokens in (3 * PAGE, PAGE, 2 * PAGE, PAGE):
        slots.reserve(tokens)
    slots.release(Extent(0, 0, 3 * PAGE))
    slots.release(Extent(2, 0, 2 * PAGE))
    again = slots.reserve(PAGE + 1)
    assert again is not None
    assert slots.offset(again) == 4 * PAGE


def test_the_rest_of_a_slot_is_what_begins_after_the_last_page_written() -> None:
    slots = Slots(10 * PAGE * BYTES, BYTES)
    slot = slots.reserve(4 * PAGE)
    assert slot is not None
    assert slots.rest(slot, PAGE + 1) == (slot, 2 * PAGE, 4 * PAGE)
    slots.release(slots.rest(slot, 4 * PAGE - 1))  # empty: the last page is begun
    slots.release(slots.rest(slot, PAGE + 1))
    assert slots.free_tokens == 8 * PAGE


def test_the_pages_of_a_partly_filled_end_go_back_whole() -> None:
    slots = Slots(4 * PAGE * BYTES, BYTES)
    slot = slots.reserve(PAGE + 3)
    assert slot is not None
    slots.release(Extent(slot, 0, PAGE + 3))
    assert slots.largest == 4 * PAGE


@pytest.mark.parametrize(
    "extent",
    [Extent(0, 0, PAGE), Extent(0, PAGE + 1, 3 * PAGE), Extent(1, 0, PAGE), Extent(0, PAGE, 5 * PAGE)],
)
def test_what_is_not_held_cannot_be_released(extent: Extent) -> None:
    slots = Slots(8 * PAGE * BYTES, BYTES)
    slots.reserve(4 * PAGE)
    slots.release(Extent(0, 0, PAGE))
    with pytest.raises(ValueError, match="not held"):
        slots.release(extent)
    assert slots.free_tokens == 5 * PAGE


def test_a_slot_whose_last_page_is_gone_does_not_grow_past_the_next_owner() -> None:
    slots = Slots(4 * PAGE * BYTES, BYTES)
    slots.reserve(2 * PAGE)
    slots.release(Extent(0, PAGE, 2 * PAGE))
    other = slots.reserve(3 * PAGE)
    assert other is not None
    slots.release(Extent(other, PAGE, 3 * PAGE))
    assert not slots.grow(0, 3 * PAGE)
    assert slots.grow(other, 4 * PAGE) is False  # its own last page is gone too


def test_a_budget_below_a_page_is_refused() -> None:
    with pytest.raises(PlanError, match="more memory"):
        Slots(PAGE * BYTES - 1, BYTES)


def test_a_slot_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="a token or more"):
        Slots(PAGE * BYTES, BYTES).reserve(0)
