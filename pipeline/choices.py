"""What stages choose by themselves when they are opened, told with a plan.

A stage that has more than one way to do its work may say which it would take on a device, and why:

    def choices(self, device: Device) -> tuple[Decision, ...]: ...     # optional
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.gates import Decision
from pipeline.planner import Planned


def choices(planned: Planned) -> Iterator[Decision]:
    """The choices of each step, on the first of its lanes of each kind."""
    machine = planned.plan.machine
    for step in planned.estimates.program.steps:
        say = getattr(step.stage, "choices", None)
        if say is None:
            continue
        lanes = [machine.device(name) for name in planned.plan.placements[step.name].devices]
        for lane in {lane.kind: lane for lane in reversed(lanes)}.values():
            for found in say(lane):
                yield replace(found, what=f"{found.what} of {step.name}", why=f"{step.name}: {found.why}")
