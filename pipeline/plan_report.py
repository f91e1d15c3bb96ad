"""A plan for people and for programs: what runs where, how long, bound by what, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.advice import bottleneck
from pipeline.bounds import Bounds
from pipeline.gates import Decision, duration, size
from pipeline.handover import edge_ways
from pipeline.machine import Device
from pipeline.plan import Way
from pipeline.planner import Planned
from pipeline.program import Step
from pipeline.reasons import reasons, short
from pipeline.roofline import intensity
from pipeline.simulate import Simulated

HEAD = ("step", "rows", "on", "batch", "dtype", "seconds", "bound by", "FLOP/B", "memory", "source")
EDGES = ("from", "to", "bytes", "way", "handed over")
NUMBERS = ("rows", "batch", "seconds", "FLOP/B", "memory", "bytes")
"""Columns that are read from the right."""

_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float8": "f8", "int8": "i8"}
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Line:
    """One step. `seconds`: of all its rows, on all its lanes; `memory`: bytes of state and of a batch."""

    step: str
    rows: float
    devices: tuple[str, ...]
    batch: int
    dtype: str
    seconds: float
    bound: str
    intensity: float
    memory: float
    source: str

    def cells(self) -> tuple[str, ...]:
        """For a table of 80 columns."""
        return (
            self.step, f"{self.rows:.0f}", short(self.devices), str(self.batch),
            _DTYPES.get(self.dtype, self.dtype), _three(self.seconds), self.bound,
            _three(self.intensity) if self.intensity else "", _bytes(self.memory), self.source,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EdgeLine:
    """One edge. `nbytes`: of all its rows; `way`: see `pipeline.handover`, and `why` no cheaper one.

    `transport`: "by reference", or another way within a memory; between two, the copy.
    """

    producer: str
    step: str
    nbytes: float
    transport: str
    way: str
    why: str

    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return self.producer, self.step, size(self.nbytes), self.way, self.transport


def _three(number: float) -> str:
    """To three digits, without an exponent where none is needed."""
    return f"{number:.0f}" if 100 <= number < 1e6 else f"{number:.3g}"


def _bytes(nbytes: float) -> str:
    """In seven characters."""
    unit = min(int(math.log2(nbytes) // 10), len(_BYTES) - 1) if nbytes >= 1 else 0
    found = nbytes / (1 << 10 * unit)
    return f"{found:.{int(unit > 0 and found < 100)}f}{_BYTES[unit]}" if nbytes else ""


def lines(planned: Planned) -> tuple[Line, ...]:
    """A line for each step, in order."""
    return tuple(_line(s, planned) for s in planned.estimates.program.steps)


def _line(step: Step, planned: Planned) -> Line:
    placement, estimates = planned.plan.placements[step.name], planned.estimates
    rows = estimates.flows.rows(step)
    device = planned.plan.machine.device(placement.devices[0])
    batch = max(1, min(placement.batch, round(rows)))
    guess = estimates.guess(step.name, device, batch)
    cost = guess.cost
    return Line(
        step.name, rows, placement.devices, placement.batch,
        cost.dtype if cost and cost.flops else "",
        sum(Bounds(estimates).piece(step.name, placement.devices).loads.values()),
        guess.bound, intensity(cost) if cost else 0.0,
        cost.resident + cost.scratch if cost else 0.0, guess.source,
    )  # fmt: skip


def edges(planned: Planned) -> tuple[EdgeLine, ...]:
    """A line for each edge, in order."""
    return tuple(_edge(e.producer, s, planned) for s in planned.estimates.program.steps for e in s.edges)


def _edge(producer: str, step: Step, planned: Planned) -> EdgeLine:
    ways = edge_ways(planned.estimates.program, planned.plan.ways, producer)
    way = " or ".join(dict.fromkeys(w.name for w in ways))
    why = "; ".join(w.why for w in ways if w.why)
    transport = _transport(producer, step, planned) or f"by {way}"
    return EdgeLine(producer, step.name, _crossing(producer, planned), transport, way, why)


def _crossing(producer: str, planned: Planned) -> float:
    flow = planned.estimates.flows.made(producer)
    return flow.rows * flow.nbytes


def _transport(producer: str, step: Step, planned: Planned) -> str:
    """The copy from memory to memory; empty within one."""
    placed, machine = planned.plan.placements, planned.plan.machine
    to = machine.device(placed[step.name].devices[0])
    start = machine.device(placed[producer].devices[0]) if producer in placed else machine.devices[0]
    if start.pool == to.pool:
        return ""
    seconds = machine.seconds(start, to, _crossing(producer, planned))
    return f"copied from {start.pool} to {to.pool}: {duration(seconds)}"


def summary(planned: Planned) -> Iterator[str]:
    """What is expected of the run, in a few lines."""
    timeline = planned.simulated.timeline
    yield f"predicted: {duration(planned.seconds)} on {planned.plan.machine.name}"
    found = bottleneck(timeline)
    if found is not None:
        yield f"bottleneck: {found.step} on {found.device}, busy {100 * found.share:.0f} % of the time"
    assumed = [line.step for line in lines(planned) if line.source == "assumed"]
    plain = [step for step in assumed if step not in planned.untried]
    if plain:
        yield f"nothing is known of {', '.join(plain)}: a run will measure them"
    yield from (
        f"{step}: assumed: not sampled, because {planned.untried[step]}; a run will measure it"
        for step in assumed
        if step in planned.untried
    )
    yield from _bill(planned.simulated, planned.seconds)
    yield from _handed(planned)
    if planned.plan.policies:
        yield f"policies: {', '.join(planned.plan.policies)}"


def _handed(planned: Planned) -> Iterator[str]:
    """How values are handed on, by step, and why no cheaper way is taken where something forbids it."""
    ways = {s.name: planned.plan.ways[s.name] for s in planned.estimates.program.steps}
    by_name = {name: [s for s, way in ways.items() if way.name == name] for name in _names(ways)}
    alike = len(by_name) == 1
    told = (f"by {name}" if alike else f"{', '.join(steps)} by {name}" for name, steps in by_name.items())
    yield f"values are handed on: {'; '.join(told)}"
    yield from (f"values of {step} go by {way.name}: {way.why}" for step, way in ways.items() if way.why)


def _names(ways: Mapping[str, Way]) -> list[str]:
    return list(dict.fromkeys(way.name for way in ways.values()))


def _bill(found: Simulated, seconds: float) -> Iterator[str]:
    scale = seconds / found.timeline.seconds if found.timeline.seconds else 0.0
    if found.bill.joules:
        yield f"energy: {found.bill.joules * scale / 3.6e6:.3g} kWh"
    if found.bill.dollars:
        yield f"cost: {found.bill.dollars * scale:.3g} USD"


def notes(planned: Planned) -> dict[str, str]:
    """A line for each step of a picture."""
    return {
        line.step: f"{short(line.devices)} · {line.batch} rows · {duration(line.seconds)}"
        f" · by {planned.plan.ways[line.step].name}"
        for line in lines(planned)
    }


def sentences(planned: Planned) -> Iterator[str]:
    """Every decision with its reason, and what was rejected."""
    for decision in reasons(planned):
        yield decision.why
        yield from (f"  not {other}: {why}" for other, why in decision.rejected)


def as_dict(planned: Planned, more: Mapping[str, float]) -> dict[str, Any]:
    """The plan for JSON. `more`: what an added device would bring, see `pipeline.what_if`."""
    timeline = planned.simulated.timeline
    found = bottleneck(timeline)
    return {
        "machine": planned.plan.machine.name,
        "devices": [_device(d) for d in planned.plan.machine.devices],
        "seconds": planned.seconds,
        "bottleneck": None if found is None else {"step": found.step, "device": found.device},
        "steps": [_record(line) | _way(planned.plan.ways[line.step]) for line in lines(planned)],
        "edges": [_record(line) for line in edges(planned)],
        "apart": planned.plan.apart,
        "policies": list(planned.plan.policies),
        "window_bytes": planned.plan.window,
        "decisions": [_decision(d) for d in reasons(planned)],
        "with_one_more": dict(more),
        "joules": planned.simulated.bill.joules,
        "usd": planned.simulated.bill.dollars,
        "considered": planned.considered,
        "untried": dict(planned.untried),
    }


def _record(line: Line | EdgeLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in line.__dataclass_fields__}


def _way(way: Way) -> dict[str, str]:
    return {"way": way.name, "why_this_way": way.why}


def _device(device: Device) -> dict[str, Any]:
    return {"name": device.name, "threads": device.threads, "pool": device.pool}


def _decision(d: Decision) -> dict[str, Any]:
    return {
        "what": d.what,
        "chosen": d.chosen,
        "why": d.why,
        "numbers": dict(d.numbers),
        "rejected": [{"what": what, "why": why} for what, why in d.rejected],
    }
