"""What goes wrong in an engine: who it reaches, and that the others go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.llm.decoder import Ask, Said
from stages.llm.family import network
from stages.llm.limits import NOWHERE, Limits
from stages.llm.network import Network
from stages.llm.preempt import Swap
from tests.llm_engines import (
    ALL,
    AMPLE,
    FREE_SWAP,
    MOST,
    PROMPTS,
    Truth,
    Visit,
    asks,
    drive,
    engine,
    settled,
    watched,
)
from tests.llm_models import one_thread, random_tokens, tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def llama() -> Truth:
    return Truth("llama")


# what goes wrong


POISON = 3
"""A token whose embedding is not a number."""


@pytest.fixture(scope="module")
def poisoned() -> Network:
    import torch

    model = tiny("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = float("nan")
    return network(model)


def spoiled(i: int) -> NDArray[np.int32]:
    found = PROMPTS[i].copy()
    found[found == POISON] = 4
    found[len(found) // 2] = POISON
    return found


def healthy(i: int) -> NDArray[np.int32]:
    return np.where(PROMPTS[i] == POISON, 4, PROMPTS[i])


def right_or_poisoned(llama: Truth, prompt: NDArray[np.int32], said: Said) -> None:
    """Greedy answers end where they say the poisoned token themselves."""
    right = llama.greedy(prompt, MOST)
    at = right.index(POISON) + 1 if POISON in right else len(right)
    assert said.tokens == right[:at]


@pytest.mark.parametrize("limits", [AMPLE, Limits(272, 4, 16, 4, 1), Limits(400, 4, 7, 0, 1, FREE_SWAP)])
def test_rows_that_are_not_finite_fail_alone(llama: Truth, poisoned: Network, limits: Limits) -> None:
    one = watched(engine(poisoned, limits))
    for _ in range(2):
        both = [prompt for i in ALL for prompt in (spoiled(i), healthy(i))]
        said = one.answer([Ask(p, MOST, (n,)) for n, p in enumerate(both)])
        assert {(s.stop, s.tokens) for s in said[::2]} == {("invalid", ())}
        for prompt, answer in zip(both[1::2], said[1::2], strict=True):
            right_or_poisoned(llama, prompt, answer)
    settled(one)


def test_a_slot_is_clean_after_who_was_not_finite(llama: Truth, poisoned: Network) -> None:
    """Whether answered, prefilled only, or sent away in the middle of its prompt."""
    import torch

    one = engine(poisoned, Limits(4096, rows=1, chunk=16))
    long = np.where(random_tokens(100, 4) == POISON, 4, random_tokens(100, 4))
    long[5] = POISON
    one.answer([Ask(long, 5)])
    right_or_poisoned(llama, healthy(7), one.answer([Ask(healthy(7), MOST)])[0])
    one.prefill([Ask(long, 5)])
    right_or_poisoned(llama, healthy(8), one.answer([Ask(healthy(8), MOST)])[0])
    s = one._enter(Ask(long[4:], 5))
    one._step_for(s)
    with torch.inference_mode():
        one._cohort._send_back(s, swap=False)
    right_or_poisoned(llama, healthy(9), drive(one, [Visit(Ask(healthy(9), MOST), 0, False)])[0])


class Trouble(Exception):
    """What a device may say."""


def failing(net: Network, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The network fails once, in a step to come."""
    hidden, left = Network.hidden, [after]

    def once(self: Network, *what: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Trouble("the device is gone")
        return hidden(self, *what)

    monkeypatch.setattr(Network, "hidden", once)


@pytest.mark.parametrize("after", [1, 4, 30])
@pytest.mark.parametrize("swap", [NOWHERE, FREE_SWAP])
def test_what_fails_reaches_all_who_wait_and_the_engine_goes_on(
    llama: Truth, after: int, swap: Swap, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watched(engine(llama.net, Limits(272, 4, 16, expected=1, swap=swap)))
    failing(llama.net, monkeypatch, after)
    waiting = [one._enter(ask) for ask in asks(ALL, 60)]
    while not all(s.over.is_set() for s in waiting):
        one._step_for(waiting[-1])
    reached = 0
    for s in waiting:
        try:
            assert s.result().tokens == llama.greedy(s.ask.tokens, 60)
        except Trouble:
            reached += 1
    assert reached > 5
    settled(one)
    assert [s.tokens for s in one.answer(asks(ALL))] == [llama.greedy(p, MOST) for p in PROMPTS]
    settled(one)


def test_a_failure_is_raised_to_the_caller(llama: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(llama.net)
    failing(llama.net, monkeypatch, 2)
    with pytest.raises(Trouble, match="the device is gone"):
        one.answer(asks([0, 1]))
    failing(llama.net, monkeypatch, 2)
    with pytest.raises(Trouble, match="the device is gone"):
        list(one.stream(asks([0])[0]))
