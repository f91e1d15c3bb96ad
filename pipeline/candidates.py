"""What a planner weighs against each other, and what follows from one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pipeline.estimate import Estimates
from pipeline.plan import Placement
from pipeline.policy import Job
from pipeline.roofline import Flow
from pipeline.spaces import Choice
from pipeline.stage import gathers


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement on the `layout`-th layout: lanes by step."""

    layout: int
    chosen: tuple[Choice, ...]


def joined(here: Candidate, moved: Sequence[Candidate]) -> list[Candidate]:
    """The best moves of any two steps in one: neither need be good without the other."""
    best: dict[int, Choice] = {}
    for m in moved:
        at = next(i for i, c in enumerate(m.chosen) if c != here.chosen[i])
        best.setdefault(at, m.chosen[at])
    return [
        Candidate(here.layout, tuple({i: a, j: b}.get(at, c) for at, c in enumerate(here.chosen)))
        for (i, a), (j, b) in combinations(best.items(), 2)
    ]


def shrunk(flow: Flow, share: float) -> Flow:
    """A share of the rows, at least one of those that there are."""
    return replace(flow, rows=max(min(flow.rows, 1.0), round(flow.rows * share)))


def job(name: str, placement: Placement, estimates: Estimates) -> Job:
    """What policies know of a step: its cost on every lane that could run it."""
    step = estimates.steps[name]
    batch = placement.batch
    if gathers(step.stage) is None:
        batch = min(batch, max(1, round(estimates.flows.rows(step))))
    able = [d for d in estimates.machine.devices if estimates.can_run(name, d)]
    lanes = {d.name: estimates.lane(name, d, batch) for d in able}
    return Job(name, placement.batch, placement.devices, lanes, loops=len(step.scope))
