"""What leaves a full memory: the best by brute force, nothing that could stay, and never over a limit."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.tiers import Resident, Tier, Watermarks, choose, demote
from pipeline.errors import PlanError

BLOCKS = st.lists(
    st.builds(
        Resident[int], st.integers(), st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.0, 3.0])
    ),
    max_size=7,
    unique_by=lambda block: block.key,
)


def loads(uses: tuple[str, ...], room: int) -> int:
    """How often a block is brought in where `demote` says which of them leaves, each of one byte."""
    here: set[str] = set()
    count = 0
    for now, key in enumerate(uses):
        if key in here:
            continue
        count += 1
        later = uses[now:]
        known = [Resident(k, 1, now + later.index(k) if k in later else 999) for k in sorted(here)]
        gone = demote(known, len(here) + 1 - room, now)
        here -= set(gone)
        here.add(key)
        assert len(here) <= room
    return count


def fewest_loads(uses: tuple[str, ...], room: int) -> int:
    """The least over all that could leave at each step."""

    @lru_cache(None)
    def least(now: int, here: frozenset[str]) -> int:
        if now == len(uses):
            return 0
        key = uses[now]
        if key in here:
            return least(now + 1, here)
        kept = combinations(sorted(here), min(room - 1, len(here)))
        return 1 + min(least(now + 1, frozenset({*left, key})) for left in kept)

    return least(0, frozenset())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from("abcde"), max_size=14).map(tuple), st.integers(1, 4))
def test_no_choice_loads_fewer_blocks_where_uses_are_known(uses: tuple[str, ...], room: int) -> None:
    assert loads(uses, room) == fewest_loads(uses, room)


@given(BLOCKS, st.integers(-5, 40), st.integers(0, 9))
def test_enough_leaves_and_none_of_it_could_stay(blocks: list[Resident[int]], need: int, now: int) -> None:
    sizes = {block.key: block.nbytes for block in blocks}
    gone = demote(blocks, need, now)
    freed = sum(sizes[key] for key in gone)
    assert len(set(gone)) == len(gone)
    assert freed >= min(need, sum(sizes.values()))
    if freed >= need:
        assert all(freed - sizes[key] < need for key in gone)


@given(BLOCKS, st.integers(1, 40), st.integers(0, 9))
def test_nothing_waits_where_what_reloads_hidden_is_enough(
    blocks: list[Resident[int]], need: int, now: int
) -> None:
    hidden = {b.key: b.nbytes for b in blocks if b.reload_seconds <= max(b.due - now, 0)}
    gone = set(demote(blocks, need, now))
    if sum(hidden.values()) >= need:
        assert gone <= set(hidden)


def test_the_latest_next_use_leaves_first() -> None:
    blocks = [Resident("soon", 8, 3), Resident("late", 8, 9), Resident("later", 8, 12)]
    assert demote(blocks, 1, 2) == ("later",)
    assert demote(blocks, 9, 2) == ("later", "late")


def test_a_reload_that_would_be_waited_for_comes_after_one_that_hides() -> None:
    blocks = [Resident("slow", 8, 9, reload_seconds=60.0), Resident("fast", 8, 5, reload_seconds=2.0)]
    assert demote(blocks, 8, 2) == ("fast",)
    assert demote(blocks, 8, 2, step_seconds=10.0) == ("slow",)


def test_a_block_whose_use_is_not_known_leaves_last() -> None:
    assert demote([Resident("a", 8, 0), Resident("b", 8, 6)], 8, 5) == ("b",)


def test_of_equal_blocks_the_smallest_that_is_enough_leaves() -> None:
    blocks = [Resident(n, n, 7) for n in (1, 4, 6, 9)]
    assert demote(blocks, 5, 0) == (6,)
    assert demote(blocks, 12, 0) == (9, 4)


def test_a_block_that_a_later_one_makes_superfluous_stays() -> None:
    assert demote([Resident("small", 2, 9), Resident("large", 50, 4)], 40, 0) == ("large",)


def test_all_leave_where_all_are_too_little() -> None:
    assert set(demote([Resident("a", 8, 3), Resident("b", 8, 4)], 100, 0)) == {"a", "b"}


def test_between_the_marks_nothing_moves_and_above_them_all_down_to_the_low_one() -> None:
    marks = Watermarks(high=100, low=60)
    assert [marks.excess(used) for used in (0, 60, 61, 100, 101, 150)] == [0, 0, 0, 0, 41, 90]


@pytest.mark.parametrize(("high", "low"), [(5, 6), (5, -1)])
def test_marks_in_the_wrong_order_are_refused(high: int, low: int) -> None:
    with pytest.raises(PlanError, match=f"found low {low} and high {high}"):
        Watermarks(high, low)


def test_the_fastest_tier_with_room_is_chosen() -> None:
    peer, host, disk = Tier("peer", 10, 100e9), Tier("host", 50, 20e9), Tier("disk", 900, 2e9)
    tiers = (disk, peer, host)
    assert [choose(tiers, n) for n in (0, 10, 11, 50, 51, 900)] == [peer, peer, host, host, disk, disk]
    assert choose((peer, Tier("other", 10, 100e9)), 4) == peer


def test_where_no_tier_has_room_the_error_says_what_each_has() -> None:
    with pytest.raises(MemoryError, match=r"a value of 901 bytes .* 50 bytes on host, 0 bytes on disk; free"):
        choose([Tier("host", 50, 20e9), Tier("disk", -7, 2e9)], 901)
    with pytest.raises(MemoryError, match="none at all"):
        choose([], 1)


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(0, 80), st.integers(0, 80))
def test_no_memory_is_ever_over_its_limit(arriving: list[int], peer: int, host: int) -> None:
    """Blocks come one by one, the memory is brought below its mark, and what leaves takes the first room."""
    marks = Watermarks(high=60, low=40)
    room = {"peer": peer, "host": host, "disk": 10**6}
    speed = {"peer": 3.0, "host": 2.0, "disk": 1.0}
    here: dict[int, Resident[int]] = {}
    for key, nbytes in enumerate(arriving):
        here[key] = Resident(key, nbytes, due=1000 - 7 * key % 11)
        for gone in demote(list(here.values()), marks.excess(sum(b.nbytes for b in here.values())), key):
            tier = choose([Tier(name, free, speed[name]) for name, free in room.items()], here[gone].nbytes)
            room[tier.name] -= here.pop(gone).nbytes
        assert sum(block.nbytes for block in here.values()) <= marks.high
        assert min(room.values()) >= 0
