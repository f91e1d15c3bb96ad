"""The tree of prefixes against a plain dictionary of every page prefix that was ever put in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.extents import PAGE, Extent
from stages.llm.radix import Inserted, Node, Radix

Pages = tuple[int, ...]


def prompt(pages: Iterable[int], more: int = 0) -> list[int]:
    """Tokens of pages that differ only in their last token, and a few tokens behind them."""
    return [t for page in pages for t in [*range(PAGE - 1), page]] + [7] * more


def pages_in(extents: Iterable[Extent]) -> list[Extent]:
    return [Extent(e.slot, i, i + PAGE) for e in extents for i in range(e.start, e.stop, PAGE)]


class Known:
    """The same as `Radix`, by dictionary: where the last page of each cached prefix lies."""

    def __init__(self) -> None:
        self.tree = Radix()
        self.places: dict[Pages, Extent] = {}
        self.locks: list[tuple[Node, Pages]] = []
        self.slots = 0

    def insert(self, pages: Pages, more: int) -> None:
        """As a sequence does: what matches is shared, the rest lies in a slot of its own."""
        match = self.tree.match(prompt(pages, more))
        own = [*match.extents, Extent(self.slots, 0, len(pages) * PAGE + more - match.length)]
        self.slots += 1
        found = self.tree.insert(prompt(pages, more), own)
        doubles = []
        for i, place in enumerate(pages_in(own)[: len(pages)]):
            if self.places.setdefault(pages[: i + 1], place) != place:
                doubles.append(place)
        assert pages_in(found.spare) == doubles
        assert found.node.chain() == self.tree.match(prompt(pages, 1)).extents

    def match(self, pages: Pages, more: int) -> None:
        tokens = prompt(pages, more)
        most = (len(tokens) - 1) // PAGE
        length = max((k for k in range(most + 1) if k == 0 or pages[:k] in self.places), default=0)
        assert self.tree.cached(tokens) == length * PAGE
        found = self.tree.match(np.asarray(tokens))
        assert found.length == length * PAGE
        assert pages_in(found.extents) == [self.places[pages[: i + 1]] for i in range(length)]
        self.tree.lock(found.node)
        self.locks.append((found.node, pages[:length]))

    def unlock(self, which: int) -> None:
        if self.locks:
            self.tree.unlock(self.locks.pop(which % len(self.locks))[0])

    def locked(self) -> set[Pages]:
        return {pages[: k + 1] for _, pages in self.locks for k in range(len(pages))}

    def evict(self, wanted: int) -> None:
        free = len(self.places) - len(self.locked())
        freed = pages_in(self.tree.evict(wanted, lambda node: node.start % 3))
        assert len(freed) == min(-(-wanted // PAGE), free)
        self.places = {pages: place for pages, place in self.places.items() if place not in freed}

    def check(self) -> None:
        assert self.tree.tokens == PAGE * len(self.places)
        assert self.tree.locked == PAGE * len(self.locked())
        assert self.locked() <= self.places.keys()
        assert all(pages[:-1] in self.places for pages in self.places if len(pages) > 1)


PAGES = st.lists(st.integers(0, 1), max_size=6).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), PAGES, st.integers(1, PAGE - 1)),
        st.tuples(st.just("match"), PAGES, st.integers(0, 3)),
        st.tuples(st.just("unlock"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(0, 5 * PAGE)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_the_tree_is_a_dictionary_of_prefixes(steps: list[tuple[object, ...]]) -> None:
    known = Known()
    for kind, *rest in steps:
        getattr(known, str(kind))(*rest)
        known.check()
    for node, _ in known.locks:
        known.tree.unlock(node)
    known.locks.clear()
    known.evict(10**6)
    known.check()
    assert known.tree.tokens == 0


def put(tree: Radix, slot: int, *pages: int) -> Inserted:
    return tree.insert(prompt(pages), [Extent(slot, 0, len(pages) * PAGE)])


def by_slot(node: Node) -> float:
    return node.extents[0].slot


def test_a_match_is_never_the_whole_prompt() -> None:
    tree = Radix()
    put(tree, 0, 1, 2, 3)
    assert tree.match(prompt([1, 2, 3])).length == 2 * PAGE
    assert tree.match(prompt([1, 2, 3], 1)).length == 3 * PAGE
    assert tree.match(prompt([], 1)) == (0, (), tree.root)
    assert tree.match([]).length == 0


def test_what_a_second_sequence_computed_too_is_spare() -> None:
    tree = Radix()
    put(tree, 0, 1, 2, 3)
    found = put(tree, 1, 1, 2, 4)
    assert found.spare == (Extent(1, 0, 2 * PAGE),)
    assert found.node.chain() == (Extent(0, 0, 2 * PAGE), Extent(1, 2 * PAGE, 3 * PAGE))


def test_extents_of_a_cut_edge_come_back_as_one() -> None:
    tree = Radix()
    put(tree, 0, 1, 2, 3)
    put(tree, 1, 1, 4)
    assert tree.match(prompt([1, 2, 3], 1)).extents == (Extent(0, 0, 3 * PAGE),)


def test_a_match_inside_an_edge_locks_no_more_than_the_match() -> None:
    tree = Radix()
    put(tree, 0, 1, 2, 3)
    tree.lock(tree.match(prompt([1], 1)).node)
    assert tree.locked == PAGE
    assert tree.evict(10**6, by_slot) == (Extent(0, PAGE, 3 * PAGE),)


def test_a_lock_survives_that_its_edge_is_cut() -> None:
    tree = Radix()
    node = put(tree, 0, 1, 2, 3).node
    tree.lock(node)
    put(tree, 1, 1, 4)
    assert tree.evict(10**6, by_slot) == (Extent(1, PAGE, 2 * PAGE),)
    tree.unlock(node)
    assert (tree.locked, tree.tokens) == (0, 3 * PAGE)


def test_a_leaf_is_shortened_from_its_end_and_no_more_than_asked() -> None:
    tree = Radix()
    put(tree, 0, 1, 2, 3, 4)
    assert tree.evict(PAGE + 1, by_slot) == (Extent(0, 2 * PAGE, 4 * PAGE),)
    assert tree.match(prompt([1, 2, 3, 4], 1)).length == 2 * PAGE


def test_leaves_go_in_the_order_of_their_worth() -> None:
    tree = Radix()
    for slot in (2, 0, 1):
        put(tree, slot, slot)
    assert [tree.evict(1, by_slot)[0].slot for _ in range(3)] == [0, 1, 2]


def test_what_is_pinned_goes_last_and_its_parent_before_other_pins() -> None:
    tree = Radix()
    put(tree, 5, 1)
    tree.pin(put(tree, 0, 1, 2).node)
    tree.pin(put(tree, 1, 3).node)
    put(tree, 9, 4)
    gone = [tree.evict(1, by_slot)[0] for _ in range(4)]
    assert [e.slot for e in gone] == [9, 0, 5, 1]


def test_a_pin_that_is_undone_protects_no_longer() -> None:
    tree = Radix()
    node = put(tree, 0, 1).node
    put(tree, 1, 2)
    tree.pin(node)
    tree.unpin(node)
    assert tree.evict(1, by_slot)[0].slot == 0


def test_misuse_of_locks_and_pins_is_refused() -> None:
    tree = Radix()
    node = put(tree, 0, 1).node
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(node)
    with pytest.raises(ValueError, match="not pinned"):
        tree.unpin(node)
    tree.evict(1, by_slot)
    with pytest.raises(ValueError, match="evicted"):
        tree.lock(node)


def test_extents_must_hold_all_whole_pages() -> None:
    with pytest.raises(ValueError, match="32 tokens or more"):
        Radix().insert(prompt([1, 2]), [Extent(0, 0, PAGE)])
