"""Where each step runs, in what batches and under which policies: a value, made before the run.

`place` is the plain rule, for graphs of which nothing else is known: a pinned step runs where it is
pinned, a step that gains from an accelerator on all accelerators of a kind, all else on the CPU. The
planner (`pipeline.planner`) starts from it and improves on it by what steps cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.errors import PlanError
from pipeline.machine import Device, Machine
from pipeline.policy import Job, Lane
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
class Way:
    """How a step's values reach those who read them: one of the ways of `pipeline.handover`, by name.

    `why`: what speaks against a cheaper one, where that is more than where the lanes are. `device`: the
    values hold tensors of a GPU.
    """

    name: str
    why: str = ""
    device: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement for each step, on lanes that exist.

    `window`: bytes that may wait between steps; `policies`: by name, see `pipeline.policies`; `jobs`: what
    these know of each step; `apart`: each lane in a process of its own, where the lanes are ours to make;
    `lossy`: vectors may travel as int8 between hosts (see `pipeline.compressed`).

    `ways`: of each step's values, and of what comes in, by `pipeline.handover.settled`, which sets `apart`
    too; empty until then. `live`: most bytes that are predicted to wait between steps; 0: not known.
    """

    machine: Machine
    placements: Mapping[str, Placement]
    window: int = WINDOW_BYTES
    policies: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = field(default=(), repr=False)
    apart: bool = False
    ways: Mapping[str, Way] = field(default_factory=dict, repr=False)
    live: int = 0
    lossy: bool = False

    def __post_init__(self) -> None:
        for step, placement in self.placements.items():
            if not placement.devices or placement.batch < 1:
                raise PlanError(f"step {step!r} needs a device and a batch of 1 or more, found {placement}")
            for name in placement.devices:
                self.machine.device(name)

    def table(self) -> list[tuple[str, str, str]]:
        """Step, devices with their threads, batch: for people."""
        names = {d.name: f"{d.name} ({d.threads} threads)" for d in self.machine.devices}
        return [(s, ", ".join(names[d] for d in p.devices), str(p.batch)) for s, p in self.placements.items()]


def place(
    program: Program, machine: Machine, window: int = WINDOW_BYTES, policies: tuple[str, ...] = ()
) -> Plan:
    """The plan of a program on a machine by the plain rule. Raises PlanError for a device it lacks."""
    placements = {s.name: Placement(names(allowed(s, machine)), rows(s)) for s in program.steps}
    jobs = tuple(_job(s, placements[s.name], machine) for s in program.steps)
    return Plan(machine, placements, window, policies, jobs)


def allowed(step: Step, machine: Machine) -> tuple[Device, ...]:
    """The lanes of the plain rule. Raises PlanError where the step is pinned to one it lacks."""
    if step.device is not None:
        return pinned(step, machine)
    cpus = tuple(d for d in machine.devices if d.kind == "cpu")
    others = tuple(d for d in machine.devices if d.kind != "cpu")
    cudas = tuple(d for d in others if d.kind == "cuda")
    return cudas if accelerated(step.stage) and cudas else cpus or cudas or others


def pinned(step: Step, machine: Machine) -> tuple[Device, ...]:
    """The lanes that a pinned step names: a device ("cuda:1"), or all of a kind ("cuda")."""
    kind = tuple(d for d in machine.devices if d.kind == step.device)
    try:
        return kind or (machine.device(step.device or ""),)
    except PlanError as error:
        raise PlanError(f"step {step.name!r} is pinned to device {step.device!r}: {error}") from None


def rows(step: Step) -> int:
    """Rows to a batch where nothing better is known: what the node says, else the stage."""
    return 1 if gathers(step.stage) is not None else step.batch or batch_size(step.stage)


def names(devices: tuple[Device, ...]) -> tuple[str, ...]:
    """Their names."""
    return tuple(d.name for d in devices)


def _job(step: Step, placement: Placement, machine: Machine) -> Job:
    lanes = {d: Lane(machine.device(d)) for d in placement.devices}
    return Job(step.name, placement.batch, placement.devices, lanes, loops=len(step.scope))
