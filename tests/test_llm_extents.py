"""Chains of pieces of slots: cut, joined and compared without losing a token."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stages.llm.extents import Extent, cut, elsewhere, joined, pages_of

CHAINS = st.lists(
    st.builds(lambda s, a, n: Extent(s, a, a + n), st.integers(0, 3), st.integers(0, 40), st.integers(1, 9)),
    max_size=6,
)


def places(extents: object) -> list[tuple[int, int]]:
    return [(e.slot, i) for e in extents for i in range(e.start, e.stop)]  # type: ignore[attr-defined]


@given(CHAINS, st.integers(0, 60), st.integers(0, 60))
def test_a_cut_is_the_slice_of_the_tokens(chain: list[Extent], start: int, stop: int) -> None:
    assert places(cut(chain, start, stop)) == places(chain)[start:stop]


@given(CHAINS)
def test_joined_has_the_same_tokens_and_no_neighbours_left(chain: list[Extent]) -> None:
    found = joined(chain)
    assert places(found) == places(chain)
    assert all(a.slot != b.slot or a.stop != b.start for a, b in pairwise(found))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), st.integers(0, 3))
def test_elsewhere_finds_the_tokens_whose_places_differ(pages: list[tuple[int, int]], more: int) -> None:
    mine = [Extent(a, 4 * i, 4 * i + 4) for i, (a, _) in enumerate(pages)]
    theirs = [Extent(b, 4 * i, 4 * i + 4) for i, (_, b) in enumerate(pages)]
    longer = [*mine, Extent(9, 0, more + 1)]  # what the other chain does not reach is nobody's double
    wanted = [a for a, b in zip(places(mine), places(theirs), strict=True) if a != b]
    assert places(elsewhere(joined(longer), joined(theirs))) == wanted


def test_tokens_take_whole_pages() -> None:
    assert [pages_of(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
