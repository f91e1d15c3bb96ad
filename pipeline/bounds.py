"""About how good a placement can be, without simulating it: a number that is cheap to compare by.

The larger of two times. *Load*: what the busiest lane has to do. *Path*: how long the rows take through
the steps one after another, where a gathering step waits for all of its rows and others overlap. Ours; the
load is the objective of PipeEdge (arXiv 2110.14895), without asking that a lane's steps are neighbours.
When not: as a proof. Lanes share several steps better than one at a time, and last batches are not full,
so a run may take less, by up to 40 % in random placements.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.estimate import Estimates
from pipeline.machine import Device
from pipeline.program import Step
from pipeline.spaces import Choice, batch
from pipeline.stage import gathers

CLOSELY = 3
"""Lanes for a step whose whole bound is worked out, of those that its load leaves."""
COUNTED = 256
"""Batches that are handed out one by one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A step on its lanes. `loads`: seconds of work by lane; `first`: of one batch; `spread`: of all."""

    loads: Mapping[str, float]
    first: float
    spread: float


class Bounds:
    """Bounds of the placements of one program on one layout."""

    def __init__(self, estimates: Estimates) -> None:
        self.estimates = estimates
        self._program = estimates.program
        self._pieces: dict[tuple[str, Choice], Piece] = {}
        self._producers = estimates.makers
        self._edges = {s.name: self._moved(s) for s in self._program.steps}
        self._opened: dict[tuple[str, Choice], list[tuple[str, float]]] = {}
        self._links: dict[tuple[str, ...], float] = {}
        self._states = estimates.states
        self._crowds = estimates.machine.crowds

    def bound(self, chosen: Mapping[str, Choice], limit: float = math.inf) -> float:
        """About the seconds of a run; where that is `limit` or more, any number from it on."""
        loads = self.loads(chosen)
        crowds = (sum(loads.get(d, 0.0) for d in crowd) for crowd in self._crowds)
        load = max((*loads.values(), *crowds), default=0.0)
        return load if load >= limit else max(load, self._path(chosen))

    def loads(self, chosen: Mapping[str, Choice]) -> dict[str, float]:
        """Seconds of work for each lane: batches, openings, and what it waits for over links."""
        found: dict[str, float] = defaultdict(float)
        opened: set[tuple[object, ...]] = set()
        for name, lanes in chosen.items():
            for lane, seconds in self.piece(name, lanes).loads.items():
                found[lane] += seconds
            for lane, seconds in self._openings(name, lanes):
                key = (lane, *self._states[name])
                if key not in opened:
                    opened.add(key)
                    found[lane] += seconds
            found[lanes[0]] += self.link(name, chosen)
        return dict(found)

    def cheapest(self, chosen: Mapping[str, Choice], step: str, choices: Sequence[Choice]) -> Choice:
        """The lanes of a step with the lowest bound, where all other steps stay as `chosen`.

        Of many, only the few whose busiest lane has least to do are looked at closely.
        """
        loads = self._moved_to(chosen, step, choices)
        least, found = math.inf, choices[0]
        for choice in sorted(choices, key=loads.__getitem__)[:CLOSELY]:
            score = self.bound({**chosen, step: choice}, least)
            if score < least:
                least, found = score, choice
        return found

    def _moved_to(
        self, chosen: Mapping[str, Choice], step: str, choices: Sequence[Choice]
    ) -> dict[Choice, float]:
        """What the busiest lane has to do for each choice of lanes for one step, without openings."""
        readers = [name for name, edges in self._edges.items() if any(p == step for p, _ in edges)]
        near = (step, *(r for r in readers if r in chosen))
        base = self.loads(chosen)
        self._add(base, chosen, step, near, -1.0)
        found = {}
        for choice in choices:
            loads = dict(base)
            self._add(loads, {**chosen, step: choice}, step, near, 1.0)
            found[choice] = max(loads.values())
        return found

    def _add(
        self,
        loads: dict[str, float],
        chosen: Mapping[str, Choice],
        step: str,
        near: Sequence[str],
        sign: float,
    ) -> None:
        """Add the work of a step, and the links of those beside it."""
        for lane, seconds in self.piece(step, chosen[step]).loads.items():
            loads[lane] = loads.get(lane, 0.0) + sign * seconds
        for name in near:
            lane = chosen[name][0]
            loads[lane] = loads.get(lane, 0.0) + sign * self.link(name, chosen)

    def _openings(self, name: str, lanes: Choice) -> list[tuple[str, float]]:
        """The lanes on which opening a step's stage takes time, with the seconds."""
        if (name, lanes) not in self._opened:
            each = [(d, self.estimates.opening(name, self._device(d))) for d in lanes]
            self._opened[name, lanes] = [(d, seconds) for d, seconds in each if seconds]
        return self._opened[name, lanes]

    def piece(self, name: str, lanes: Choice) -> Piece:
        """A step on its lanes."""
        if (name, lanes) not in self._pieces:
            self._pieces[name, lanes] = self._piece(self.estimates.steps[name], lanes)
        return self._pieces[name, lanes]

    def link(self, name: str, chosen: Mapping[str, Choice]) -> float:
        """Seconds that all rows of a step need over the links to its first lane."""
        edges = self._edges[name]
        key = (name, chosen[name][0], *(chosen[producer][0] for producer, _ in edges))
        if key not in self._links:
            to = self._device(chosen[name][0])
            ways = [(self._device(chosen[producer][0]), nbytes) for producer, nbytes in edges]
            self._links[key] = sum(self.estimates.machine.seconds(a, to, nbytes) for a, nbytes in ways)
        return self._links[key]

    def _moved(self, step: Step) -> list[tuple[str, float]]:
        """The steps before a step, with the bytes of all their rows."""
        flows = [(e.producer, self.estimates.flows.made(e.producer)) for e in step.edges]
        return [(p, f.rows * f.nbytes) for ref, f in flows for p in self._producers[ref]]

    def _device(self, lane: str) -> Device:
        return self.estimates.machine.device(lane)

    def _piece(self, step: Step, lanes: Choice) -> Piece:
        total = max(self.estimates.flows.rows(step), 1e-9)
        size = min(batch(step, lanes, self.estimates), max(1, round(total)))
        each = {d: self.estimates.seconds(step.name, self._device(d), size) for d in lanes}
        count = math.ceil(total / size - 1e-9)
        shares = _shares(count, each)
        loads = {d: shares[d] * each[d] for d in lanes}
        return Piece(loads, min(each.values()), max(loads.values()))

    def _path(self, chosen: Mapping[str, Choice]) -> float:
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}
        for name, lanes in chosen.items():
            step, piece = self.estimates.steps[name], self.piece(name, lanes)
            before = [p for e in step.edges for p in self._producers[e.producer] if p in ends]
            barrier = gathers(step.stage) is not None
            starts[name] = max(
                (ends[p] if barrier else self._begun(p, starts, chosen) for p in before), default=0
            )
            last = max((ends[p] + piece.first for p in before), default=0.0)
            ends[name] = max(starts[name] + piece.spread, last)
        return max(ends.values(), default=0.0)

    def _begun(self, name: str, starts: Mapping[str, float], chosen: Mapping[str, Choice]) -> float:
        return starts[name] + self.piece(name, chosen[name]).first


def _shares(count: int, each: Mapping[str, float]) -> dict[str, float]:
    """Batches for each lane, where every lane takes the next as soon as it is free, however slow it is.

    Beyond `COUNTED` batches by speed, but one at least: a slow lane has taken its first by then.
    """
    if count > COUNTED:
        speed = sum(1 / s for s in each.values())
        return {d: max(1.0, count / s / speed) for d, s in each.items()}
    shares = dict.fromkeys(each, 0.0)
    free = [(0.0, i, d) for i, d in enumerate(each)]
    for _ in range(count):
        ends, i, d = free[0]
        heapq.heapreplace(free, (ends + each[d], i, d))
        shares[d] += 1
    return shares
