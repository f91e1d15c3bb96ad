"""Plans for real rows on real machines: measures, remembers, and asks the planner.

The shell around `pipeline.planner`: looks at the machine (measuring it once, see `pipeline.calibrate`),
reads what earlier runs have shown, and adds what this one shows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import calibrate, learned
from pipeline.estimate import Estimates
from pipeline.fingerprint import facts, fingerprint
from pipeline.flows import usual
from pipeline.graph import Graph
from pipeline.learned import Learned, rounds_of
from pipeline.machine import Machine, detect
from pipeline.models import cache_dir
from pipeline.plan import WINDOW_BYTES
from pipeline.planner import Planned, Planner
from pipeline.policies import NONE
from pipeline.program import flatten
from pipeline.roofline import Flow
from pipeline.trial import tried
from pipeline.values import Rows

if TYPE_CHECKING:
    from pipeline.executor import Run

DEFAULT_POLICIES: tuple[str, ...] = ("ends",)
"""What a run follows unless told otherwise: the one policy that wins in `benchmarks.placement` (where slow
lanes help a fast one) and costs nothing at any size there. It does nothing where lanes are alike. With a
step pinned to unequal lanes by hand, which the planner would not choose, it has cost 7 % and saved 70 %.
"""


def plan_for(
    graph: Graph,
    inputs: Mapping[str, Rows],
    machine: Machine | None = None,
    policies: tuple[str, ...] = (),
    window: int = WINDOW_BYTES,
    chunks: float = 0.0,
) -> Planned:
    """The best plan to run `graph` over `inputs`; hand its `.plan` to `run`.

    Stages without `cost` that never ran are tried on a few of the rows, see `pipeline.trial`.
    `machine`: lanes of this host that exist already, such as a cluster's; by default this machine, measured
    now if it never was (12 s). `policies`: names from `pipeline.policies`, else those of the graph;
    `chunks`: in the indexes that are among the inputs. Raises PlanError where nothing fits, or a policy is
    not known.
    """
    here = measured()
    lanes = here if machine is None else calibrate.fitted(machine, here) or machine
    sources = {name: flow_of(rows, chunks) for name, rows in inputs.items()}
    rows = inputs if lanes is not machine else None
    return plan_flows(graph, sources, lanes, experience(), policies, window, machine is None, rows)


def plan_flows(
    graph: Graph,
    sources: Mapping[str, Flow],
    machine: Machine,
    known: Learned,
    policies: tuple[str, ...] = (),
    window: int = WINDOW_BYTES,
    divide: bool = True,
    inputs: Mapping[str, Rows] | None = None,
) -> Planned:
    """The best plan for so many rows on any machine. `divide`: its CPU lanes may be laid out anew; `inputs`:
    rows on which stages of which nothing is known may be tried, if the machine is this one.
    """
    chosen = tuple(p for p in policies or graph.policies or DEFAULT_POLICIES if p != NONE)
    program = flatten(graph)
    flows = usual(program, sources, known)
    trial = tried(Estimates(program, machine, flows, known), inputs or {})
    planner = Planner(program, machine, flows, trial.learned, window, chosen, divide)
    return replace(planner.best(), untried=trial.untried)


def measured(again: bool = False) -> Machine:
    """This machine as it was measured, now if it never was or `again`."""
    here = detect()
    known = None if again else calibrate.known(here)
    if known is not None:
        return known
    from pipeline import handoff

    return calibrate.measured(here, task_seconds=handoff.seconds(), again=True)


def flow_of(rows: Rows, chunks: float = 0.0) -> Flow:
    """The flow of rows that are there; `chunks`: those behind a row that stands for the corpus."""
    count, lengths = len(rows), rows.lengths
    mean = chunks if rows.whole else sum(lengths) / count if lengths and count else 0.0
    return Flow(count, mean, rows.nbytes / count if count else 0.0)


def experience(elsewhere: bool = False) -> Learned:
    """What earlier runs on this machine have shown; `elsewhere`: what of it holds on any machine."""
    found = learned.read(_path())
    return Learned(yields=found.yields, rounds=found.rounds) if elsewhere else found


def remember(run: Run) -> None:
    """Add what a finished run has shown. A disk that does not take it is told of, and the run stands."""
    assert run.plan is not None
    stages = {s.name: s.stage for s in run.program.steps}
    devices = {d.name: d for d in run.plan.machine.devices}
    made = {step: total / max(run.tallies[step].rows, 1) for step, total in run.lengths.items()}
    shown = learned.read(_path()).with_run(
        stages, devices, run.spans, made, rounds_of(run.program, run.tallies)
    )
    try:
        learned.write(shown, _path())
    except OSError as error:
        logging.getLogger("ridgeway").warning("what this run has shown is not kept: %s", error)


def _path() -> Path:
    return cache_dir() / "learned" / f"{fingerprint(facts(detect()))}.json"
