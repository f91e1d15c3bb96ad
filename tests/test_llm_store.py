"""Memory for prefixes, in arenas that come as they are needed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from stages.llm import store as module
from stages.llm.extents import Extent
from stages.llm.family import network
from stages.llm.store import Store
from tests.llm_models import tiny

MADE = network(tiny("llama"))


@pytest.fixture(scope="module")
def net() -> Any:
    return MADE


@pytest.fixture
def small(net: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Arenas of 64 tokens."""
    monkeypatch.setattr(module, "ARENA", 64 * net.sizes.token_bytes)
    return net


def test_nothing_is_taken_before_it_is_needed(small: Any) -> None:
    store = Store(small, 1024)
    assert store._arenas == []
    store.reserve(16)
    assert [slots.tokens for slots, _, _ in store._arenas] == [64]


def test_a_prompt_longer_than_an_arena_gets_one_of_its_size(small: Any) -> None:
    store = Store(small, 1024)
    place = store.reserve(200)
    assert place is not None
    assert store.view(Extent(place, 0, 200)).keys.shape[-1] == 200


def test_never_more_than_its_tokens(small: Any) -> None:
    store = Store(small, 160)
    assert [store.reserve(64) is not None for _ in range(3)] == [True, True, False]
    assert store.reserve(32) is not None
    assert store.used == 160


def test_less_than_a_page_is_refused(net: Any) -> None:
    with pytest.raises(PlanError):
        Store(net, 15)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_what_is_written_in_one_slot_stays_out_of_all_others(data: st.DataObject) -> None:
    made = MADE
    before, module.ARENA = module.ARENA, 64 * made.sizes.token_bytes
    try:
        store = Store(made, 512)
        held: dict[int, int] = {}
        for mark in range(1, 20):
            goes: bool = data.draw(st.booleans())
            if held and goes:
                place = data.draw(st.sampled_from(sorted(held)))
                store.release(Extent(place, 0, held.pop(place)))
                continue
            tokens = 16 * data.draw(st.integers(1, 6))
            found = store.reserve(tokens)
            if found is not None:
                held[found] = tokens
                store.view(Extent(found, 0, tokens)).keys.fill_(found)
            assert store.used == sum(held.values())
            for place, size in held.items():
                assert (store.view(Extent(place, 0, size)).keys == place).all(), mark
    finally:
        module.ARENA = before
