"""Why a plan is as it is: each decision with the numbers that made it, and what was rejected.

The gates of `pipeline.gates` and `pipeline.cuts`, fed with the estimates of one plan. A gate looks at one
step or edge alone, the planner at all of them: where the plan is not what a gate says, that is told too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.bounds import Bounds
from pipeline.choices import choices
from pipeline.cuts import NONE, Phases, where_to_cut
from pipeline.gates import (
    Curve,
    Decision,
    crossover,
    duration,
    equal_split,
    knee,
    offload,
    recompute_or_transfer,
)
from pipeline.machine import Device, Link
from pipeline.pipelined import best_runs
from pipeline.plan import Plan
from pipeline.planner import Planned
from pipeline.policy import Job, Lane
from pipeline.program import Step
from pipeline.roofline import Cost, seconds
from pipeline.spaces import batch, offload_of
from pipeline.stage import accelerated

SHOWN = 3
"""Steps that are named where a plan that was rejected differs."""
TOLD = 5
"""Plans that were rejected that are told of, the best first."""


def reasons(planned: Planned) -> tuple[Decision, ...]:
    """Every decision behind a plan, in the order: machine, steps, edges."""
    kinds = (_layout, _runs, _threads, _batches, _steps, choices, _cuts, _edges)
    return tuple(decision for kind in kinds for decision in kind(planned))


def short(names: Iterable[str]) -> str:
    """Names of lanes, neighbours of a kind together: "cpu:0-3, cuda:0"."""
    runs: list[tuple[str, int, int]] = []
    told: list[str] = []
    for name in names:
        kind, _, number = name.partition(":")
        at = int(number) if number.isdecimal() else -1
        if runs and at > 0 and runs[-1][0] == kind and runs[-1][2] == at - 1:
            runs[-1] = (kind, runs[-1][1], at)
            told[-1] = f"{kind}:{runs[-1][1]}-{at}"
        else:
            runs.append((kind, at, at))
            told.append(name)
    return ", ".join(told)


def _layout(planned: Planned) -> Iterator[Decision]:
    """Which of the layouts and placements that were simulated is fastest."""
    if not planned.others:
        return
    chosen, took = _lanes(planned.plan), planned.others[0][1]
    why = f"{chosen} takes {duration(planned.seconds)} by prediction, the next best {duration(took)}"
    numbers = {"seconds": planned.seconds, "next best": took, "compared": float(planned.considered)}
    lost: dict[str, str] = {}
    for other, its in planned.others:  # the best of those that are told alike
        lost.setdefault(_apart(planned.plan, other), f"{duration(its)} predicted")
    told = tuple(lost.items())[:TOLD]
    yield Decision("placement", chosen, f"{why}; {planned.considered} were compared", numbers, told)


def _lanes(plan: Plan) -> str:
    """The lanes that a plan uses, with the threads of those of the CPU."""
    used = {d for p in plan.placements.values() for d in p.devices}
    lanes = [d for d in plan.machine.devices if d.name in used]
    threads = sorted({d.threads for d in lanes if d.kind == "cpu"})
    wide = f" ({'/'.join(map(str, threads))} threads each)" if threads else ""
    cpus, others = (short(d.name for d in lanes if (d.kind == "cpu") == at) for at in (True, False))
    return ", ".join(part for part in (f"{cpus}{wide}" if cpus else "", others) if part)


def _apart(plan: Plan, other: Plan) -> str:
    """What makes another plan another: its lanes, else the steps that it has elsewhere."""
    if _lanes(plan) != _lanes(other):
        return _lanes(other)
    pairs = [(s, p.devices) for s, p in other.placements.items() if p.devices != plan.placements[s].devices]
    if not pairs:
        return f"the same with lanes {short(other.machine.names)}"
    told = [f"{step} on {short(lanes)}" for step, lanes in pairs[:SHOWN]]
    return ", ".join(told) + (f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else "")


def _runs(planned: Planned) -> Iterator[Decision]:
    """Of a chain: the best that single devices can do, each with neighbouring steps (B16)."""
    proven = best_runs(planned.estimates, Bounds(planned.estimates))
    if proven is None:
        return
    lanes, chain = proven
    chosen = ", ".join(dict.fromkeys(name for (name,) in lanes))
    kind, at = chain.bound_by
    held = lanes[0][0] if kind == "link" else planned.plan.machine.devices[at].name
    why = (
        f"with each step on one device, neighbours together, the busiest part takes at best "
        f"{duration(chain.bottleneck)} ({kind} {held}): proven; the plan takes {duration(planned.seconds)}, "
        f"opening included"
    )
    numbers = {"bottleneck": chain.bottleneck, "latency": chain.latency}
    yield Decision("runs of steps", chosen, why, numbers)


def _threads(planned: Planned) -> Iterator[Decision]:
    """How many threads a stream is worth (A6)."""
    curve = planned.plan.machine.by_threads
    if len(curve) > 1:
        yield knee("the CPU", {n: p.bandwidth for n, p in curve.items()})


def _batches(planned: Planned) -> Iterator[Decision]:
    """Of each step whose batch memory makes smaller than it would be."""
    for step in planned.estimates.program.steps:
        placement = planned.plan.placements[step.name]
        wanted = batch(step, placement.devices, planned.estimates)
        if placement.batch < wanted:
            why = f"{step.name} takes {placement.batch} rows to a batch: {wanted} do not fit into memory"
            numbers = {"rows": float(placement.batch), "wanted": float(wanted)}
            yield Decision(f"batch of {step.name}", str(placement.batch), why, numbers)


def _steps(planned: Planned) -> Iterator[Decision]:
    """Of each step that could also run elsewhere: which device at which batch (H2), and whether both (H1)."""
    for j, step, other, cpu in _rivals(planned):
        total = round(planned.estimates.flows.rows(step))
        at = max(1, min(j.batch, total))
        lanes = planned.plan.placements[j.name].devices
        yield _placed(crossover(j.name, _curve(other), _curve(cpu), at), step, lanes)
        fast, slow = sorted((other, cpu), key=lambda lane: lane.seconds(at))
        yield _shared(offload(offload_of(j.name, at, fast, slow, total)), (fast, slow), lanes)
        if {other.name, cpu.name} <= set(lanes) and total > 1:  # both run it: how rows fall to them (B6)
            yield replace(equal_split(j.name, _curve(other), _curve(cpu), total), what=f"rows of {j.name}")


def _rivals(planned: Planned) -> Iterator[tuple[Job, Step, Lane, Lane]]:
    """Steps that have a choice, each with the fastest accelerator and the fastest CPU lane for it."""
    for j in planned.plan.jobs:
        step = planned.estimates.steps[j.name]
        cpus = [lane for lane in j.lanes.values() if lane.device.kind == "cpu"]
        others = [lane for lane in j.lanes.values() if lane.device.kind != "cpu"]
        if accelerated(step.stage) and cpus and others:
            yield j, step, _fastest(others, j.batch), _fastest(cpus, j.batch)


def _fastest(lanes: Iterable[Lane], batch: int) -> Lane:
    return min(lanes, key=lambda lane: lane.seconds(batch))


def _curve(lane: Lane) -> Curve:
    return Curve.affine(lane.name, max(lane.fixed, 1e-9), max(lane.per_row, 1e-12))


def _placed(found: Decision, step: Step, lanes: tuple[str, ...]) -> Decision:
    """What decides for a step alone, and where the plan has it."""
    if found.chosen.partition(":")[0] in {name.partition(":")[0] for name in lanes}:
        return found
    cause = "no placement compared that has it there is faster"
    if step.device is not None:
        cause = f"it is pinned to {step.device}"
    alone = found.why.replace(f"{step.name} runs on", f"{step.name} alone is fastest on", 1)
    why = f"{alone}; the plan has it on {short(lanes)}: {cause}"
    return replace(found, chosen=short(lanes), why=why, rejected=((found.chosen, cause),))


def _shared(found: Decision, pair: tuple[Lane, Lane], lanes: tuple[str, ...]) -> Decision:
    """What the gate says of two devices, and whether the plan uses both."""
    kinds = {name.partition(":")[0] for name in lanes}
    if found.chosen == "device only" or {lane.device.kind for lane in pair} <= kinds:
        return found
    cause = "no placement compared that uses both is faster"
    why, lost = f"{found.why}; the plan keeps it on {short(lanes)}: {cause}", ((found.chosen, cause),)
    return replace(found, chosen="device only", why=why, rejected=lost)


def _cuts(planned: Planned) -> Iterator[Decision]:
    """Of each model with phases: whether to cut it between the two fastest pools (B9)."""
    for j, step, other, cpu in _rivals(planned):
        shape_of = getattr(step.stage, "cut", None)
        if shape_of is None or not getattr(step.stage, "splits", True):
            continue
        prefill, decode = [], []
        for lane in (other, cpu):
            work = planned.estimates.flows.work(step, j.batch, lane.device.profile.auto())
            shapes, *costs = shape_of(work)
            first, second = _shares(costs, lane, j.batch)
            prefill.append(first)
            decode.append(second)
        phases = Phases((other.name, cpu.name), (0.0, 0.0), (prefill[0], prefill[1]), (decode[0], decode[1]))
        link = _joined(planned.plan.machine.path(other.device.pool, cpu.device.pool))
        yield _whole(where_to_cut(j.name, shapes, phases, link))


def _shares(costs: Iterable[Cost], lane: Lane, rows: int) -> list[float]:
    """Seconds of each phase for a row of a batch: the estimate for both, divided as their formulas are."""
    each = [seconds(cost, lane.device) for cost in costs]
    return [(lane.fixed / rows + lane.per_row) * s / sum(each) for s in each]


def _whole(found: Decision) -> Decision:
    """A stage runs whole: what would gain from a cut is told, and that it takes two stages."""
    if found.chosen == NONE:
        return found
    return replace(
        found, why=f"{found.why}; this stage runs whole, so it would take one stage for each phase"
    )


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
    flow, rows = planned.estimates.flows.made(maker.name), planned.estimates.flows.rows(maker)
    batch = max(1, min(planned.plan.placements[maker.name].batch, round(rows)))
    again = planned.estimates.seconds(maker.name, to, batch)
    link = _joined(planned.plan.machine.path(start.pool, to.pool))
    nbytes = flow.nbytes * flow.rows * batch / max(rows, 1.0)
    found = recompute_or_transfer(f"{maker.name} for {step.name}", again, nbytes, link)
    if found.chosen == "transfer":
        return found
    return replace(found, why=f"{found.why}; a run sends it: `device: {to.name}` makes {maker.name} there")
