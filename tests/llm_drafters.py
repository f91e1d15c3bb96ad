"""Draft models for tests, and engines that draft with them whatever it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.gates import Curve
from stages.llm.draft_length import Row
from stages.llm.drafter import Drafter, Wanted
from stages.llm.engine import Engine
from stages.llm.family import network
from stages.llm.limits import Limits
from stages.llm.linear import Linear
from stages.llm.network import Network
from stages.llm.sequence import Sequence as Asked
from stages.llm.small_model import SmallModel
from tests.llm_models import END, numbers, tiny

ENDS = frozenset([END])
FREE = Curve("test", ((0, 1.0), (1, 1.0)))


class Always:
    """Draft as much as there is: nothing is measured, so nothing depends on the machine."""

    curve = FREE

    def __init__(self, most: int) -> None:
        self.most = most

    def lengths(self, rows: Sequence[Row], beside: int = 0, drafting: float = 0.0) -> tuple[int, ...]:
        return tuple(min(r.proposed, self.most) for r in rows)

    def learn(self, tokens: int, seconds: float) -> None:
        pass


def other(seed: int = 5, **changes: Any) -> Network:
    """Another model of the same vocabulary."""
    import torch

    made = tiny("llama", num_hidden_layers=1, **changes)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return network(made)


def drafting(net: Network, limits: Limits, drafter: Drafter, looks_up: bool = False, most: int = 4) -> Engine:
    one = Engine(net, ENDS, numbers, limits, drafter)
    one._cohort._proposals._drafting = Always(most)  # type: ignore[assignment]
    if not looks_up:
        enter = one._enter

        def blind(*what: Any, **more: Any) -> Asked:
            s = enter(*what, **more)
            s.lookup = None
            return s

        one._enter = blind  # type: ignore[method-assign]
    return one


LIMITS = Limits(4096, 8, 64, drafts=4)


class Bounded(SmallModel):
    """It stays within its budget, and no two rows share a slot."""

    def draft(self, wanted: Wanted) -> list[list[int]]:
        assert self.used == sum(h.room.slab.capacity for h in self._held.values()) <= self._limits.tokens
        places = {(h.room.slab.capacity, h.room.slot) for h in self._held.values()}
        assert len(places) == len(self._held)
        found = super().draft(wanted)
        assert all(len(tokens) <= most for tokens, (_, most) in zip(found, wanted, strict=True))
        return found


def clear(drafter: Drafter) -> None:
    """Nobody is held any more."""
    if isinstance(drafter, SmallModel):
        assert drafter.used == 0
        assert not drafter._held


class Broken:
    """A product whose results are not numbers, every other time."""

    nbytes = 0

    def __init__(self, inner: Linear) -> None:
        self.inner, self.calls = inner, 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return self.inner(x) * (float("nan") if self.calls % 2 else 1.0)


def broken(net: Network) -> Network:
    """A network that computes numbers that are not finite, every other time."""
    first = net.layers[0]
    return replace(net, layers=(replace(first, qkv=Broken(first.qkv)), *net.layers[1:]))
