"""What a planner may choose from: layouts of the machine, lanes for each step, batch sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pipeline.errors import PlanError
from pipeline.estimate import Estimates
from pipeline.gates import Offload, offload
from pipeline.machine import Device, Machine
from pipeline.memory import Footprint, footprint, largest_batch
from pipeline.plan import Placement, pinned, rows
from pipeline.policy import Lane
from pipeline.program import Step
from pipeline.stage import accelerated, gathers

WORTH = 0.03
"""A batch size that gains less than this share of a row's time is not worth leaving the default for."""

Choice = tuple[str, ...]
"""Names of the lanes of a step."""


@dataclass(frozen=True, slots=True)
class Space:
    """The placements of a program's steps on one layout. `choices`: the lanes that each may have."""

    machine: Machine
    steps: tuple[str, ...]
    choices: tuple[tuple[Choice, ...], ...]

    @property
    def size(self) -> int:
        """How many placements there are."""
        count = 1
        for found in self.choices:
            count *= len(found)
        return count


def space(estimates: Estimates) -> Space:
    """All that the machine of `estimates` allows. Raises PlanError for a step that nothing here can run."""
    steps = estimates.program.steps
    return Space(
        estimates.machine,
        tuple(s.name for s in steps),
        tuple(_choices(s, estimates) for s in steps),
    )


def _choices(step: Step, estimates: Estimates) -> tuple[Choice, ...]:
    machine = estimates.machine
    at = pinned(step, machine) if step.device is not None else machine.devices
    able = [d for d in at if estimates.can_run(step.name, d)]
    if not able:
        raise PlanError(_nowhere(step, at))
    if step.device is not None:
        return (tuple(d.name for d in able),)
    alike = groups(able)
    apart = [g for size in (1, 2) for g in combinations(alike, size) if _may_join(step, g, estimates)]
    if len(alike) > 2 and len(apart) == len(alike) * (len(alike) + 1) / 2:  # any two may, so all may
        apart.append(tuple(alike))
    whole = [tuple(d.name for d in able if d in [x for g in a for x in g]) for a in apart]
    single = [(g[at].name,) for g in alike if len(g) > 1 for at in (0, -1)]
    return tuple(dict.fromkeys([*whole, *single]))


def _nowhere(step: Step, at: Sequence[Device]) -> str:
    names = ", ".join(d.name for d in at)
    if step.device is not None and not accelerated(step.stage):
        kind = type(step.stage).__name__
        return (
            f"step {step.name!r} is pinned to {step.device!r}, but {kind} runs on CPUs only; remove `device`"
        )
    return f"step {step.name!r} can run on none of {names}: add a CPU lane to the machine"


def groups(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Lanes that are alike, together: of one kind, with the same threads and numbers."""
    found: dict[tuple[object, ...], list[Device]] = defaultdict(list)
    for d in devices:
        p = d.profile
        peaks = tuple(sorted(p.peaks.items()))
        found[d.kind, d.threads, peaks, p.bandwidth, p.memory, p.scalar, p.overhead].append(d)
    return [tuple(g) for g in found.values()]


def _may_join(step: Step, alike: tuple[tuple[Device, ...], ...], estimates: Estimates) -> bool:
    """Groups that may share a step: accelerators among each other; a CPU where the gate of APEX allows."""
    if len(alike) == 1 or all(g[0].kind != "cpu" for g in alike):
        return True
    if set(alike[0][0].cores) & {core for d in alike[1] for core in d.cores}:
        return False  # they never run at once: which of them does is for a policy to say
    usual = rows(step)
    first, second = sorted(alike, key=lambda g: g[0].kind == "cpu")
    fast, slow = (estimates.lane(step.name, g[0], usual) for g in (first, second))
    total = round(estimates.flows.rows(step))
    return offload(offload_of(step.name, usual, fast, slow, total)).chosen != "device only"


def offload_of(step: str, batch: int, fast: Lane, slow: Lane, rows: int) -> Offload:
    """What the gate of APEX wants to know of a step of so many rows on two lanes."""
    speeds = (1 / max(fast.per_row, 1e-12), 1 / slow.per_row if slow.per_row else 0.0)
    devices = (fast.name, slow.name)
    return Offload(step, devices, fast.fixed, fast.per_row * batch, *speeds, max(0, rows - batch))


def batch(step: Step, lanes: Choice, estimates: Estimates) -> int:
    """Rows to a batch: the default, or another power of two times it where a row then costs clearly less.

    What the node says stands. Batches stay small enough that every lane gets some.
    """
    usual = rows(step)
    if gathers(step.stage) is not None or step.batch is not None or not accelerated(step.stage):
        return usual
    device = estimates.machine.device(lanes[0])
    most = max(1, round(estimates.flows.rows(step) / (2 * len(lanes))))
    sizes = [n for n in (usual // 2, usual, usual * 2, usual * 4) if 1 <= n <= max(most, usual)]
    each = {n: estimates.seconds(step.name, device, n) / n for n in sizes}
    best = min(sizes, key=lambda n: (each[n], n))
    return best if each[best] < (1 - WORTH) * each[usual] else usual


def fitted(here: Space, chosen: Sequence[Choice], estimates: Estimates, window: int) -> dict[str, Placement]:
    """The placement of every step for a choice of lanes for each, with batches that fit into memory.

    What stays in a memory is counted once for all steps that share it; the values that wait between steps
    may take `window` bytes, or an eighth of a small memory. Raises PlanError where not one row fits.
    """
    pairs = zip(here.steps, chosen, strict=True)
    placed = {n: Placement(lanes, batch(estimates.steps[n], lanes, estimates)) for n, lanes in pairs}
    stays = resident(placed, estimates)
    for name, placement in placed.items():
        size = placement.batch
        for device in (estimates.machine.device(d) for d in placement.devices):
            room = device.profile.memory - min(window, device.profile.memory / 8)
            size = largest_batch(name, size, _need(name, device, stays[device.pool], estimates), room)
        placed[name] = replace(placement, batch=size)
    return placed


def _need(step: str, device: Device, stays: float, estimates: Estimates) -> Callable[[int], Footprint]:
    """What a batch takes on a device, with all that stays in its memory."""

    def need(rows: int) -> Footprint:
        cost = estimates.cost(step, device, rows)
        if cost is None:
            return Footprint(stays, 0.0, 0.0)
        work = estimates.flows.work(estimates.steps[step], rows)
        return replace(footprint(cost, work), resident=stays)

    return need


def resident(placed: Mapping[str, Placement], estimates: Estimates) -> dict[str, float]:
    """Bytes that stay in each memory pool: every state once for each lane that uses it."""
    states: dict[tuple[object, ...], float] = {}
    pools: dict[str, float] = defaultdict(float)
    for name, placement in placed.items():
        for device in (estimates.machine.device(d) for d in placement.devices):
            cost = estimates.cost(name, device, placement.batch)
            key = (device.name, *estimates.states[name])
            more = max(0.0, (cost.resident if cost else 0.0) - states.get(key, 0.0))
            states[key] = states.get(key, 0.0) + more
            pools[device.pool] += more
    return dict(pools)
