"""What the commands `plan`, `simulate` and `draw --plan` do: look ahead, and tell what they see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import machine_file, plan_report
from pipeline import questions as question_files
from pipeline.advice import Idle, advice, idle
from pipeline.buffers.device import seen
from pipeline.errors import PlanError, RidgewayError
from pipeline.gates import duration
from pipeline.graph import Graph
from pipeline.handover import settled
from pipeline.invent import given
from pipeline.lookup import near_miss
from pipeline.machine import Machine
from pipeline.planner import Planned
from pipeline.planning import experience, flow_of, measured, plan_flows
from pipeline.policies import MODES
from pipeline.program import flatten
from pipeline.report import console, print_json, table
from pipeline.roofline import Flow
from pipeline.simulate import Simulated, simulate
from pipeline.timeline import totals
from pipeline.values import Documents, Queries, Rows
from pipeline.what_if import admission, told, with_one_more

CARDS = ("rtx-4090", "l40s")
"""Devices that a plan for a machine without accelerators is tried with."""
DOCUMENT_BYTES, QUESTION_BYTES = 150.0, 200.0
"""What a row of a document's name, and of a question, weighs."""


def workload(
    graph: Graph, rows: int, documents: Any = None, questions: Path | None = None
) -> dict[str, Flow]:
    """Rows for each input: those that are given, else `rows` of them; one of what stands for the corpus."""
    known = at_hand(graph, documents, questions)
    return {n: flow_of(known[n]) if n in known else _assumed(k, rows) for n, k in graph.inputs.items()}


def at_hand(graph: Graph, documents: Any = None, questions: Path | None = None) -> dict[str, Rows]:
    """The rows for those inputs for which any are given."""
    found: dict[str, Rows] = {}
    for name, kind in graph.inputs.items():
        if kind is Documents and documents is not None:
            found[name] = documents.documents
        elif kind is Queries and questions is not None:
            found[name] = question_files.read(questions).queries()
    return found


def _assumed(kind: type[Rows], rows: int) -> Flow:
    if kind.whole:
        return Flow(1, 0.0, DOCUMENT_BYTES)
    return Flow(rows, 0.0, QUESTION_BYTES if kind is Queries else DOCUMENT_BYTES)


def planned(
    graph: Graph,
    work: Mapping[str, Flow],
    machine: str,
    policies: Sequence[str] = (),
    apart: bool = False,
    inputs: Mapping[str, Rows] | None = None,
) -> Planned:
    """The plan for a machine by name or file, "" for this one; `apart`: see `Plan`. Raises PlanError.

    `inputs`: rows on which stages of which nothing is known are tried, if it is for this machine.
    """
    here = measured() if not machine else machine_file.load(machine)
    known = experience(elsewhere=bool(machine))
    chosen = tuple(p for name in policies for p in name.split("+"))
    found = plan_flows(graph, work, here, known, chosen, inputs=None if machine else inputs)
    gpus = None if machine else seen(here.names)
    return replace(found, plan=settled(found.estimates.program, found.plan, apart, gpus))


def notes(graph: Graph, work: Mapping[str, Flow], machine: str, apart: bool = False) -> dict[str, str]:
    """For a picture: at each step, where it would run, and how its values would go on."""
    return plan_report.notes(planned(graph, work, machine, apart=apart))


def tell_plan(found: Planned, as_json: bool, deadline: float | None = None) -> None:
    """Print a plan, and whether it is done by a deadline. Raises PlanError for a deadline that is none."""
    in_time = None if deadline is None else admission(found, deadline)
    more = with_one_more(found, _cards(found.plan.machine))
    if as_json:
        late = told(in_time, deadline) if in_time and deadline is not None else None
        print_json(plan_report.as_dict(found, more) | {"admission": late})
        return
    rows = [line.cells() for line in plan_report.lines(found)]
    table(console(), plan_report.HEAD, rows, numbers=plan_report.NUMBERS)
    moved = [e.cells() for e in plan_report.edges(found) if e.transport != "by reference"]
    if moved:
        print()
        table(console(), plan_report.EDGES, moved, numbers=plan_report.NUMBERS)
    print()
    print("\n".join([*plan_report.summary(found), *_more(found.seconds, more)]))
    if in_time is not None:
        print(f"deadline: {'kept' if in_time.ok else 'may be missed'}: the run {in_time.why}")
    print("\n".join(["", *plan_report.sentences(found)]))


