"""Gain per byte: what stays is the best that fits, and a scan does not push out what is used."""

from __future__ import annotations

from itertools import product
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from stages.llm.extents import PAGE, Extent
from stages.llm.radix import Node, Order, Radix
from stages.llm.worth import Worth, recency

BYTES = 8


def linear(tokens: int, context: int) -> float:
    return 0.25 * tokens


def square(tokens: int, context: int) -> float:
    return tokens * (0.25 + 1e-3 * (context + tokens / 2))


def pages(*ids: int) -> list[int]:
    return [i for i in ids for _ in range(PAGE)]


def put(tree: Radix, slot: int, *ids: int) -> Node:
    return tree.insert(pages(*ids), [Extent(slot, 0, len(ids) * PAGE)]).node


def kept(tree: Radix, gains: dict[int, float]) -> float:
    """Seconds that are saved by the pages left, `gains` of each by its slot."""
    todo, seconds = [tree.root], 0.0
    while todo:
        node = todo.pop()
        seconds += sum(gains[e.slot] * (e.stop - e.start) / PAGE for e in node.extents)
        todo += node.children.values()
    return seconds


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=6),
    st.integers(0, 20),
    st.sampled_from([linear, square]),
)
def test_leaves_that_stay_are_the_best_choice_of_pages(
    leaves: list[tuple[int, int]], wanted: int, prefill: object
) -> None:
    tree, worth = Radix(), Worth(prefill, BYTES, 10.0)  # type: ignore[arg-type]
    gains = {}
    for i, (size, uses) in enumerate(leaves):
        node = put(tree, i, *[i] * size)
        for _ in range(uses):
            worth.use(node, 0.0)
        gains[i] = worth.gain(node, 0.0) * BYTES * PAGE
    tree.evict(wanted * PAGE, worth.order(0.0))
    room = max(sum(size for size, _ in leaves) - wanted, 0)
    choices = product(*[range(size + 1) for size, _ in leaves])
    best = max(sum(n * gains[i] for i, n in enumerate(c)) for c in choices if sum(c) <= room)
    assert kept(tree, gains) == pytest.approx(best)
    whole = product(*[(0, size) for size, _ in leaves])
    assert kept(tree, gains) >= max(
        sum(n * gains[i] for i, n in enumerate(c)) for c in whole if sum(c) <= room
    ) - 1e-9 * sum(gains.values())


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)), max_size=8), st.data())
def test_a_tree_with_linear_prefill_keeps_the_best_prefixes(
    used: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    tree, worth = Radix(), Worth(linear, BYTES, 10.0)
    gains, parents = {}, {}
    slot = 0
    for ids in used:
        for depth in range(tree.cached([*pages(*ids), 0]) // PAGE, 3):
            put_from = [*tree.match([*pages(*ids), 0]).extents, Extent(slot, 0, PAGE)]
            tree.insert(pages(*ids[: depth + 1]), put_from)
            parents[slot] = put_from[depth - 1].slot if depth else None
            slot += 1
        worth.use(tree.match([*pages(*ids), 0]).node, 0.0)
    todo = list(tree.root.children.values())
    while todo:
        node = todo.pop()
        gains.update({e.slot: worth.gain(node, 0.0) for e in node.extents})
        todo += node.children.values()
    room = data.draw(st.integers(0, len(gains)))
    tree.evict((len(gains) - room) * PAGE, worth.order(0.0))
    closed = (
        c
        for c in product([0, 1], repeat=len(gains))
        if sum(c) <= room and all(not c[i] or p is None or c[p] for i, p in parents.items())
    )
    best = max(sum(gains[i] for i, n in enumerate(c) if n) for c in closed)
    assert kept(tree, gains) == pytest.approx(best)


def test_the_gain_is_the_expected_seconds_for_each_byte() -> None:
    tree, worth = Radix(), Worth(square, BYTES, 10.0)
    put(tree, 0, 1)
    node = put(tree, 1, 1, 2, 3)
    worth.use(node, 0.0)
    worth.use(node, 10.0)
    heat = (1.0 * 0.5 + 1.0) * 0.5
    found = worth.gain(node, 20.0)
    assert found == pytest.approx((1 - exp(-heat)) * square(32, 16) / (32 * BYTES))
    assert worth.gain(put(tree, 2, 9), 20.0) == 0.0


def test_a_use_counts_for_all_that_is_above_and_both_parts_of_a_cut_edge() -> None:
    tree, worth = Radix(), Worth(linear, BYTES, 10.0)
    node = put(tree, 0, 1, 2)
    worth.use(node, 3.0)
    other = put(tree, 1, 1, 3)
    assert node.parent is other.parent
    assert worth.gain(node, 3.0) == worth.gain(next(iter(tree.root.children.values())), 3.0) > 0.0
    worth.use(other, 3.0)
    assert next(iter(tree.root.children.values())).heat == 2.0
    assert node.heat == 1.0


def hits(order_of: object, trace: list[tuple[int, ...]], room: int) -> int:
    """Tokens found cached along a trace, with a memory of so many pages."""
    tree, worth, found = Radix(), Worth(linear, BYTES, 8.0), 0
    for now, ids in enumerate(trace):
        tokens = [*pages(*ids), 0]
        match = tree.match(tokens)
        found += match.length
        over = tree.tokens + len(ids) * PAGE - match.length - room * PAGE
        tree.lock(match.node)
        tree.evict(over, order_of(worth, float(now)))  # type: ignore[operator]
        tree.unlock(match.node)
        own = Extent(now, 0, len(ids) * PAGE - match.length)
        worth.use(tree.insert(tokens[:-1], [*match.extents, own]).node, float(now))
    return found


def test_a_scan_does_not_push_out_what_is_used_again() -> None:
    def gain(worth: Worth, now: float) -> Order:
        return worth.order(now)

    def last(worth: Worth, now: float) -> Order:
        return recency

    trace: list[tuple[int, ...]] = [(1, 2), (1, 2)]
    for k in range(10):
        trace += [(1, 2), *((100 + 4 * k + i, 0) for i in range(4))]
    assert hits(last, trace, 8) < hits(gain, trace, 8) == 11 * 2 * PAGE


@pytest.mark.parametrize(("nbytes", "half_life"), [(0, 1.0), (8, 0.0)])
def test_what_cannot_be_divided_by_is_refused(nbytes: int, half_life: float) -> None:
    with pytest.raises(PlanError, match="half life"):
        Worth(linear, nbytes, half_life)
