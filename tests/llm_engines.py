"""Engines for tests: prompts, traffic, and what must hold in every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.llm import cohort
from stages.llm.decoder import Ask, Said
from stages.llm.engine import Engine
from stages.llm.family import network
from stages.llm.limits import Limits
from stages.llm.network import Network
from stages.llm.preempt import Swap
from stages.llm.sampling import Sampling
from stages.llm.sequence import Sequence
from tests.llm_models import END, Greedy, numbers, random_tokens, tiny

MOST = 24
AMPLE = Limits(1 << 15)
FREE_SWAP = Swap(1 << 40, 1e15)
STUCK = 3000
"""Steps after which a scenario of a few hundred tokens will not end."""


class Truth:
    """A model, as a network and as what it says itself."""

    def __init__(self, name: str) -> None:
        self.greedy = Greedy(tiny(name))
        self.net: Network = network(tiny(name))


def prompts() -> list[NDArray[np.int32]]:
    """Of different lengths; most begin like others do."""
    shared, other = random_tokens(80), random_tokens(40, 7)
    parts = (
        [(shared, n, k) for n, k in ((80, 5), (80, 17), (64, 9), (80, 30), (33, 11), (80, 2), (80, 2))],
        [(other, n, k) for n, k in ((0, 20), (0, 3), (0, 1), (40, 6), (35, 3), (17, 0))],
    )
    made = [np.concatenate([base[:n], random_tokens(k, n)]) for half in parts for base, n, k in half]
    made[1][-2:] = made[1][:2]  # ends like it begins: something to draft
    return made


PROMPTS = prompts()


def engine(net: Network, limits: Limits = AMPLE) -> Engine:
    return Engine(net, frozenset([END]), numbers, limits)


def asks(places: Iterable[int], most: int = MOST) -> list[Ask]:
    return [Ask(PROMPTS[i], most, (f"q{i}",)) for i in places]


ALL = range(len(PROMPTS))


def settled(one: Engine) -> None:
    """Nobody is under way, so nothing is held but prefixes that may go."""
    inner = one._cohort
    assert not inner.running
    assert not inner.entered
    assert not len(inner._waiting)
    assert inner.space.rooms.used == 0
    assert inner._prefixes._tree.locked == 0
    assert inner._prefixes.used == inner._prefixes._tree.tokens == inner._prefixes.idle
    assert one.counts.held <= one._limits.tokens


def watched(one: Engine) -> Engine:
    """Who runs has a slot of its own, and all of them are counted and within the budget, in every step."""
    inner, limits = one._cohort, one._limits
    guess, take = inner.guess, inner.take

    def check() -> None:
        places = [(s.room.slab.capacity, s.room.slot) for s in inner.running if s.room is not None]
        assert len(places) == len(inner.running) <= limits.rows
        assert len(set(places)) == len(places)
        assert inner.space.rooms.used == sum(size for size, _ in places)
        assert inner.space.rooms.used + inner._prefixes.used <= limits.tokens

    def checked_guess() -> None:
        check()
        guess()

    def checked_take(*what: Any) -> None:
        take(*what)
        check()

    one._cohort.guess = checked_guess  # type: ignore[method-assign]
    one._cohort.take = checked_take  # type: ignore[assignment,method-assign]
    return one


class Visit:
    """An ask that comes at a step; `split`: prefill first, then decode."""

    def __init__(self, ask: Ask, step: int, split: bool) -> None:
        self.ask, self.step, self.split = ask, step, split
        self.sequence: Sequence | None = None
        self.said: Said | None = None

    def go_on(self, one: Engine, step: int) -> None:
        if self.said is None and self.sequence is None and step >= self.step:
            self.sequence = one._enter(self.ask, export=self.split)
        s = self.sequence
        if self.said is None and s is not None and s.over.is_set():
            past = s.exported() if s.export else None
            if past is None:
                self.said = s.result()
            else:
                self.sequence = one._enter(self.ask, past=past)


def drive(one: Engine, visits: list[Visit]) -> list[Said]:
    """Steps by hand, so that everybody comes when it is their turn."""
    for step in range(STUCK):
        for visit in visits:
            visit.go_on(one, step)
        waiting = [v.sequence for v in visits if v.said is None and v.sequence is not None]
        if waiting:
            one._step_for(waiting[0])
        elif all(v.said for v in visits):
            break
    found = [v.said for v in visits if v.said is not None]
    assert len(found) == len(visits), "the engine is stuck"
    return found


def sampled(seed: int, places: list[int], **more: Any) -> list[Ask]:
    how = Sampling(temperature=0.9, top_p=0.95, seed=seed, **more)
    return [Ask(PROMPTS[i], MOST, (f"q{i}",), how) for i in places]


def admit(one: Engine) -> None:
    import torch

    with torch.inference_mode():
        one._cohort.admit()


def thresholds(monkeypatch: pytest.MonkeyPatch, shared: int, least: int) -> None:
    """From how many shared tokens on prefixes are read where they are, and prompts wait for one another."""
    monkeypatch.setattr(cohort, "SHARED", shared)
    monkeypatch.setattr(cohort, "LEAST", least)
