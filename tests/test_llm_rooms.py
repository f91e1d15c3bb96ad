"""Slots for sequences under way: low ones first, each in a slab of its length, and all of them counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stages.llm.family import network
from stages.llm.network import Network
from stages.llm.rooms import Room, Rooms, capacity
from tests.llm_models import tiny


@pytest.fixture(scope="module")
def net() -> Network:
    return network(tiny("llama", num_hidden_layers=1))


@given(st.integers(1, 200_000))
def test_a_slot_is_long_enough_and_hardly_longer(tokens: int) -> None:
    size = capacity(tokens)
    assert tokens <= size
    assert size % 64 == 0
    assert size < max(tokens * 5 / 4, tokens) + 64
    assert capacity(size) == size


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_more_tokens_never_take_a_shorter_slot(a: int, b: int) -> None:
    assert (capacity(min(a, b))) <= capacity(max(a, b))


def test_slots_are_taken_from_the_low_end(net: Network) -> None:
    rooms = Rooms(net, 3)
    taken = [rooms.take(10) for _ in range(3)]
    assert [r.slot for r in taken if r] == [0, 1, 2]
    assert rooms.take(10) is None
    assert taken[1] is not None
    rooms.give(taken[1])
    again = rooms.take(60)
    assert again is not None
    assert again.slot == 1


def test_lengths_have_slabs_of_their_own(net: Network) -> None:
    rooms = Rooms(net, 1)
    short, long = rooms.take(64), rooms.take(65)
    assert short is not None
    assert long is not None
    assert (short.slab.capacity, long.slab.capacity) == (64, 128)
    assert rooms.used == 192


def test_a_sequence_moves_down_with_what_it_has(net: Network) -> None:
    rooms = Rooms(net, 3)
    low, high = rooms.take(10), rooms.take(10)
    assert low is not None
    assert high is not None
    high.slab.keys[0][high.slot, :, :, :5] = 7
    assert rooms.lower(high, 5) is high
    rooms.give(low)
    moved = rooms.lower(high, 5)
    assert moved.slot == 0
    assert bool((moved.slab.keys[0][0, :, :, :5] == 7).all())
    assert rooms.used == 64
    following = rooms.take(10)
    assert following is not None
    assert following.slot == 1


class Slots(RuleBasedStateMachine):
    """Against a plain list of who has what."""

    @initialize(rows=st.integers(1, 3))
    def begin(self, rows: int) -> None:
        self.rows = rows
        self.rooms = Rooms(_net(), rows)
        self.taken: list[Room] = []

    @rule(tokens=st.integers(1, 200))
    def take(self, tokens: int) -> None:
        found = self.rooms.take(tokens)
        others = [r.slot for r in self.taken if r.slab.capacity == capacity(tokens)]
        if found is None:
            assert len(others) == self.rows
        else:
            assert found.slot == min(set(range(self.rows)) - set(others))
            self.taken.append(found)

    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        if self.taken:
            at = data.draw(st.integers(0, len(self.taken) - 1))
            self.rooms.give(self.taken.pop(at))

    @rule(data=st.data())
    def lower(self, data: st.DataObject) -> None:
        if self.taken:
            at = data.draw(st.integers(0, len(self.taken) - 1))
            one = self.taken[at]
            found = self.rooms.lower(one, 3)
            assert found.slab is one.slab
            assert found.slot <= one.slot
            self.taken[at] = found

    @invariant()
    def nobody_shares_a_slot(self) -> None:
        places = [(r.slab.capacity, r.slot) for r in self.taken]
        assert len(set(places)) == len(places)
        assert self.rooms.used == sum(size for size, _ in places)


_NET: list[Any] = []


def _net() -> Network:
    if not _NET:
        _NET.append(network(tiny("llama", num_hidden_layers=1)))
    found: Network = _NET[0]
    return found


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_slabs_that_nobody_uses_go_when_memory_is_needed_elsewhere() -> None:
    rooms = Rooms(_net(), 4, tokens=256)
    for room in [r for r in (rooms.take(128), rooms.take(128)) if r]:
        rooms.give(room)
    assert rooms.memory == 256
    assert rooms.take(64) is not None
    assert rooms.memory == 64


def test_a_slab_that_somebody_uses_stays() -> None:
    rooms = Rooms(_net(), 4, tokens=256)
    kept = rooms.take(128)
    assert rooms.take(192) is not None  # whoever counts the budget lets nobody in for whom there is none
    assert kept is not None
    rooms.give(kept)
    assert rooms.take(128) is not None


def test_where_memory_is_taken_at_once_slabs_stay_within_it() -> None:
    rooms = Rooms(_net(), 32, tokens=512, whole=True)
    taken = [room for size in (64, 128, 192, 256, 320) if (room := rooms.take(size))]
    assert rooms.memory <= 512
    for room in taken:
        rooms.give(room)
    assert rooms.take(512) is not None
    assert rooms.memory == 512