def _more(seconds: float, more: Mapping[str, float]) -> list[str]:
    return [f"with {name}: {duration(s)} ({seconds / s:.2f} times as fast)" for name, s in more.items()]


def _cards(machine: Machine) -> dict[str, Any]:
    if any(d.kind == "cuda" for d in machine.devices):
        return {}
    return {name: machine_file.card(name) for name in CARDS}


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated run under policies, "" for none. `missing`: rows that no lane was left for, by step."""

    policies: str
    found: Simulated
    machine: Machine
    missing: Mapping[str, int]


def simulations(
    graph: Graph, work: Mapping[str, Flow], machine: str, policies: Sequence[str], lose: Sequence[str]
) -> list[Simulation]:
    """The run under each of `policies`, with all rows; lanes of `lose` go away.

    All run on one placement, but `modes` on its own: it wants lanes that share cores.
    """
    usual = planned(graph, work, machine)
    whole = {name: kind.whole for name, kind in flatten(graph).sources.items()}
    found = []
    for names in policies or ["+".join(usual.plan.policies)]:
        best = planned(graph, work, machine, [names]) if MODES in names.split("+") else usual
        lost = dict(_lost(text, best.plan.machine) for text in lose)
        plan = replace(best.plan, policies=tuple(n for n in names.split("+") if n and n != "none"))
        run = simulate(plan, best.estimates, given(best.sources, whole), lost)
        found.append(Simulation(names, run, best.plan.machine, _missing(run, best) if lost else {}))
    return found


def _missing(run: Simulated, best: Planned) -> dict[str, int]:
    """Rows of each step that were not done; a fraction of a row that is expected is none."""
    done = {t.step: t.rows for t in totals(run.timeline.spans)}
    steps = best.estimates.program.steps
    short = {s.name: math.floor(best.estimates.flows.rows(s)) - done.get(s.name, 0) for s in steps}
    return {step: rows for step, rows in short.items() if rows > 0}


def _lost(text: str, machine: Machine) -> tuple[str, float]:
    """A lane and the second in which it goes."""
    lane, at, second = text.partition("@")
    if lane not in machine.names:
        raise PlanError(f"--lose {text!r}: no device {lane!r}{near_miss(lane, machine.names)}")
    try:
        found = float(second) if at else 0.0
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise PlanError(f"--lose {text!r}: {second!r} is no number of seconds, as in {lane}@30")
    return lane, found


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
    for s in found:
        if s.missing:
            told = ", ".join(f"{step} {rows} rows" for step, rows in s.missing.items())
            print(f"{s.policies or 'none'}: not done, as no lane is left for them: {told}")
    if len(found) == 1:
        print("\n".join(advice(found[0].found.timeline, found[0].machine.devices)))


def _cells(s: Simulation) -> tuple[str, ...]:
    """Lanes of a kind together: how busy on average, and what they waited for longest."""
    kinds: dict[str, list[Idle]] = {}
    for lane in idle(s.found.timeline):
        kinds.setdefault(lane.device.partition(":")[0], []).append(lane)
    bill, seconds = s.found.bill, s.found.timeline.seconds
    busy = [
        f"{k} {100 * sum(i.busy for i in found) / len(found) / seconds:.0f} %" for k, found in kinds.items()
    ]
    waits = [f"{k} {told}" for k, found in kinds.items() if (told := _longest(found))]
    return (
        s.policies or "none", f"{seconds:.4g}", ", ".join(busy), ", ".join(waits),
        f"{bill.joules / 3.6e6:.3g}", f"{bill.dollars:.3g}",
    )  # fmt: skip


def _longest(lanes: Sequence[Idle]) -> str:
    """The reason for which lanes stood still longest, in sum, with the mean for one of them."""
    total: dict[tuple[str, str], float] = {}
    for lane in lanes:
        for cause, seconds in lane.by_reason.items():
            total[cause] = total.get(cause, 0.0) + seconds
    if not total:
        return ""
    reason, step = max(total, key=lambda cause: total[cause])
    return f"{f'{reason} {step}'.strip()} {duration(total[reason, step] / len(lanes))}"


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
                "busy_seconds": i.busy,
                "stalls": [{"reason": r, "step": step, "seconds": t} for (r, step), t in i.by_reason.items()],
            }
            for i in lanes
        ],
        "moved_bytes": dict(s.found.moved),
        "peak_bytes": s.found.peak,
        "missing_rows": dict(s.missing),
        "joules": s.found.bill.joules,
        "usd": s.found.bill.dollars,
        "advice": list(advice(s.found.timeline, s.machine.devices)),
    }
