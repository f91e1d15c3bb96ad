"""A program that is a chain, as the exact planner of chains sees it: one run of neighbouring steps a device.

PipeEdge's model (`pipeline.chains`) asks less of a plan than ours may give, where lanes take turns at any
steps; but its answer is proven, so it is one of the placements that the search starts from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.bounds import Bounds
from pipeline.chains import MOST_DEVICES, Chain, Chained, place_chain
from pipeline.errors import PlanError
from pipeline.estimate import Estimates
from pipeline.machine import Device
from pipeline.program import Program, Step
from pipeline.spaces import Choice


def is_chain(program: Program) -> bool:
    """Whether each step reads the one before it alone, and the first a source."""
    steps = program.steps
    before = [*list(program.sources)[:1], *(s.name for s in steps)]
    alone = all([e.producer for e in s.edges] == [before[i]] for i, s in enumerate(steps))
    return alone and len(steps) == len(program.nodes) and len(program.sources) == 1


def best_runs(estimates: Estimates, bounds: Bounds) -> tuple[tuple[Choice, ...], Chained] | None:
    """The lane of each step, and what the exact planner says of it; None where it does not apply.

    It does not apply to other graphs, pinned steps, more devices than it takes, or where nothing fits.
    """
    devices, steps = estimates.machine.devices, estimates.program.steps
    pinned = any(s.device is not None for s in steps)
    if pinned or len(devices) > MOST_DEVICES or not is_chain(estimates.program):
        return None
    try:
        found = place_chain(_chain(estimates, bounds, steps, devices))
    except PlanError:
        return None  # a device alone may not hold what several lanes could
    return tuple((devices[at].name,) for at in found.devices), found


def _chain(estimates: Estimates, bounds: Bounds, steps: Sequence[Step], devices: Sequence[Device]) -> Chain:
    flows = [estimates.flows.made(s.name) for s in steps[:-1]]
    costs = [estimates.cost(s.name, devices[0], 1) for s in steps]
    return Chain(
        seconds=tuple(tuple(_seconds(estimates, bounds, s, d) for d in devices) for s in steps),
        memory=tuple(c.resident if c else 0.0 for c in costs),
        capacity=tuple(d.profile.memory for d in devices),
        links=tuple(
            tuple(tuple(estimates.machine.seconds(a, b, f.rows * f.nbytes) for b in devices) for a in devices)
            for f in flows
        ),
        stages=tuple(s.name for s in steps),
        devices=tuple(d.name for d in devices),
    )


def _seconds(estimates: Estimates, bounds: Bounds, step: Step, device: Device) -> float:
    """All rows of a step on one lane."""
    if not estimates.can_run(step.name, device):
        return math.inf
    return bounds.piece(step.name, (device.name,)).spread
