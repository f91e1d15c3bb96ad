"""Who makes room, and whether its cache is copied or computed again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from stages.llm.preempt import Running, Swap, preempt

RUNNING = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), min_size=1, max_size=8).map(
    lambda sizes: [Running(i, float(i), n, c, n + 16) for i, (n, c) in enumerate(sizes)]
)


def prefill(tokens: int, context: int) -> float:
    return tokens * (1e-3 + 1e-6 * (context + tokens / 2))


@given(RUNNING, st.integers(0, 3000), st.randoms())
def test_the_latest_go_and_no_more_of_them_than_needed(
    running: list[Running[int]], wanted: int, random: object
) -> None:
    random.shuffle(running)  # type: ignore[attr-defined]
    gone = [v.key for v in preempt(running, wanted, 10, Swap(0, 1.0), prefill)]
    held = {r.key: r.held for r in running}
    assert gone == sorted(held, reverse=True)[: len(gone)]
    assert 0 not in gone, "the earliest always goes on"
    assert sum(held[k] for k in gone[:-1]) < wanted or not gone
    assert sum(held[k] for k in gone) >= wanted or len(gone) == len(running) - 1


@given(RUNNING, st.floats(1e3, 1e8), st.integers(0, 20_000))
def test_each_takes_the_cheaper_way_that_there_is_room_for(
    running: list[Running[int]], bandwidth: float, room: int
) -> None:
    left = room
    by_key = {r.key: r for r in running}
    for victim in preempt(running, 10**9, 10, Swap(room, bandwidth), prefill):
        one = by_key[victim.key]
        copy, again = 20 * one.written / bandwidth, prefill(one.written, one.context)
        assert victim.swap == (copy < again and 10 * one.written <= left)
        assert victim.seconds == (copy if victim.swap else again)
        left -= 10 * one.written * victim.swap
    assert left >= 0


def test_without_room_to_copy_to_all_is_computed_again() -> None:
    two = [Running("a", 0.0, 100, 0, 112), Running("b", 1.0, 100, 50, 112)]
    (victim,) = preempt(two, 1, 10, Swap(0, 1e12), prefill)
    assert victim == ("b", False, prefill(100, 50))


@pytest.mark.parametrize(("room", "bandwidth"), [(-1, 1.0), (0, 0.0)])
def test_a_swap_that_cannot_be_is_refused(room: int, bandwidth: float) -> None:
    with pytest.raises(PlanError, match="bandwidth"):
        Swap(room, bandwidth)
