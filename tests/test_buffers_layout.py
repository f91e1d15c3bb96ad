"""Where blocks lie: no overlap, no leak, and never worse than the two plain ways to divide a range."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.layout import ALIGN, DEFAULT_SIZES, MOST, Layout, Slot
from pipeline.errors import PlanError

SIZES = (64, 256, 1024)
PAGE = 1024
Step = tuple[int, str] | int
"""What a trace does: ask for bytes of a kind, or free one of those alive, counted from the oldest."""

STEPS = st.lists(
    st.one_of(st.tuples(st.integers(0, 4 * PAGE), st.sampled_from("abc")), st.integers(0, 99)), max_size=120
)


def play(layout: Layout, steps: Sequence[Step]) -> tuple[list[list[Slot]], list[int]]:
    """What is alive after each step, and the bytes held; a request that finds no room changes nothing."""
    alive: list[Slot] = []
    seen, held = [], []
    for step in steps:
        if isinstance(step, int):
            if alive:
                layout.free(alive.pop(step % len(alive)))
        else:
            slot = layout.alloc(*step)
            alive += [slot] if slot is not None else []
        seen.append(list(alive))
        held.append(layout.held)
    return seen, held


def reach(layout: Layout, slot: Slot) -> tuple[int, int]:
    """Where it begins and where its room ends."""
    room = next((size for size in layout.sizes if size >= slot.nbytes), None)
    return slot.offset, slot.offset + (room or -(-slot.nbytes // layout.page) * layout.page)


def pages(layout: Layout, slot: Slot) -> range:
    start, end = reach(layout, slot)
    return range(start // layout.page, -(-end // layout.page))


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(PAGE, 20 * PAGE), st.sampled_from([SIZES, (64, 192, 320), (100, 1000, 999)]))
def test_nothing_overlaps_or_leaks_and_all_is_counted(
    steps: list[Step], total: int, sizes: tuple[int, ...]
) -> None:
    layout = Layout(total, sizes)
    seen, _ = play(layout, steps)
    for alive in seen:
        places = sorted(reach(layout, slot) for slot in alive)
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
        assert all(start % ALIGN == 0 and start >= 0 and end <= total for start, end in places)
    left = seen[-1] if seen else []
    assert layout.used == sum(slot.nbytes for slot in left)
    assert layout.held == layout.page * len({page for slot in left for page in pages(layout, slot)})
    assert layout.wasted == layout.held - layout.used
    for slot in left:
        layout.free(slot)
    assert (layout.used, layout.held, layout.wasted) == (0, 0, 0)
    assert layout.largest == total // layout.page * layout.page


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_a_page_in_use_has_one_kind_and_one_size_and_is_not_empty(steps: list[Step]) -> None:
    layout = Layout(16 * PAGE, SIZES)
    for alive in play(layout, steps)[0]:
        owners: dict[int, set[tuple[str, int]]] = {}
        for slot in alive:
            start, end = reach(layout, slot)
            for page in pages(layout, slot):
                owners.setdefault(page, set()).add((slot.kind, end - start))
        assert all(len(found) == 1 for found in owners.values())


@given(STEPS)
def test_the_largest_request_would_succeed_and_no_larger_one(steps: list[Step]) -> None:
    layout = Layout(16 * PAGE, SIZES)
    play(layout, steps)
    largest = layout.largest
    assert layout.alloc(largest + 1, "other") is None
    slot = layout.alloc(largest, "other") if largest else None
    assert (slot is not None) == (largest > 0)


def static(layout: Layout, seen: Sequence[Sequence[Slot]]) -> int:
    """Bytes that a static partition takes which knows what will come: for each kind and size its own peak,
    in whole pages."""
    peak: Counter[tuple[str, int]] = Counter()
    for alive in seen:
        now: Counter[tuple[str, int]] = Counter()
        for slot in alive:
            start, end = reach(layout, slot)
            size = min(end - start, layout.page)
            now[slot.kind, size if slot.nbytes <= layout.sizes[-1] else -1] += (end - start) // size
        peak |= now
    per_page = {size: layout.page // size for size in layout.sizes}
    return sum(-(-n // per_page.get(size, 1)) * layout.page for (_, size), n in peak.items())


def largest_only(seen: Sequence[Sequence[Slot]]) -> list[int]:
    """Bytes that pages of the largest size take, step by step."""
    return [sum(max(-(-slot.nbytes // PAGE), 1) * PAGE for slot in alive) for alive in seen]


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_it_never_holds_more_than_a_static_partition_or_pages_of_the_largest_size(steps: list[Step]) -> None:
    layout = Layout(10**6, SIZES)
    seen, held = play(layout, steps)
    assert all(a <= b for a, b in zip(held, largest_only(seen), strict=True))
    assert max(held, default=0) <= static(layout, seen)


def pipeline_trace(seed: int) -> list[Step]:
    """Three kinds whose peaks come one after the other, as stages of a job: each lives in waves."""
    draw = random.Random(seed)
    steps: list[Step] = []
    for kind in "abcabc":
        steps += [(int(2 ** draw.uniform(4, 11.5)), kind) for _ in range(200)]
        steps += [draw.randrange(100) for _ in range(190)]
    return steps


@pytest.mark.parametrize("seed", range(3))
def test_where_peaks_come_in_turn_it_holds_at_most_three_quarters_of_either(seed: int) -> None:
    layout = Layout(10**6, SIZES)
    seen, held = play(layout, pipeline_trace(seed))
    assert max(held) < 3 / 4 * static(layout, seen)
    assert max(held) < 3 / 4 * max(largest_only(seen))


@pytest.mark.parametrize(
    ("sizes", "found", "page"),
    [
        ((64, 128, 192), (64, 128, 192), 384),
        ((1,), (64,), 64),
        ((1000, 64, 1000), (64, 1024), 1024),
        ((7 * 64, 11 * 64, 13 * 64), (7 * 64, 14 * 64), 14 * 64),
    ],
)
def test_a_page_is_the_least_common_multiple_unless_that_explodes(
    sizes: tuple[int, ...], found: tuple[int, ...], page: int
) -> None:
    layout = Layout(10**6, sizes)
    assert (layout.sizes, layout.page) == (found, page)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6).map(tuple))
def test_sizes_fit_their_page_without_rest_and_grow_to_less_than_double(sizes: tuple[int, ...]) -> None:
    layout = Layout(10**8, sizes)
    assert all(layout.page % size == 0 and size % ALIGN == 0 for size in layout.sizes)
    assert layout.page <= MOST * layout.sizes[-1]
    for size in sizes:
        aligned = -(-size // ALIGN) * ALIGN
        assert any(aligned <= found < 2 * aligned for found in layout.sizes)


def test_a_multiple_beyond_the_range_is_rounded_too() -> None:
    assert Layout(10**4, (64, 192, 320)).page == math.lcm(64, 192, 320)
    assert Layout(900, (64, 192, 320)).page == 512


def test_the_default_page_is_the_largest_default_size() -> None:
    assert Layout(1 << 30).page == DEFAULT_SIZES[-1] == 1 << 20


def test_the_fullest_page_is_filled_first() -> None:
    layout = Layout(16 * PAGE, SIZES)
    slots = [layout.alloc(256, "a") for _ in range(12)]
    for slot in (slots[0], slots[1], slots[2], slots[5], slots[8], slots[9]):
        assert slot is not None
        layout.free(slot)
    found = [layout.alloc(256, "a") for _ in range(6)]
    assert [slot.offset // PAGE for slot in found if slot] == [1, 2, 2, 0, 0, 0]


def test_a_page_serves_another_kind_once_it_is_empty() -> None:
    layout = Layout(PAGE, SIZES)
    first = [layout.alloc(256, "a") for _ in range(4)]
    for slot in first:
        assert layout.alloc(64, "b") is None
        assert slot is not None
        layout.free(slot)
    assert layout.alloc(64, "b") == Slot(0, 64, "b")


def test_kinds_that_hold_nothing_are_forgotten() -> None:
    layout = Layout(PAGE, SIZES)
    for i in range(20):
        slot = layout.alloc(64, f"batch {i}")
        assert slot is not None
        layout.free(slot)
    assert not layout._shelves


def test_large_values_take_the_shortest_run_and_runs_join_again() -> None:
    layout = Layout(10 * PAGE, SIZES)
    slots = [layout.alloc(n * PAGE, "a") for n in (3, 1, 2, 1)]
    for slot in (slots[0], slots[2]):
        assert slot is not None
        layout.free(slot)
    assert layout.alloc(PAGE + 1, "b") == Slot(4 * PAGE, PAGE + 1, "b")
    assert slots[1] is not None
    layout.free(slots[1])
    assert layout.largest == 4 * PAGE


def test_what_is_not_allocated_is_not_freed() -> None:
    layout = Layout(PAGE, SIZES)
    slot = layout.alloc(10, "a")
    assert slot is not None
    layout.free(slot)
    for other in (slot, Slot(64, 10, "a")):
        with pytest.raises(ValueError, match="is not allocated"):
            layout.free(other)
    with pytest.raises(ValueError, match="no bytes or more, found -1"):
        layout.alloc(-1, "a")


@pytest.mark.parametrize(
    ("total", "sizes", "said"),
    [
        (1000, (), "one slot size"),
        (1000, (64, 0), "one slot size"),
        (63, (64,), "takes 64 bytes, the range has 63"),
    ],
)
def test_a_range_or_sizes_that_cannot_work_are_refused(total: int, sizes: tuple[int, ...], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Layout(total, sizes)
