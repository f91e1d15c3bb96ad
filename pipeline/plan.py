"""Where each step runs and in what batches: a value, made before the run.

The rule is simple until the planner comes: a pinned step runs where it is pinned; a step that gains
from an accelerator runs on all accelerators of a kind, or on the CPU where there is none; everything
else runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import PlanError
from pipeline.machine import Device, Machine
from pipeline.program import Program, Step
from pipeline.stage import accelerated, batch_size, gathers

WINDOW_BYTES = 1 << 30
"""Bytes of values that may wait between steps before new work is held back."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`devices`: the lanes a step may run on; `batch`: the most rows at once, or groups if it gathers."""

    devices: tuple[str, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement for each step, on lanes that exist."""

    machine: Machine
    placements: Mapping[str, Placement]
    window: int = WINDOW_BYTES

    def table(self) -> list[tuple[str, str, str]]:
        """Step, devices with their threads, batch: for people."""
        names = {d.name: f"{d.name} ({d.threads} threads)" for d in self.machine.devices}
        return [(s, ", ".join(names[d] for d in p.devices), str(p.batch)) for s, p in self.placements.items()]


def place(program: Program, machine: Machine, window: int = WINDOW_BYTES) -> Plan:
    """The plan of a program on a machine. Raises PlanError for a device that is not there."""
    return Plan(machine, {s.name: _placement(s, machine) for s in program.steps}, window)


def _placement(step: Step, machine: Machine) -> Placement:
    cpus = tuple(d for d in machine.devices if d.kind == "cpu")
    cudas = tuple(d for d in machine.devices if d.kind == "cuda")
    lanes: tuple[Device, ...] = cudas if accelerated(step.stage) and cudas else cpus or cudas
    if step.device is not None:
        try:
            lanes = (machine.device(step.device),)
        except PlanError as error:
            raise PlanError(f"step {step.name!r} is pinned to device {step.device!r}: {error}") from None
    batch = 1 if gathers(step.stage) is not None else step.batch or batch_size(step.stage)
    return Placement(tuple(d.name for d in lanes), batch)
