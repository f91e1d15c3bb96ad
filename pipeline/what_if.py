"""Questions to a plan: what would one more device bring, and is it done by a deadline?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pipeline.bounds import Bounds
from pipeline.errors import PlanError
from pipeline.machine import HOST, Device, Link, Machine
from pipeline.plan import Placement
from pipeline.planner import Planned, Planner
from pipeline.policies.deadline import Admission, Segment, admit
from pipeline.profiles import Profile
from pipeline.spaces import groups

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
    for alike in groups(machine.devices):
        device = alike[0]
        name = f"{device.kind}:{_next(machine, device.kind)}"
        more, links = replace(device, name=name, cores=()), dict(machine.links)
        if more.pool == name:
            links[HOST, name] = machine.path(HOST, device.pool)[0]
        yield f"one more like {device.name}", replace(machine, devices=(*machine.devices, more), links=links)
    for card, profile in cards.items():
        name = f"cuda:{_next(machine, 'cuda')}"
        links = {**machine.links, (HOST, name): PCIE}
        devices = (*machine.devices, Device(name, profile=profile))
        yield f"a {card}", replace(machine, devices=devices, links=links)


def _next(machine: Machine, kind: str) -> int:
    numbers = [int(d.name.partition(":")[2]) for d in machine.devices if d.kind == kind and ":" in d.name]
    return max((n for n in numbers), default=-1) + 1


def admission(planned: Planned, deadline: float) -> Admission:
    """Whether a run is done in `deadline` seconds for certain (A12, see `pipeline.policies.deadline`).

    Steps are taken to run one after another, and batches to take as much longer than estimated as the
    slowest that was measured; so a run is mostly done earlier. Where nothing was measured, formulas stand,
    which are bounds from below. Raises PlanError for a deadline that is none.
    """
    placed = planned.plan.placements
    free: dict[str, int] = {}
    for placement in placed.values():
        free[_resource(placement)] = max(free.get(_resource(placement), 1), len(placement.devices))
    segments = [_segment(name, p, free[_resource(p)], planned) for name, p in placed.items()]
    return admit(deadline, segments, free=free)


def check_deadline(planned: Planned, deadline: float) -> None:
    """Raise PlanError where a run may miss its deadline, naming the step that takes longest."""
    found = admission(planned, deadline)
    if not found.ok:
        raise PlanError(f"the deadline may be missed: the run {found.why}")


def _resource(placement: Placement) -> str:
    """Lanes of the same kinds are granted together."""
    return " and ".join(dict.fromkeys(name.partition(":")[0] for name in placement.devices))


def _segment(step: str, placement: Placement, free: int, planned: Planned) -> Segment:
    """A step on 1, 2, ... of the `free` lanes, of which it can use those of its placement; then on more."""
    estimates, own = planned.estimates, len(placement.devices)
    rows = math.ceil(estimates.flows.rows(estimates.steps[step]))
    size = max(1, min(placement.batch, rows))
    devices = [planned.plan.machine.device(name) for name in placement.devices]
    batch = max(estimates.seconds(step, d, size) * _slowest(step, d, planned) for d in devices)
    once = max(estimates.opening(step, d) for d in devices)
    once += Bounds(estimates).link(step, {s: p.devices for s, p in planned.plan.placements.items()})
    used = [min(n, own) if n <= free else own + n - free for n in range(1, 2 * free + 1)]
    each = batch + planned.plan.machine.handoff
    return Segment(step, _resource(placement), tuple(once + math.ceil(rows / size / n) * each for n in used))


def _slowest(step: str, device: Device, planned: Planned) -> float:
    """The seconds of the slowest batch that was measured, by those estimated for it; 1 or more."""
    estimates = planned.estimates
    points = estimates.learned.of(estimates.steps[step].stage, device)
    told = [(p.seconds, estimates.seconds(step, device, p.rows, p.length / p.rows)) for p in points if p.rows]
    return max([1.0, *(took / guess for took, guess in told if guess > 0)])


def told(found: Admission, deadline: float) -> Mapping[str, object]:
    """An admission for JSON."""
    return {
        "deadline": deadline, "ok": found.ok, "seconds": found.seconds, "binding": found.binding,
        "why": found.why, "lanes": dict(found.lanes),
    }  # fmt: skip
