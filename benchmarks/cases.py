"""What `benchmarks.prediction` predicts: the demo, HotpotQA, and graphs of stages whose cost is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synthetic import Again, Divide, Gather, Multiply, Sort, Stream, Tasks, Turns, Wait
from pipeline.config import load
from pipeline.graph import Graph, Loop, node
from pipeline.machine import Device, Machine
from pipeline.questions import Question, Questions, read
from pipeline.values import Documents, Queries, Rows

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "configs" / "demo"
SEEN_DOCUMENTS = ("station-log-1937.pdf", "observatory.md")
"""The sample of the demo: a scan and a text. Its other documents are a PDF, a photograph and a text."""
FILE = 10
"""Passages of HotpotQA in a document."""
TOKENS = ("stages.said.max_new_tokens=24",)
LOOP_TOKENS = ("stages.steps.loop.stages.said.max_new_tokens=24",)


@dataclass(frozen=True, slots=True)
class Case:
    """A graph, made for a run folder; the rows to predict, and the sample that is run before.

    `machine`: lanes that it has to run on, where they are not the planner's choice.
    """

    graph: Callable[[Path], Graph]
    rows: Mapping[str, Rows]
    sample: Mapping[str, Rows]
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """`material`: where HotpotQA lies; `questions`, `passages`: how much of it; `folder`: for its files."""

    material: Path
    folder: Path
    questions: int
    passages: int


Make = Callable[[Settings], Case | str]
"""A case, or why it cannot be run here."""


# pipelines of the repository


def pipeline(name: str, settings: Sequence[str]) -> Callable[[Path], Graph]:
    """A pipeline file as a graph over a run folder."""
    from stages import STAGES

    return lambda folder: load(ROOT / "configs" / name, STAGES, {"RUN": str(folder)}, tuple(settings))


def demo(name: str, settings: Sequence[str]) -> Case:
    """All of the demo; the sample is two of its documents and its last two questions."""
    from vision.files import crawl

    found, asked = crawl([DEMO / "documents"]).documents, read(DEMO / "questions.jsonl").rows
    seen = [i for i, row in enumerate(found.ids) if row[0] in SEEN_DOCUMENTS]
    return Case(
        pipeline(name, settings),
        {"documents": found, "questions": queries(asked[:-2])},
        {"documents": found.take(seen), "questions": queries(asked[-2:])},
    )


def hotpotqa(given: Settings) -> Case | str:
    """The first questions over the first passages; the sample is a fifth as many, from the end."""
    corpus = given.material / "hotpotqa100.corpus.jsonl"
    if not corpus.is_file():
        return f"no {corpus.name} in {given.material}: name its folder with --material"
    asked = read(given.material / "hotpotqa100.questions.jsonl").rows
    lines = corpus.read_text("utf-8").splitlines(keepends=True)
    few, seen = max(2, given.questions // 5), max(FILE, given.passages // 5)
    return Case(
        pipeline("document_qa.yaml", TOKENS),
        {
            "documents": files(lines[: given.passages], given.folder / "given" / "rows"),
            "questions": queries(asked[: given.questions]),
        },
        {
            "documents": files(lines[-seen:], given.folder / "given" / "sample"),
            "questions": queries(asked[-few:]),
        },
    )


def files(lines: Sequence[str], folder: Path) -> Documents:
    """Passages as documents of `FILE` passages each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for start in range(0, len(lines), FILE):
        names.append(f"{start:04}.jsonl")
        (folder / names[-1]).write_text("".join(lines[start : start + FILE]), "utf-8")
    return Documents(tuple((n,) for n in names), tuple(str(folder / n) for n in names))


def queries(asked: Sequence[Question]) -> Queries:
    """Questions as rows."""
    return Questions(tuple(asked)).queries()


# stages of known cost


def tasks(name: str, sizes: Iterable[int]) -> Tasks:
    """Rows of so many units each."""
    found = tuple(int(size) for size in sizes)
    return Tasks(tuple((f"{name}-{i}",) for i in range(len(found))), found)


def chain(*steps: tuple[str, Any, int]) -> Graph:
    """Steps one after another: name, stage, rows to a batch."""
    before, nodes = "given", []
    for name, stage, batch in steps:
        nodes.append(node(name, stage, batch=batch, tasks=before))
        before = name
    return Graph({"given": Tasks}, tuple(nodes), {"out": before})


