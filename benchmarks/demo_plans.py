"""The demo on the plan that is chosen for it, against plans that one would write by hand, in real runs."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline.machine import layouts
from pipeline.plan import Plan

ROOT = Path(__file__).parent.parent


class Demo:
    """The demo, on plans."""

    def __init__(self) -> None:
        from pipeline import questions
        from vision.files import crawl

        demo = ROOT / "configs" / "demo"
        asked = questions.read(demo / "questions.jsonl")
        self.inputs = {"documents": crawl([demo / "documents"]).documents, "questions": asked.queries()}

    def graph(self, folder: str) -> Any:
        """It, in float32, with its indexes in `folder`."""
        from pipeline import config
        from stages import STAGES

        settings = tuple(f"stages.{name}.dtype=float32" for name in ("vectors", "asked", "said"))
        return config.load(ROOT / "configs" / "document_qa.yaml", STAGES, {"RUN": folder}, settings)

    def plans(self) -> dict[str, Plan]:
        """The chosen one, then those that one would write by hand: the plain rule on each layout."""
        from pipeline.plan import place
        from pipeline.planning import measured, plan_for
        from pipeline.program import flatten

        graph = self.graph("run")
        found = {"chosen": plan_for(graph, self.inputs).plan}
        for machine in layouts(measured()):
            lanes = machine.lanes
            found[f"{len(lanes)} x {lanes[0].threads} threads"] = place(flatten(graph), machine)
        return found

    def run(self, plan: Plan) -> tuple[float, list[Any]]:
        """Seconds, and the texts of the answers."""
        from pipeline.executor import run

        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            results = list(run(self.graph(folder), self.inputs, plan=plan))
            return time.perf_counter() - start, [r.rows.texts for r in results]  # type: ignore[attr-defined]


def tell_real(pairs: int, target: float) -> bool:
    """Print how the chosen plan for the demo does in real runs; whether it is within `target` of the best."""
    demo = Demo()
    plans = demo.plans()
    for step, lanes, batch in plans["chosen"].table():
        print(f"  {step}: {lanes}, batch {batch}")
    said = {name: demo.run(plan)[1] for name, plan in plans.items()}
    if any(texts != said["chosen"] for texts in said.values()):
        print("the answers differ: the comparison does not hold")
        return False
    ratios: dict[str, list[float]] = {name: [] for name in plans if name != "chosen"}
    for pair in range(pairs):
        took = {name: demo.run(plan)[0] for name, plan in plans.items()}
        print(
            f"pair {pair + 1}:",
            ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items()),
            flush=True,
        )
        for name, found in ratios.items():
            found.append(took["chosen"] / took[name])
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    print("chosen by hand-set:", ", ".join(f"{name} {ratio:.3f}" for name, ratio in medians.items()))
    return max(medians.values()) <= target
