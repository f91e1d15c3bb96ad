"""Machines that are declared for this very computer: the lanes of a run as a file says, not as planned.

Several lanes may share cores: a wide one over all of them beside narrow ones, between which the policy
`modes` changes; the Scheduler never runs two at once that do. What the lanes deliver is measured here.
When not: without reasons of one's own the planner's lanes are better, as it compares all of them.
"""

from __future__ import annotations

from typing import Any

from pipeline import machine_file
from pipeline.errors import PlanError
from pipeline.machine import Machine, detect

DO = (
    "declare what is here, or leave --machine out; plans for a machine that one does not have are made by "
    "`ridgeway plan --machine`"
)


def lanes(client: Any, name: str) -> Machine | None:
    """The lanes that a run is bound to: those of the user's Dask cluster, or of the machine called `name`.

    None where neither is given: then the planner lays out this machine. Raises PlanError for both.
    """
    if client is None:
        return here(name) if name else None
    if name:
        raise PlanError("a Dask cluster has lanes of its own: leave out --machine, or --scheduler")
    from pipeline.cluster import lanes as workers

    return workers(client)[0]


def here(name: str) -> Machine:
    """The machine in a file, or the shipped one of that name, if this computer can be it.

    Raises PlanError where it cannot, and what `pipeline.machine_file.load` raises.
    """
    machine = machine_file.load(name)
    check(machine, detect())
    return machine


def check(machine: Machine, found: Machine) -> None:
    """Raise PlanError where `machine` has more than there was `found`: devices, or cores of the CPU."""
    away = [d.name for d in machine.devices if d.kind != "cpu" and d.name not in found.names]
    missing = [f"no {', '.join(away)}"] if away else []
    missing += _cores(machine, {core for d in found.lanes for core in d.cores})
    if missing:
        raise PlanError(f"this computer cannot be {machine.name!r}: it has {' and '.join(missing)}; {DO}")


def _cores(machine: Machine, own: set[int]) -> list[str]:
    """What CPU lanes ask for beyond the cores `own`; those that share one need it once."""
    cpus = [d for d in machine.devices if d.kind == "cpu"]
    named = {core for d in cpus for core in d.cores}
    strange = sorted(named - own)
    if strange:
        return [f"no core {', '.join(map(str, strange))} (only {', '.join(map(str, sorted(own)))})"]
    needed = len(named) + sum(d.threads for d in cpus if not d.cores)
    return [f"only {len(own)} of {needed} cores"] if needed > len(own) else []
