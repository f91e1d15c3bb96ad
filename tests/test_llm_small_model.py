"""A small model drafts what it would say itself, whatever became of its drafts before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.llm.decoder import Ask
from stages.llm.family import network
from stages.llm.limits import Limits
from stages.llm.linear import Linear
from stages.llm.network import Network
from stages.llm.sequence import Sequence as Asked
from stages.llm.small_model import CATCH_UP, SmallModel
from tests.llm_models import END, WINDOW, one_thread, random_tokens, tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)
ENDS = frozenset([END])
AMPLE = Limits(1 << 14, rows=4, chunk=64)


class Model:
    """As a network, and by the library: what it says greedily, up to the end."""

    def __init__(self) -> None:
        self._model = tiny("llama", num_hidden_layers=2)
        self.net = network(tiny("llama", num_hidden_layers=2))
        self._known: dict[tuple[int, ...], int] = {}

    def says(self, tokens: Sequence[int], most: int) -> list[int]:
        said: list[int] = []
        while len(said) < most and END not in said:
            said.append(self._next((*tokens, *said)))
        return said

    def _next(self, tokens: tuple[int, ...]) -> int:
        import torch

        if tokens not in self._known:
            with torch.inference_mode():
                self._known[tokens] = int(self._model(torch.tensor([tokens])).logits[0, -1].argmax())
        return self._known[tokens]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def row(size: int, seed: int = 0, most: int = 100) -> Asked:
    return Asked(Ask(random_tokens(size, seed), most, (size, seed)), lambda tokens: "")


def ready(drafter: SmallModel, *ones: Asked) -> None:
    while any(drafter.unread(s) for s in ones):
        before = [drafter.unread(s) for s in ones]
        drafter.read([s for s in ones if drafter.unread(s)])
        assert before != [drafter.unread(s) for s in ones], "it does not get on"


@pytest.fixture(autouse=True)
def inference() -> Any:
    import torch

    with torch.inference_mode():
        yield


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the row
        st.sampled_from(["draft", "draft", "say", "leave"]),
        st.integers(1, 5),  # tokens to draft
        st.integers(0, 5),  # how many of them stand
        st.integers(1, 20),  # other tokens that are said then
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.parametrize("expected", [1, 100])
def test_it_drafts_what_it_would_say_itself(model: Model, expected: int) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(EVENTS, st.sampled_from([8, 64]))
    def check(events: list[tuple[int, str, int, int, int]], chunk: int) -> None:
        drafter = SmallModel(model.net, ENDS, replace(AMPLE, chunk=chunk, expected=expected))
        ones = [row(5), row(50, 1), row(30, 2)]
        for turn, (at, what, most, stand, others) in enumerate(events):
            s = ones[at]
            if what == "leave":
                drafter.leave(s)
            else:
                drafts: list[int] = []
                if what == "draft":
                    ready(drafter, *ones)
                    wanted = [(one, most + i) for i, one in enumerate(ones)]
                    found = drafter.draft(wanted)
                    assert found == [model.says(one.tokens, k) for one, k in wanted]
                    drafts = found[at]
                news = [*drafts[:stand], *random_tokens(others, turn).tolist()]
                s.tokens += news if others > 1 else news[:-1] or news
        for s in ones:
            drafter.leave(s)
        assert drafter.used == 0

    check()


def test_what_was_said_since_is_read_with_the_next_draft_and_more_in_chunks(model: Model) -> None:
    drafter, s = SmallModel(model.net, ENDS, replace(AMPLE, chunk=16)), row(40)
    assert (drafter.unread(s), drafter.reach(s)) == (40, 0)
    left = []
    while drafter.unread(s):
        drafter.read([s])
        left.append(drafter.unread(s))
    assert left == [23, 0]
    assert drafter.reach(s) == WINDOW - 40
    drafter.draft([(s, 3)])
    s.tokens += random_tokens(CATCH_UP - 1, 3).tolist()
    assert drafter.unread(s) == 0
    s.tokens += random_tokens(2, 4).tolist()
    assert drafter.unread(s) == CATCH_UP


def test_where_no_room_is_a_row_gets_no_draft_and_another_comes_when_one_leaves(model: Model) -> None:
    drafter, first, second = SmallModel(model.net, ENDS, Limits(128)), row(40, most=30), row(41, most=30)
    drafter.read([first, second])
    assert (drafter.reach(first) > 0, drafter.reach(second)) == (True, 0)
    assert drafter.used == 128
    drafter.leave(first)
    ready(drafter, second)
    assert drafter.draft([(second, 2)]) == [model.says(second.tokens, 2)]


def test_a_row_that_outgrows_its_slot_leaves_where_there_is_no_longer_one(model: Model) -> None:
    drafter, s = SmallModel(model.net, ENDS, replace(AMPLE, tokens=64, expected=1)), row(60)
    ready(drafter, s)
    assert drafter.draft([(s, 3)]) == [model.says(s.tokens, 3)]
    assert drafter.draft([(s, 5)]) == [[]]
    assert drafter.used == 0


class Broken:
    """A product whose results are not finite while it is told so."""

    nbytes = 0

    def __init__(self, inner: Linear) -> None:
        self.inner, self.is_broken = inner, False

    def __call__(self, x: Any) -> Any:
        return self.inner(x) * (float("nan") if self.is_broken else 1.0)


def broken(net: Network) -> tuple[Network, Broken]:
    first = net.layers[0]
    product = Broken(first.qkv)
    return replace(net, layers=(replace(first, qkv=product), *net.layers[1:])), product


def test_a_row_with_numbers_that_are_not_finite_leaves_a_clean_slot(model: Model) -> None:
    net, product = broken(model.net)
    drafter, s = SmallModel(net, ENDS, AMPLE), row(20)
    product.is_broken = True
    ready(drafter, s)
    assert drafter.draft([(s, 2)]) == [[]]
    assert drafter.used == 0
    product.is_broken = False
    short, long = row(10), row(25)  # what is behind the short one's end is read with the long one's tokens
    ready(drafter, short, long)
    assert drafter.draft([(short, 4), (long, 4)]) == [model.says(x.tokens, 4) for x in (short, long)]


def test_rows_move_down_so_that_free_slots_are_not_read(model: Model) -> None:
    drafter, ones = SmallModel(model.net, ENDS, AMPLE), [row(20, seed, 20) for seed in range(3)]
    ready(drafter, *ones)
    drafter.leave(ones[0])
    wanted = [(ones[1], 2), (ones[2], 3)]
    assert drafter.draft(wanted) == [model.says(s.tokens, k) for s, k in wanted]
    assert sorted(held.room.slot for held in drafter._held.values()) == [0, 1]


def test_time_is_taken_for_tokens_read_and_for_passes(model: Model) -> None:
    clock = count()
    drafter = SmallModel(model.net, ENDS, AMPLE, lambda: 3.0 * next(clock))
    s = row(41)
    assert (drafter.step.seconds, drafter.token.seconds) == (0, 0)
    drafter.read([s])
    assert drafter.token.seconds == pytest.approx(3 / 40)
    drafter.draft([(s, 3)])
    assert drafter.step.seconds == 3.0
    assert np.isfinite(drafter.reach(s))
