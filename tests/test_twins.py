"""Ids that a batch has twice are told apart, and are plain ids to all else."""

from __future__ import annotations

import copy
import operator
import pickle

from hypothesis import given
from hypothesis import strategies as st

from pipeline.apply import apply
from pipeline.stage import ports
from pipeline.twins import Twin, apart
from tests.toys import Join, Numbers

ids = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=8).map(tuple)


@given(ids)
def test_no_id_of_a_batch_comes_twice_and_each_is_the_plain_one(rows: tuple[tuple[str, int], ...]) -> None:
    found = apart(rows)
    assert len(set(found)) == len(rows)
    assert found == rows
    assert [[*i] for i in found] == [[*i] for i in rows]
    assert (found is rows) == (len(set(rows)) == len(rows))


def test_a_twin_is_equal_to_the_plain_id_and_not_to_its_twins() -> None:
    first, second = apart((("q", 1), ("q", 1)))
    plain = ("q", 1)
    assert first == plain
    assert plain == first
    assert not operator.ne(first, plain)
    assert first != second
    assert not operator.eq(first, second)
    assert first != ("q", 2)
    assert {plain: "found"}[first] == "found"


def test_what_begins_a_twin_is_a_twin_too() -> None:
    first, second = apart((("q", 1), ("q", 1)))
    assert first[:2] != second[:2]
    assert first[:1] == ("q",)
    assert first[0] == "q"


def test_what_travels_is_the_plain_id() -> None:
    (twin, _) = apart((("q",), ("q",)))
    assert isinstance(twin, Twin)
    assert type(pickle.loads(pickle.dumps(twin))) is tuple
    assert type(copy.deepcopy(twin)) is tuple


def test_a_stage_that_goes_by_id_finds_the_right_row_of_two() -> None:
    owed = (("q",), ("r",), ("q",))
    batch = {"a": Numbers(owed, (1, 2, 3)), "b": Numbers(owed, (10, 20, 30))}
    made = apply(Join(), ports(Join), None, batch, owed)
    assert made == Numbers(owed, (11, 22, 33))
    assert {type(i) for i in made.ids} == {tuple}
