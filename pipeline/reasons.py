"""Why a plan is as it is: each decision with the numbers that made it, and what was rejected.

The gates of `pipeline.gates` and `pipeline.cuts`, fed with the estimates of one plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.cuts import Phases, Shapes, where_to_cut
from pipeline.gates import (
    Curve,
    Decision,
    crossover,
    duration,
    knee,
    offload,
    recompute_or_transfer,
)
from pipeline.machine import Device, Link
from pipeline.plan import Plan
from pipeline.planner import Planned
from pipeline.policy import Job, Lane
from pipeline.program import Step
from pipeline.spaces import offload_of
from pipeline.stage import accelerated


def reasons(planned: Planned) -> tuple[Decision, ...]:
    """Every decision behind a plan, in the order: machine, steps, edges."""
    return (*_layout(planned), *_threads(planned), *_steps(planned), *_cuts(planned), *_edges(planned))


def _layout(planned: Planned) -> Iterator[Decision]:
    """Which of the layouts and placements that were simulated is fastest."""
    if not planned.others:
        return
    seconds = planned.others[0][1]
    why = (
        f"{_told(planned)} takes {duration(planned.seconds)} by prediction, the next best {duration(seconds)}"
    )
    numbers = {"seconds": planned.seconds, "next best": seconds, "compared": float(planned.considered)}
    lost = tuple((_lanes(o), f"{duration(s)} predicted") for o, s in planned.others)
    yield Decision("placement", _told(planned), f"{why}; {planned.considered} were compared", numbers, lost)


def _told(planned: Planned) -> str:
    return _lanes(planned.plan)


def _lanes(plan: Plan) -> str:
    used = dict.fromkeys(d for p in plan.placements.values() for d in p.devices)
    return ", ".join(f"{d} ({plan.machine.device(d).threads} threads)" for d in sorted(used))


def _threads(planned: Planned) -> Iterator[Decision]:
    """How many threads a stream is worth (A6)."""
    curve = planned.plan.machine.by_threads
    if len(curve) > 1:
        yield knee("the CPU", {n: p.bandwidth for n, p in curve.items()})


def _steps(planned: Planned) -> Iterator[Decision]:
    """Of each step that could also run elsewhere: which device at which batch (H2), and whether both (H1)."""
    for j in planned.plan.jobs:
        if not accelerated(planned.estimates.steps[j.name].stage):
            continue
        fast, slow = _rivals(j)
        if fast is None or slow is None:
            continue
        total = round(planned.estimates.flows.rows(planned.estimates.steps[j.name]))
        yield crossover(j.name, _curve(fast), _curve(slow), max(1, min(j.batch, total)))
        yield offload(offload_of(j.name, j.batch, fast, slow, total))


def _rivals(j: Job) -> tuple[Lane | None, Lane | None]:
    """The fastest accelerator and the fastest CPU lane that could run a step."""
    cpus = [lane for lane in j.lanes.values() if lane.device.kind == "cpu"]
    others = [lane for lane in j.lanes.values() if lane.device.kind != "cpu"]

    def seconds(lane: Lane) -> float:
        return lane.seconds(j.batch)

    return min(others, key=seconds, default=None), min(cpus, key=seconds, default=None)


def _curve(lane: Lane) -> Curve:
    return Curve.affine(lane.name, max(lane.fixed, 1e-9), max(lane.per_row, 1e-12))


def _cuts(planned: Planned) -> Iterator[Decision]:
    """Of each model with phases: whether to cut it between the two fastest pools (B9)."""
    for j in planned.plan.jobs:
        shape_of = getattr(planned.estimates.steps[j.name].stage, "cut", None)
        fast, slow = _rivals(j)
        if shape_of is None or fast is None or slow is None:
            continue
        step = planned.estimates.steps[j.name]
        work = planned.estimates.flows.work(step, 1.0, fast.device.profile.auto())
        shapes, prefill, decode = shape_of(work)
        yield _cut(j.name, shapes, prefill, decode, (fast, slow), planned)


def _cut(
    name: str, shapes: Shapes, prefill: float, decode: float, lanes: tuple[Lane, Lane], planned: Planned
) -> Decision:
    """`prefill`, `decode`: shares of a row's time that the phases take, by formula."""
    each = tuple(lane.per_row for lane in lanes)
    phases = Phases(
        (lanes[0].name, lanes[1].name),
        (0.0, 0.0),
        (each[0] * prefill, each[1] * prefill),
        (each[0] * decode, each[1] * decode),
    )
    path = planned.plan.machine.path(lanes[0].device.pool, lanes[1].device.pool)
    return where_to_cut(name, shapes, phases, _joined(path))


def _joined(path: tuple[Link, ...]) -> Link:
    """Several links as one."""
    return Link(1 / sum(1 / link.bandwidth for link in path), sum(link.latency for link in path))


def _edges(planned: Planned) -> Iterator[Decision]:
    """Of each edge between two memories: send the bytes, or make them again where they are read (B18)."""
    machine, placed = planned.plan.machine, planned.plan.placements
    for step in planned.estimates.program.steps:
        to = machine.device(placed[step.name].devices[0])
        for e in step.edges:
            maker = planned.estimates.steps.get(e.producer)
            start = machine.device(placed[e.producer].devices[0]) if maker else None
            if maker is None or start is None or start.pool == to.pool:
                continue
            if planned.estimates.can_run(maker.name, to):
                yield _again(maker, step, start, to, planned)


def _again(maker: Step, step: Step, start: Device, to: Device, planned: Planned) -> Decision:
    flow = planned.estimates.flows.made(maker.name)
    rows = planned.plan.placements[maker.name].batch
    again = planned.estimates.seconds(maker.name, to, rows)
    link = _joined(planned.plan.machine.path(start.pool, to.pool))
    return recompute_or_transfer(f"{maker.name} for {step.name}", again, rows * flow.nbytes, link)
