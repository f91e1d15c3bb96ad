"""How good a placement can be, without simulating it: a lower bound that is cheap to compare by.

The larger of two times. *Load*: what the busiest lane has to do. *Path*: how long the rows take through
the steps one after another, where a gathering step waits for all of its rows and others overlap. Ours; the
load is the objective of PipeEdge (arXiv 2110.14895), without asking that a lane's steps are neighbours.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.estimate import Estimates
from pipeline.machine import Device
from pipeline.program import Program, Step
from pipeline.spaces import Choice, batch
from pipeline.stage import gathers, state_key


@dataclass(frozen=True, slots=True)
class Piece:
    """A step on its lanes. `loads`: seconds of work by lane; `first`: of one batch; `spread`: of all."""

    loads: Mapping[str, float]
    first: float
    spread: float


class Bounds:
    """Bounds of the placements of one program on one layout."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self._program = estimates.program
        self._pieces: dict[tuple[str, Choice], Piece] = {}
        self._producers = _producers(self._program)

    def bound(self, chosen: Mapping[str, Choice]) -> float:
        """Seconds that a run cannot stay under."""
        return max(max(self.loads(chosen).values(), default=0.0), self._path(chosen))

    def loads(self, chosen: Mapping[str, Choice]) -> dict[str, float]:
        """Seconds of work for each lane: batches, openings, and what it waits for over links."""
        found: dict[str, float] = defaultdict(float)
        opened: set[tuple[object, ...]] = set()
        for name, lanes in chosen.items():
            for lane, seconds in self.piece(name, lanes).loads.items():
                found[lane] += seconds
            for device in map(self._device, lanes):
                key = (device.name, *state_key(self._estimates.steps[name].stage))
                if key not in opened:
                    opened.add(key)
                    found[device.name] += self._estimates.opening(name, device)
            found[lanes[0]] += self.link(name, chosen)
        return dict(found)

    def piece(self, name: str, lanes: Choice) -> Piece:
        """A step on its lanes."""
        if (name, lanes) not in self._pieces:
            self._pieces[name, lanes] = self._piece(self._estimates.steps[name], lanes)
        return self._pieces[name, lanes]

    def link(self, name: str, chosen: Mapping[str, Choice]) -> float:
        """Seconds that all rows of a step need over the links to its first lane."""
        step, to = self._estimates.steps[name], self._device(chosen[name][0])
        seconds = 0.0
        for e in step.edges:
            for producer in self._producers[e.producer]:
                flow = self._estimates.flows.made(e.producer)
                start = self._device(chosen[producer][0])
                seconds += self._estimates.machine.seconds(start, to, flow.rows * flow.nbytes)
        return seconds

    def _device(self, lane: str) -> Device:
        return self._estimates.machine.device(lane)

    def _piece(self, step: Step, lanes: Choice) -> Piece:
        total = max(self._estimates.flows.rows(step), 1e-9)
        size = min(batch(step, lanes, self._estimates), max(1, round(total)))
        each = {d: self._estimates.seconds(step.name, self._device(d), size) for d in lanes}
        count = math.ceil(total / size - 1e-9)
        speeds = {d: 1 / s for d, s in each.items()}
        shares = {d: count * v / sum(speeds.values()) for d, v in speeds.items()}
        if len(set(each.values())) == 1:  # alike: whole batches, the first lanes get one more
            shares = {d: float(count // len(lanes) + (i < count % len(lanes))) for i, d in enumerate(lanes)}
        loads = {d: shares[d] * each[d] for d in lanes}
        return Piece(loads, min(each.values()), max(loads.values()))

    def _path(self, chosen: Mapping[str, Choice]) -> float:
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}
        for name, lanes in chosen.items():
            step, piece = self._estimates.steps[name], self.piece(name, lanes)
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


def _producers(program: Program) -> dict[str, Sequence[str]]:
    """The steps behind each producer; none behind a source, the last of a loop behind what it gives."""
    steps = {s.name for s in program.steps}
    outputs = {o: p for n in program.nodes if not isinstance(n, Step) for o, p in n.outputs.items()}
    found: dict[str, Sequence[str]] = defaultdict(tuple)
    for n in program.nodes:
        for e in n.edges:
            producer = e.producer
            while producer in outputs:
                producer = outputs[producer]
            found[e.producer] = (producer,) if producer in steps else ()
    return found
