"""Is the prediction right? Every case is predicted, then run, and the two are compared.

Each case has an empty cache of its own (the models and what was measured of the machine are the user's).
First a sample is run, about a fifth as many rows, and other rows than those that are predicted as far as
there are others (the demo has too few documents: its sample is two of the five). From what the sample has
shown, the run is planned and predicted. Only then is it measured, as planned, `--repeats` times, each time
in a process of its own, as from the command line; the median counts. So nothing is predicted from a run
that it is compared with. "first" is what a first run would have been told: by formulas, nothing learned; it
is no part of the verdict. A run waits a while for others to leave the machine to it; one during which they
used it is made again, three times at most, and the least disturbed counts ("others": their share of it).

    python -m benchmarks.prediction [--quick] [--full] [--repeats 3] [--only CASE] [--material DIR]

Exits 0 only where the median error of the makespans is at most 20 %, and the step that holds the run up is
named correctly in at least 9 of 10 cases.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case, Settings
from benchmarks.undisturbed import apart
from pipeline.compare import HEAD, Comparison, compare
from pipeline.errors import RidgewayError
from pipeline.invent import given as given_rows
from pipeline.models import cache_dir
from pipeline.plan import Plan
from pipeline.simulate import simulate
from pipeline.timeline import Timeline

ERROR, NAMED = 0.2, 0.9
"""The most that the median error may be, and the least share of bottlenecks that are named correctly."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """What was predicted before the run. `first`: seconds by formulas alone."""

    plan: Plan
    timeline: Timeline
    first: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case: prediction beside measurement. `spread`: of the runs, (largest - smallest) / median.

    `others`: share of the cores that others used, at worst.
    """

    name: str
    comparison: Comparison
    first: float
    spread: float
    others: float

    @property
    def error(self) -> float:
        """|p - m| / m of the makespan."""
        return self.comparison.error

    def cells(self) -> tuple[str, ...]:
        """A line of the last table."""
        c = self.comparison
        named = [b.step if b else "-" for b in (c.predicted_bottleneck, c.measured_bottleneck)]
        return (
            self.name,
            f"{self.first:.2f}",
            f"{c.predicted_seconds:.2f}",
            f"{c.measured_seconds:.2f}",
            f"{self.spread:.0%}",
            f"{self.others:.0%}",
            f"{self.error:.0%}",
            named[0] if c.is_bottleneck_right else f"{named[0]}, not {named[1]}",
        )


COLUMNS = ("case", "first s", "predicted s", "measured s", "spread", "others", "error", "bottleneck")


def verdict(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """The last line, and whether the prediction is right. No cases: it is not."""
    if not outcomes:
        return "no case was run: nothing is shown", False
    error = statistics.median(o.error for o in outcomes)
    right = sum(o.comparison.is_bottleneck_right for o in outcomes)
    good = error <= ERROR and right >= NAMED * len(outcomes)
    told = f"median error {error:.1%} (at most {ERROR:.0%}), bottleneck right in {right} of {len(outcomes)}"
    return f"{told}: {'holds' if good else 'does not hold'}", good


def middle(runs: Sequence[Timeline]) -> Timeline:
    """The run of the median makespan; of an even number, the longer of the two in the middle."""
    return sorted(runs, key=lambda t: t.seconds)[len(runs) // 2]


def spread(runs: Sequence[Timeline]) -> float:
    """How far runs lie apart, as a share of their median."""
    seconds = [t.seconds for t in runs]
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


# in processes of their own


def foresee(name: str, given: Settings, folder: Path) -> Foresight:
    """Run the sample of a case, and predict it."""
    from pipeline.executor import run
    from pipeline.planning import plan_for, remember

    os.environ["RIDGEWAY_CACHE"] = str(folder / "cache")
    shutil.rmtree(folder / "cache" / "learned", ignore_errors=True)  # of an attempt that others disturbed
    case = _case(name, given)
    first = plan_for(case.graph(folder / "first"), case.rows, case.machine).seconds
    seen = case.graph(_empty(folder / "sample"))
    under_way = run(seen, case.sample, plan=plan_for(seen, case.sample, case.machine).plan)
    _drain(under_way)
    remember(under_way)
    planned = plan_for(case.graph(folder / "run"), case.rows, case.machine)
    whole = {source: kind.whole for source, kind in planned.estimates.program.sources.items()}
    expected = simulate(planned.plan, planned.estimates, given_rows(planned.sources, whole)).timeline
    return Foresight(planned.plan, replace(expected, seconds=planned.seconds), first)


def measure(name: str, given: Settings, folder: Path, plan: Plan) -> Timeline:
    """Run a case as planned."""
    from pipeline.executor import run
    from pipeline.machine import detect

    os.environ["RIDGEWAY_CACHE"] = str(folder / "cache")
    case = _case(name, given)
    detect()  # who plans has imported torch
    under_way = run(case.graph(_empty(folder / "run")), case.rows, plan=plan)
    _drain(under_way)
    assert under_way.timeline is not None
    return under_way.timeline


def _case(name: str, given: Settings) -> Case:
    found = CASES[name](given)
    assert isinstance(found, Case), found
    return found


def _drain(under_way: Any) -> None:
    for _ in under_way:
        pass
    if under_way.failures:
        raise RidgewayError(f"rows failed, so nothing is shown: {under_way.failures[0]}")


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# the benchmark


def look(name: str, given: Settings, repeats: int) -> Outcome:
    """Predict a case, run it, and print both."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        own_cache(folder / "cache")
        own = replace(given, folder=folder)
        seen, used = apart(foresee, name, own, folder)
        made = [apart(measure, name, own, folder, seen.plan) for _ in range(repeats)]
    runs, worst = [run for run, _ in made], max(used, *(u for _, u in made))
    outcome = Outcome(name, compare(seen.timeline, middle(runs)), seen.first, spread(runs), worst)
    show(f"{name}: error {outcome.error:.0%}, others {worst:.0%}", HEAD, outcome.comparison.rows())
    return outcome


def own_cache(folder: Path) -> None:
    """A cache that knows the models and the machine, and nothing that runs have shown."""
    folder.mkdir(parents=True)
    models = cache_dir() / "models"
    models.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(models)
    shutil.copytree(cache_dir() / "machines", folder / "machines")


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in plain text."""
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    print(f"\n{title}")
    for row in (head, *rows):
        print("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip(), flush=True)


def main() -> int:
    """Measure, print, and say whether the target holds."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--quick", action="store_true", help="one run each, little of HotpotQA")
    parser.add_argument("--full", action="store_true", help="all of HotpotQA-100")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(CASES))
    parser.add_argument("--material", type=Path, default=Path("../shared/material/derived"))
    told = parser.parse_args()
    from pipeline.planning import measured

    measured()
    questions, passages = (100, 1000) if told.full else (10, 100) if told.quick else (20, 300)
    given = Settings(told.material.absolute(), Path(), questions, passages)
    outcomes = []
    for name in told.only or CASES:
        if name == "hotpotqa" and not (given.material / "hotpotqa100.corpus.jsonl").is_file():
            print(f"\n{name}: {CASES[name](given)}")
            continue
        outcomes.append(look(name, given, told.repeats or (1 if told.quick else 3)))
    show("all", COLUMNS, [o.cells() for o in outcomes])
    line, good = verdict(outcomes)
    print(line)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