def synthetic(graph: Graph, sizes: Sequence[int], machine: Machine | None = None) -> Case:
    """The last sixth of the rows is the sample, a fifth of the others."""
    cut = len(sizes) * 5 // 6
    rows, sample = tasks("row", sizes[:cut]), tasks("sample", sizes[cut:])
    return Case(lambda _: graph, {"given": rows}, {"given": sample}, machine)


def drawn(count: int, low: int, high: int) -> list[int]:
    """Sizes from `low` to `high`, the same every time."""
    return [int(n) for n in np.random.default_rng(7).integers(low, high + 1, count)]


def products() -> Case:
    """Bound by arithmetic; the middle step takes most."""
    steps = (("first", Multiply(2), 8), ("heavy", Multiply(8), 8), ("last", Multiply(3), 8))
    return synthetic(chain(*steps), drawn(192, 1, 2))


def streams() -> Case:
    """Bound by memory traffic."""
    return synthetic(chain(("first", Stream(1), 8), ("heavy", Stream(3), 8)), drawn(96, 1, 1))


def divided() -> Case:
    """Rows to parts, work on each part, and all parts of a row together again."""
    nodes = (
        node("parts", Divide(), tasks="given"),
        node("heavy", Multiply(6), tasks="parts", batch=16),
        node("whole", Gather(), tasks="heavy"),
        node("last", Multiply(1), tasks="whole", batch=4),
    )
    return synthetic(Graph({"given": Tasks}, nodes, {"out": "last"}), drawn(72, 3, 9))


def rounds() -> Case:
    """One to four rounds of work for each row."""
    nodes = (
        node("heavy", Multiply(8), tasks="turns", batch=8),
        node("next", Again(), turns="turns", tasks="heavy"),
    )
    body = Graph({"turns": Turns}, nodes, {"next": "next"})
    loop = Loop(body, {"turns": "next"}, "next", 4)
    graph = Graph({"given": Turns}, (node("loop", loop, turns="given"),), {"out": "loop.next"})
    left = drawn(96, 1, 4)
    return Case(lambda _: graph, {"given": turns("row", left[:80])}, {"given": turns("sample", left[80:])})


def turns(name: str, left: Sequence[int]) -> Turns:
    """Rows of two units, with their rounds."""
    rows = tasks(name, [2] * len(left))
    return Turns(rows.ids, rows.sizes, tuple(left), np.zeros(len(left), bool))


def lanes() -> Case:
    """Two lanes of one core, work and waiting side by side."""
    own = sorted(os.sched_getaffinity(0))[:2]
    machine = Machine(tuple(Device(f"cpu:{i}", 1, cores=(core,)) for i, core in enumerate(own)))
    steps = (("wait", Wait(0.002, 0.004), 8), ("heavy", Multiply(6), 8))
    return synthetic(chain(*steps), drawn(240, 1, 3), machine)


def skewed() -> Case:
    """A few rows take most of the time."""
    sizes = np.minimum(np.random.default_rng(3).pareto(1.2, 240) * 2 + 1, 60)
    return synthetic(chain(("light", Sort(1), 16), ("heavy", Multiply(6), 8)), [int(n) for n in sizes])


def tiny() -> Case:
    """Batches of one row that take next to nothing: the way through the scheduler is what takes time."""
    steps = (("first", Wait(0.001, 0.0), 1), ("heavy", Wait(0.004, 0.0), 1), ("last", Wait(0.001, 0.0), 1))
    return synthetic(chain(*steps), [1] * 144)


def unknown() -> Case:
    """Stages that do not say what they cost."""
    return synthetic(chain(("light", Sort(1), 16), ("heavy", Sort(4), 16)), drawn(288, 1, 3))


CASES: Mapping[str, Make] = {
    "demo": lambda _: demo("document_qa.yaml", TOKENS),
    "hotpotqa": hotpotqa,
    "multi-step": lambda _: demo("multi_step_qa.yaml", LOOP_TOKENS),
    "products": lambda _: products(),
    "streams": lambda _: streams(),
    "parts": lambda _: divided(),
    "loop": lambda _: rounds(),
    "two lanes": lambda _: lanes(),
    "skewed": lambda _: skewed(),
    "tiny": lambda _: tiny(),
    "no cost": lambda _: unknown(),
}
