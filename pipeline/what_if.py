"""What one more device would bring: the planner asked again, on machines that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.errors import PlanError
from pipeline.machine import HOST, Device, Link, Machine
from pipeline.planner import Planned, Planner
from pipeline.profiles import Profile

PCIE = Link(20e9, 10e-6)
"""What a card is taken to be attached by: PCI Express 4.0 x16, as it is delivered."""


def with_one_more(planned: Planned, cards: dict[str, Profile]) -> dict[str, float]:
    """Predicted seconds with one more of each kind of device that is there, and with each of `cards`."""
    found = {}
    for name, machine in _machines(planned.plan.machine, cards):
        try:
            found[name] = _seconds(planned, machine)
        except PlanError:
            continue  # a device that nothing of this program can use brings nothing
    return found


def _seconds(planned: Planned, machine: Machine) -> float:
    estimates = planned.estimates
    planner = Planner(
        estimates.program, machine, planned.sources, estimates.learned,
        planned.plan.window, planned.plan.policies, divide=False,
    )  # fmt: skip
    return planner.best().seconds


def _machines(machine: Machine, cards: dict[str, Profile]) -> Iterator[tuple[str, Machine]]:
    for device in {d.kind: d for d in machine.devices}.values():
        name = f"{device.kind}:{_next(machine, device.kind)}"
        more = replace(device, name=name, cores=())
        links = dict(machine.links)
        if device.pool != HOST:
            links[HOST, name] = machine.links.get((HOST, device.pool)) or PCIE
        yield f"one more {device.name}", replace(machine, devices=(*machine.devices, more), links=links)
    for card, profile in cards.items():
        name = f"cuda:{_next(machine, 'cuda')}"
        links = {**machine.links, (HOST, name): PCIE}
        devices = (*machine.devices, Device(name, profile=profile))
        yield f"a {card}", replace(machine, devices=devices, links=links)


def _next(machine: Machine, kind: str) -> int:
    numbers = [int(d.name.partition(":")[2]) for d in machine.devices if d.kind == kind and ":" in d.name]
    return max((n for n in numbers), default=-1) + 1
