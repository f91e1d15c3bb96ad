"""Seconds that no order of the batches can stay under: what simulations and quick guesses are held against.

*Load*: the linear program of unrelated machines, from below by weights of its dual: with weights of sum 1,
T >= sum over steps of the least over its lanes of weight * seconds (Lenstra, Shmoys, Tardos 1990). *Path*:
the rows through the steps one after another. Only what cannot be avoided counts: one opening of each state,
the fewest bytes over the best link, full batches. Flows are taken for exact, so rows must be whole numbers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline.estimate import Estimates
from pipeline.machine import HOST, Device
from pipeline.program import Edge, Step
from pipeline.spaces import Choice, batch
from pipeline.stage import gathers, state_key

Seconds = dict[str, float]


class Floor:
    """Of the placements of a program without loops, on one layout."""

    def __init__(self, estimates: Estimates) -> None:
        self.of = estimates
        self.steps = estimates.steps
        self.states = Counter(state_key(s.stage) for s in self.steps.values())

    def seconds(self, chosen: Mapping[str, Choice]) -> float:
        """At the least."""
        items = [self.work(self.steps[n], chosen) for n in chosen]
        return max(dual([*items, *self.openings(chosen)]), self.path(chosen))

    def device(self, lane: str) -> Device:
        return self.of.machine.device(lane)

    def row(self, step: Step, lanes: Choice) -> Seconds:
        """Of one row on each lane, where batches are as large as they may be."""
        most = max(1, min(batch(step, lanes, self.of), math.ceil(self.of.flows.rows(step))))
        return {
            d: min(self.of.seconds(step.name, self.device(d), n) / n for n in range(1, most + 1))
            for d in lanes
        }

    def work(self, step: Step, chosen: Mapping[str, Choice]) -> Seconds:
        """Of all rows on each lane, with the way there."""
        rows, row = self.of.flows.rows(step), self.row(step, chosen[step.name])
        return {
            d: rows * s + sum(self.link(e, d, chosen, full=True) for e in step.edges) for d, s in row.items()
        }

    def link(self, e: Edge, lane: str, chosen: Mapping[str, Choice], full: bool) -> float:
        """Of all bytes of an edge over the best link to a lane, or of none."""
        made = [self.device(d) for d in chosen.get(e.producer, ())] or [Device(HOST)]
        flow, machine, to = self.of.flows.made(e.producer), self.of.machine, self.device(lane)
        if not full:
            return min(machine.seconds(a, to, 0.0) for a in made) if flow.rows else 0.0
        nbytes = flow.rows * flow.nbytes
        return min(machine.seconds(a, to, nbytes) - machine.seconds(a, to, 0.0) for a in made)

    def openings(self, chosen: Mapping[str, Choice]) -> list[Seconds]:
        """Of each state, on each lane that might."""
        found: dict[tuple[object, ...], Seconds] = defaultdict(dict)
        for name, lanes in chosen.items():
            if self.of.flows.rows(self.steps[name]):
                found[state_key(self.steps[name].stage)] |= {
                    d: self.of.opening(name, self.device(d)) for d in lanes
                }
        return list(found.values())

    def path(self, chosen: Mapping[str, Choice]) -> float:
        """Until the last row has come through."""
        begun, ends = dict[str, float](), dict[str, float]()
        for name, lanes in chosen.items():
            step = self.steps[name]
            least = (
                min(self.of.seconds(name, self.device(d), 1) for d in lanes)
                if self.of.flows.rows(step)
                else 0.0
            )
            way = min(sum(self.link(e, d, chosen, full=False) for e in step.edges) for d in lanes)
            before = [e.producer for e in step.edges if e.producer in ends]
            start = max((ends[p] if gathers(step.stage) == 0 else begun[p] for p in before), default=0.0)
            start += way + (self.opening(step, lanes) if least else 0.0)
            begun[name] = start + least
            last = max((ends[p] + way + least for p in before), default=0.0)
            ends[name] = max(start + max(self.even(step, chosen), least), last)
        return max(ends.values(), default=0.0)

    def opening(self, step: Step, lanes: Choice) -> float:
        """Of the first batch, unless another step may have opened the same."""
        alone = self.states[state_key(step.stage)] == 1
        return min(self.of.opening(step.name, self.device(d)) for d in lanes) if alone else 0.0

    def even(self, step: Step, chosen: Mapping[str, Choice]) -> float:
        """Of all rows, dealt out as well as can be; where lanes are alike, one has so many whole rows."""
        work, row = self.work(step, chosen), set(self.row(step, chosen[step.name]).values())
        whole = math.ceil(self.of.flows.rows(step) / len(work)) * row.pop() if len(row) == 1 else 0.0
        return max(1 / sum(1 / s for s in work.values()) if all(work.values()) else 0.0, whole)


def dual(items: Sequence[Seconds]) -> float:
    """The best of some weights: all lanes of a step alike, or by its speed on them; and all of all."""
    sets = {tuple(i) for i in items} | {tuple({lane: 0 for i in items for lane in i})}
    weights = [dict.fromkeys(lanes, 1.0) for lanes in sets if lanes]
    weights += [{lane: 1 / s for lane, s in i.items()} for i in items if i and all(i.values())]
    return max((weighed(items, w) / sum(w.values()) for w in weights), default=0.0)


def weighed(items: Sequence[Seconds], weights: Seconds) -> float:
    return sum(min(s * weights.get(lane, 0.0) for lane, s in i.items()) for i in items)
