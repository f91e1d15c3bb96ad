"""Prompts that were read are found again by those that begin alike, with the numbers that were read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stages.llm.attention import Past, Slab, joined
from stages.llm.extents import PAGE
from stages.llm.family import network
from stages.llm.network import Network
from stages.llm.prefixes import Found, Prefixes
from tests.llm_models import one_thread, tiny

CAPACITY = 128
_NETS: list[Network] = []

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


def net() -> Network:
    if not _NETS:
        _NETS.append(network(tiny("llama", num_hidden_layers=2)))
    return _NETS[0]


def numbers(tokens: list[int]) -> Past:
    """Keys and values as a model has them: those of a token follow from it and all before it."""
    import torch

    s = net().sizes
    sums = np.cumsum([hash((i, t)) % 1000 for i, t in enumerate(tokens)]) % 997
    row = torch.tensor(sums, dtype=torch.float32)
    keys = row.expand(s.layers, s.kv_heads, s.head, len(tokens))
    return Past(keys.clone(), -row[:, None].expand(s.layers, s.kv_heads, len(tokens), s.head).clone())


def same(a: Past, b: Past) -> bool:
    import torch

    return torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


class Reading:
    """A slab with one slot, into which prompts are read."""

    def __init__(self, tokens: int = 512, **more: Any) -> None:
        self.slab = Slab(net(), 1, CAPACITY)
        self.now = 0.0
        self.prefixes = Prefixes(net(), tokens, lambda n, context: n * 1.0, clock=lambda: self.now, **more)

    def read(self, tokens: list[int], room: int = 512, in_place: bool = False) -> int:
        """What an engine does with a prompt; how much of it was found."""
        found = self.prefixes.match(tokens)
        behind = found.length if in_place else 0
        self.slab.put(0, 0, numbers(tokens).cut(behind, len(tokens)))
        self.prefixes.keep(tokens, self.slab, 0, behind, room)
        self.prefixes.drop(found)
        return found.length


def text(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 97, count)]


def test_a_prompt_is_found_by_whole_pages_and_never_all_of_it() -> None:
    one = Reading()
    tokens = text(50)
    assert one.read(tokens) == 0
    assert one.prefixes.used == 48
    assert one.prefixes.cached(tokens) == 48
    assert one.prefixes.cached(tokens[:48]) == 32
    assert one.prefixes.cached([*tokens[:20], 1, 2, 3]) == 16
    assert one.prefixes.cached(text(50, 1)) == 0


def test_what_is_found_are_the_numbers_that_were_read() -> None:
    one = Reading()
    tokens = text(50)
    one.read(tokens)
    found = one.prefixes.match([*tokens[:40], 5])
    assert same(joined(one.prefixes.past(found)), numbers(tokens[:32]))
    assert same(joined(one.prefixes.past(found, 16)), numbers(tokens[:32]).cut(16, 32))
    one.prefixes.drop(found)


@pytest.mark.parametrize("in_place", [True, False])
def test_only_what_is_new_of_a_longer_prompt_is_kept(in_place: bool) -> None:
    one = Reading()
    short, long = text(50), [*text(50), *text(50, 1)]
    one.read(short)
    assert one.read(long, in_place=in_place) == 48
    assert one.prefixes.used == 96
    found = one.prefixes.match([*long, 5])
    assert same(joined(one.prefixes.past(found)), numbers(long[:96]))
    one.prefixes.drop(found)


def test_a_prompt_that_is_there_is_not_kept_twice() -> None:
    one = Reading()
    for _ in range(3):
        one.read(text(64))
    assert one.prefixes.used == 64


def test_short_prompts_are_not_kept() -> None:
    one = Reading()
    one.read(text(PAGE - 1))
    assert one.prefixes.used == 0


def test_nothing_is_kept_where_there_is_no_room() -> None:
    one = Reading()
    one.read(text(50), room=47)
    assert one.prefixes.used == 0
    one.read(text(50), room=48)
    assert one.prefixes.used == 48


def test_what_is_held_does_not_give_way() -> None:
    one = Reading()
    one.read(text(50))
    held = one.prefixes.match(text(50))
    one.read(text(70, 1), room=32)
    assert one.prefixes.used == 48
    assert one.prefixes.evict(48) == 0
    one.prefixes.drop(held)
    one.read(text(70, 1), room=32)
    assert one.prefixes.cached(text(70, 1)) == 64
    assert one.prefixes.used <= 48 + 32


def test_what_is_used_again_and_again_stays() -> None:
    one = Reading()
    one.read(text(64))
    one.read(text(64, 1))
    for _ in range(3):
        one.prefixes.drop(one.prefixes.match([*text(64), 5]))
    assert one.prefixes.evict(64) == 64
    assert one.prefixes.cached([*text(64), 5]) == 64
    assert one.prefixes.cached([*text(64, 1), 5]) == 0


def test_evicting_says_how_much_went() -> None:
    one = Reading()
    one.read(text(100))
    assert one.prefixes.evict(20) == 32
    assert one.prefixes.used == 64
    assert one.prefixes.evict(1000) == 64
    assert one.prefixes.used == 0


def test_the_prefix_of_a_question_that_comes_back_goes_last() -> None:
    one = Reading()
    one.read(text(64))
    one.prefixes.back("q")
    one.prefixes.start("q")
    one.prefixes.leave("q", 1, [*text(64), 5])
    one.read(text(64, 1))
    for _ in range(5):
        one.prefixes.drop(one.prefixes.match([*text(64, 1), 5]))
    one.prefixes.evict(64)
    assert one.prefixes.cached([*text(64), 5]) > 0
    assert one.prefixes.cached([*text(64, 1), 5]) == 0


def test_a_question_that_stays_away_is_forgotten() -> None:
    one = Reading()
    one.read(text(64))
    one.prefixes.back("q")
    one.prefixes.start("q")
    one.prefixes.leave("q", 1, [*text(64), 5])
    one.now = 1e6
    one.read(text(64, 1))
    one.prefixes.drop(one.prefixes.match([*text(64, 1), 5]))
    one.prefixes.evict(64)
    assert one.prefixes.cached([*text(64), 5]) == 0


def test_several_prompts_of_one_question_may_be_under_way() -> None:
    one = Reading()
    one.read(text(64))
    for _ in range(2):
        one.prefixes.back("q")
        one.prefixes.start("q")
    for _ in range(2):
        one.prefixes.leave("q", 1, [*text(64), 5])
    one.prefixes.back("q")
    one.prefixes.start("q")
    assert one.prefixes.evict(64) == 64


class Traces(RuleBasedStateMachine):
    """Whatever is read, held and evicted: what is found is right, and what is counted is there."""

    @initialize(tokens=st.sampled_from([64, 160, 512]))
    def begin(self, tokens: int) -> None:
        self.most = tokens
        self.one = Reading(tokens)
        self.held: list[tuple[list[int], Found]] = []

    @rule(branch=st.integers(0, 2), shared=st.integers(0, 90), own=st.integers(0, 30), in_place=st.booleans())
    def read(self, branch: int, shared: int, own: int, in_place: bool) -> None:
        tokens = [*text(90, branch)[:shared], *text(own, own)]
        if tokens:
            self.one.read(tokens, max(0, self.most - self.one.prefixes.used), in_place)

    @rule(branch=st.integers(0, 2), shared=st.integers(1, 90))
    def hold(self, branch: int, shared: int) -> None:
        tokens = text(90, branch)[:shared]
        self.held.append((tokens, self.one.prefixes.match(tokens)))

    @rule()
    def drop(self) -> None:
        if self.held:
            self.one.prefixes.drop(self.held.pop(0)[1])

    @rule(tokens=st.integers(1, 100))
    def evict(self, tokens: int) -> None:
        before = self.one.prefixes.used
        assert before - self.one.prefixes.evict(tokens) == self.one.prefixes.used

    @rule(seconds=st.floats(0, 1000))
    def wait(self, seconds: float) -> None:
        self.one.now += seconds

    @invariant()
    def what_is_held_stays_right(self) -> None:
        for tokens, found in self.held:
            if found.length:
                assert same(joined(self.one.prefixes.past(found)), numbers(tokens[: found.length]))

    @invariant()
    def no_token_is_lost(self) -> None:
        assert self.one.prefixes.used == self.one.prefixes._tree.tokens
        assert self.one.prefixes.used <= self.most


TestTraces = Traces.TestCase
TestTraces.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
