"""Drafts by looking up: the same as scanning everything."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.llm.drafts import Lookup


def by_scanning(tokens: Sequence[int], most: int, max_ngram: int) -> list[int]:
    """The newest earlier place of the longest n-gram at the end, and what follows it, on and on."""
    for length in range(max_ngram, 0, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                longer = list(tokens)
                for at in range(start + length, start + length + most):
                    longer.append(longer[at])
                return longer[len(tokens) :]
    return []


few = st.lists(st.integers(0, 3), max_size=30)


@given(few, st.lists(few, max_size=5), st.integers(0, 8), st.integers(1, 5))
def test_it_proposes_what_scanning_would_after_each_step(
    prompt: list[int], steps: list[list[int]], most: int, max_ngram: int
) -> None:
    lookup, tokens = Lookup(prompt, max_ngram), list(prompt)
    assert lookup.propose(most) == by_scanning(tokens, most, max_ngram)
    for step in steps:
        lookup.extend(step)
        tokens += step
        assert lookup.propose(most) == by_scanning(tokens, most, max_ngram)


@given(few, st.integers(0, 8))
def test_asking_changes_nothing(prompt: list[int], most: int) -> None:
    lookup = Lookup(prompt)
    assert lookup.propose(most) == lookup.propose(most)


def test_a_passage_is_copied_once_its_beginning_was_said() -> None:
    lookup = Lookup([1, 2, 3, 4, 5, 6, 9])
    assert lookup.propose(3) == []
    lookup.extend([3])
    assert lookup.propose(3) == [4, 5, 6]


def test_a_longer_match_goes_before_a_newer_one() -> None:
    assert Lookup([1, 2, 7, 8, 2, 9, 1, 2]).propose(2) == [7, 8]


def test_of_equal_matches_the_newest_counts() -> None:
    assert Lookup([1, 7, 1, 8, 1]).propose(1) == [8]


def test_a_row_that_repeats_itself_is_drafted_whole() -> None:
    assert Lookup([5, 1, 2, 1, 2]).propose(5) == [1, 2, 1, 2, 1]


def test_a_token_that_is_new_has_no_draft() -> None:
    assert Lookup([1, 2, 3]).propose(4) == []
    assert Lookup([]).propose(4) == []


@pytest.mark.parametrize("length", [100, 10_000])
def test_a_step_does_not_read_the_prompt(length: int) -> None:
    class Counted(list[int]):
        read = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            Counted.read += 1 if isinstance(at, int) else len(range(*at.indices(len(self))))
            return super().__getitem__(at)

    lookup = Lookup(range(length))
    lookup._tokens = Counted(lookup._tokens)
    Counted.read = 0
    lookup.extend([7, 8])
    lookup.propose(4)
    assert Counted.read < 30
