"""What the commands `plan`, `simulate` and `draw --plan` do: look ahead, and tell what they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import machine_file, plan_report
from pipeline import questions as question_files
from pipeline.advice import advice, idle
from pipeline.errors import PlanError, RidgewayError
from pipeline.gates import duration
from pipeline.graph import Graph
from pipeline.invent import given
from pipeline.lookup import near_miss
from pipeline.machine import Machine
from pipeline.planner import Planned
from pipeline.planning import experience, flow_of, measured, plan_flows
from pipeline.program import flatten
from pipeline.report import console, print_json, table
from pipeline.roofline import Flow
from pipeline.simulate import Simulated, simulate
from pipeline.values import Documents, Queries, Rows
from pipeline.what_if import with_one_more

CARDS = ("rtx-4090", "l40s")
"""Devices that a plan for a machine without accelerators is tried with."""
DOCUMENT_BYTES, QUESTION_BYTES = 150.0, 200.0
"""What a row of a document's name, and of a question, weighs."""


def workload(
    graph: Graph, rows: int, documents: Any = None, questions: Path | None = None
) -> dict[str, Flow]:
    """Rows for each input: those that are given, else `rows` of them; one of what stands for the corpus."""
    found: dict[str, Flow] = {}
    for name, kind in graph.inputs.items():
        if kind is Documents and documents is not None:
            found[name] = flow_of(documents.documents)
        elif kind is Queries and questions is not None:
            found[name] = flow_of(question_files.read(questions).queries())
        else:
            found[name] = _assumed(kind, rows)
    return found


def _assumed(kind: type[Rows], rows: int) -> Flow:
    if kind.whole:
        return Flow(1, 0.0, DOCUMENT_BYTES)
    return Flow(rows, 0.0, QUESTION_BYTES if kind is Queries else DOCUMENT_BYTES)


def planned(graph: Graph, work: Mapping[str, Flow], machine: str, policies: Sequence[str] = ()) -> Planned:
    """The plan for a machine by name or file, "" for this one. Raises PlanError."""
    here = measured() if not machine else machine_file.load(machine)
    known = experience(elsewhere=bool(machine))
    return plan_flows(graph, work, here, known, tuple(p for name in policies for p in name.split("+")))


def notes(graph: Graph, work: Mapping[str, Flow], machine: str) -> dict[str, str]:
    """For a picture: at each step, where it would run."""
    return plan_report.notes(planned(graph, work, machine))


def tell_plan(found: Planned, as_json: bool) -> None:
    """Print a plan."""
    more = with_one_more(found, _cards(found.plan.machine))
    if as_json:
        print_json(plan_report.as_dict(found, more))
        return
    table(console(), plan_report.HEAD, [line.cells() for line in plan_report.lines(found)])
    moved = [e.cells() for e in plan_report.edges(found) if e.transport != "by reference"]
    if moved:
        table(console(), plan_report.EDGES, moved)
    print("\n".join([*plan_report.summary(found), *_more(found.seconds, more)]))
    print("\n".join(["", *plan_report.sentences(found)]))


def _more(seconds: float, more: Mapping[str, float]) -> list[str]:
    return [f"with {name}: {duration(s)} ({seconds / s:.2f} times as fast)" for name, s in more.items()]


def _cards(machine: Machine) -> dict[str, Any]:
    if any(d.kind == "cuda" for d in machine.devices):
        return {}
    return {name: machine_file.card(name) for name in CARDS}


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated run under policies, "" for none."""

    policies: str
    found: Simulated
    machine: Machine


def simulations(
    graph: Graph, work: Mapping[str, Flow], machine: str, policies: Sequence[str], lose: Sequence[str]
) -> list[Simulation]:
    """The run under each of `policies`, on one placement and with all rows; lanes of `lose` go away."""
    best = planned(graph, work, machine)
    lost = dict(_lost(text, best.plan.machine) for text in lose)
    whole = {name: kind.whole for name, kind in flatten(graph).sources.items()}
    found = []
    for names in policies or ["+".join(best.plan.policies)]:
        plan = replace(best.plan, policies=tuple(n for n in names.split("+") if n and n != "none"))
        run = simulate(plan, best.estimates, given(work, whole), lost)
        found.append(Simulation(names, run, best.plan.machine))
    return found


def _lost(text: str, machine: Machine) -> tuple[str, float]:
    """A lane and the second in which it goes."""
    lane, at, second = text.partition("@")
    if lane not in machine.names:
        raise PlanError(f"--lose {text!r}: no device {lane!r}{near_miss(lane, machine.names)}")
    try:
        return lane, float(second) if at else 0.0
    except ValueError:
        raise PlanError(f"--lose {text!r}: {second!r} is no number of seconds, as in {lane}@30") from None


def tell_simulations(found: Sequence[Simulation], trace: Path | None, as_json: bool) -> None:
    """Print simulated runs, side by side; the timeline of a single one may be kept."""
    if trace is not None:
        if len(found) > 1:
            raise RidgewayError("--trace keeps one timeline: simulate one policy")
        from pipeline import perfetto

        perfetto.write(found[0].found.timeline, trace)
    if as_json:
        print_json([_record(s) for s in found])
        return
    head = ("policies", "seconds", "busy", "waits", "energy, kWh", "cost, USD")
    table(console(), head, [_cells(s) for s in found])
    if len(found) == 1:
        print("\n".join(advice(found[0].found.timeline, found[0].machine.devices)))


def _cells(s: Simulation) -> tuple[str, ...]:
    lanes = idle(s.found.timeline)
    busy = ", ".join(f"{i.device} {100 * i.busy:.0f} %" for i in lanes)
    waits = ", ".join(f"{i.device}: {_most(i.by_reason)}" for i in lanes if i.by_reason)
    bill = s.found.bill
    return (
        s.policies or "none", f"{s.found.timeline.seconds:.4g}", busy, waits,
        f"{bill.joules / 3.6e6:.3g}", f"{bill.dollars:.3g}",
    )  # fmt: skip


def _most(by_reason: Mapping[tuple[str, str], float]) -> str:
    (reason, step), seconds = max(by_reason.items(), key=lambda item: item[1])
    return f"{reason} {step} {duration(seconds)}".replace("  ", " ")


def _record(s: Simulation) -> dict[str, Any]:
    lanes = idle(s.found.timeline)
    return {
        "policies": s.policies,
        "machine": s.machine.name,
        "seconds": s.found.timeline.seconds,
        "batches": len(s.found.timeline.spans),
        "devices": [
            {
                "name": i.device,
                "busy": i.busy,
                "stalls": [{"reason": r, "step": step, "seconds": t} for (r, step), t in i.by_reason.items()],
            }
            for i in lanes
        ],
        "moved_bytes": dict(s.found.moved),
        "peak_bytes": s.found.peak,
        "joules": s.found.bill.joules,
        "usd": s.found.bill.dollars,
        "advice": list(advice(s.found.timeline, s.machine.devices)),
    }
