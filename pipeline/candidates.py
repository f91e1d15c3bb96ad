"""What a planner weighs against each other, and what follows from one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from pipeline.estimate import Estimates
from pipeline.plan import Placement
from pipeline.policy import Job, Lane
from pipeline.program import Step
from pipeline.roofline import Flow
from pipeline.spaces import Choice
from pipeline.stage import gathers, pads
from pipeline.wiring import owned


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


def job(name: str, placed: Mapping[str, Placement], estimates: Estimates) -> Job:
    """What policies know of a step: its cost on every lane that could run it, and the way there."""
    step, placement = estimates.steps[name], placed[name]
    batch = placement.batch
    if gathers(step.stage) is None:
        batch = min(batch, max(1, round(estimates.flows.rows(step))))
    able = [d for d in estimates.machine.devices if estimates.can_run(name, d)]
    homes = {n: p.devices for n, p in placed.items()}
    links = {d.name: estimates.link(name, d, batch, homes) for d in able}
    lanes = {d.name: _bent(name, estimates.lane(name, d, batch), batch, estimates) for d in able}
    lanes = {n: replace(lane, link=links[n]) for n, lane in lanes.items()}
    transfer = _transfer(step, placement, estimates)
    return Job(name, placement.batch, placement.devices, lanes, transfer, len(step.scope))


def _bent(name: str, lane: Lane, batch: int, estimates: Estimates) -> Lane:
    """The lane with its `bend`: a full batch of rows twice as long takes more than twice as long by it.

    With beta L + gamma L^2 = r for a row of mean length L and 2 beta L + 4 gamma L^2 = s for one of 2 L (all
    but `fixed`), gamma L^2 is s / 2 - r. Ours.
    """
    step = estimates.steps[name]
    mean = estimates.flows.length(step) if pads(step.stage) else 0.0
    if not mean or not lane.per_row:
        return lane
    whole = (estimates.seconds(name, lane.device, batch, mean * k) - lane.fixed for k in (1, 2))
    once, twice = (max(0.0, seconds) for seconds in whole)
    return replace(lane, bend=min(1.0, max(0.0, twice / 2 / once - 1)) if once else 0.0)


def _transfer(step: Step, placement: Placement, estimates: Estimates) -> float:
    """Seconds to move a row of a full batch between two planned lanes, over the slowest link. Ours."""
    machine = estimates.machine
    pools = list({d.pool: d for d in map(machine.device, placement.devices)}.values())
    if len(pools) < 2:
        return 0.0
    work, gathered = estimates.flows.work(step, placement.batch), gathers(step.stage) is not None
    own = (work.port(e.port) for e in step.edges if gathered or owned(step, e))
    nbytes = sum(flow.rows * flow.nbytes for flow in own)
    return max(machine.seconds(a, b, nbytes) for a, b in pairwise(pools)) / placement.batch
