"""What a sequence finds in its room when it comes in, for the first time or again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.attention import Past, Slab, joined
from stages.llm.decoder import Ask
from stages.llm.family import network
from stages.llm.network import Network
from stages.llm.prefixes import Found
from stages.llm.rooms import Room
from stages.llm.sequence import Sequence
from tests.llm_models import numbers, one_thread, random_tokens, tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def net() -> Network:
    return network(tiny("llama"))


def truth(net: Network, tokens: int) -> Past:
    """The cache of the prompt: the key and value of token i are i + 1."""
    import torch

    s, at = net.sizes, torch.arange(1.0, tokens + 1)
    keys = at.expand(s.layers, s.kv_heads, s.head, tokens)
    return Past(keys, at[:, None].expand(s.layers, s.kv_heads, tokens, s.head))


def same(a: Past, b: Past) -> bool:
    import torch

    return torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


def come_in(s: Sequence, net: Network, right: Past, length: int, behind: int) -> None:
    """Into an empty slot, with a cached prefix of `length` tokens, of which `behind` are read in place."""
    s.room = Room(Slab(net, 1, 64), 0)
    past = (right.cut(0, length // 2), right.cut(length // 2, length)) if length else ()
    s.enter(Found(length), behind, past)


def check(s: Sequence, right: Past) -> None:
    """What is said to be there is there."""
    assert s.room is not None
    assert sum(map(len, s.past)) == s.behind == s.found.length
    own: Any = s.room.slab.extent(0, 0, s.own)
    assert same(joined([*s.past, own]), right.cut(0, s.done))


PAGES = st.integers(0, 3).map(lambda n: 16 * n)


@settings(deadline=None)
@given(
    first=PAGES,
    in_place=st.booleans(),
    read=st.integers(0, 59),
    second=PAGES,
    again_in_place=st.booleans(),
    swap=st.booleans(),
)
def test_who_comes_back_finds_all_that_it_may_count_on(
    net: Network, first: int, in_place: bool, read: int, second: int, again_in_place: bool, swap: bool
) -> None:
    """Prefixes may have come and gone meanwhile, in place or not."""
    right, s = truth(net, 60), Sequence(Ask(random_tokens(60), 4), numbers)
    come_in(s, net, right, first, first if in_place else 0)
    check(s, right)
    if read > s.done and s.room is not None:
        s.room.slab.put(0, s.own, right.cut(s.done, read))
        s.done = read
    was, behind = s.done, s.behind
    s.make_room(swap)
    assert (s.saved is not None) == swap
    come_in(s, net, right, second, second if again_in_place else 0)
    check(s, right)
    whole = swap and behind <= s.behind and second <= was
    assert s.done == (was if whole else second)
    assert s.saved is None


def test_a_cache_from_elsewhere_is_put_into_the_room(net: Network) -> None:
    right, s = truth(net, 59), Sequence(Ask(random_tokens(60), 4), numbers)
    s.saved, s.done = right, 59
    come_in(s, net, right, 0, 0)
    check(s, right)
    assert (s.done, s.pending, s.reused, s.is_reading) == (59, 1, 0, False)


def test_what_was_found_is_counted_once(net: Network) -> None:
    right, s = truth(net, 60), Sequence(Ask(random_tokens(60), 4), numbers)
    come_in(s, net, right, 32, 0)
    s.make_room(swap=False)
    come_in(s, net, right, 48, 48)
    assert s.reused == 32
