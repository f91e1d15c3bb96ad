"""What pruning saves and what it loses: HotpotQA-100 with eight passages a question, for several `keep`.

Of each `keep`: passages that stay, gold passages that stay of those that were found, prompt tokens that are
left, F1 of the answers, seconds to prune and to generate. As many passages of each question kept at random,
and by the rank of the search, stand beside: where these lose as little, the look chose nothing.

    python -m benchmarks.prune [--questions 16] [--layers 4] [--keep 0.95 0.8 0.5] [--no-answers]

Answers nothing where the material is not there.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.document_qa import MODEL, Work, prepare, searching
from pipeline.evaluate import best, f1, names
from pipeline.graph import Graph
from pipeline.local import run_local
from pipeline.machine import Device, cores
from pipeline.values import Documents, Passages, Queries
from stages.generate import Generate
from stages.prompt import WritePrompt
from stages.prune import Prune

K, NEW = 8, 24
COLUMNS = "{:>14} {:>9} {:>10} {:>8} {:>6} {:>8} {:>10}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of the passages and answers: shares of what there was, F1, seconds."""

    passages: float
    gold: float
    tokens: int
    f1: float
    pruning: float
    generating: float


def found(work: Work, folder: Path) -> tuple[Queries, Passages]:
    """The questions and the `K` passages of each."""
    graph = Graph({"documents": Documents, "questions": Queries}, searching(folder, K), {"found": "found"})
    texts = tuple(q.question for q in work.questions)
    queries = Queries(tuple((q.id,) for q in work.questions), texts, ("",) * len(texts))
    documents = Documents((("corpus.jsonl",),), (str(work.corpus),))
    made: Any = run_local(graph, {"documents": documents, "questions": queries})
    rows = {r.id: r.rows.passages[0] for r in made.results}
    return queries, Passages(queries.ids, tuple(rows[i] for i in queries.ids))


class Answering:
    """The rest of the pipeline, opened."""

    def __init__(self, work: Work, queries: Queries, whole: Passages, answers: bool) -> None:
        self.work, self.queries, self.whole, self.answers = work, queries, whole, answers
        self.device = Device("cpu:0", cores())
        self.write, self.say = WritePrompt(MODEL), Generate(MODEL, NEW, work.dtype)
        self.chat = self.write.open(self.device)

    def pruned(self, keep: float, layers: int) -> tuple[Passages, float]:
        """What stays, and the seconds of the look, opening left aside."""
        stage = Prune(MODEL, keep, layers, dtype=self.work.dtype)
        state = stage.open(self.device)
        start = time.perf_counter()
        return stage.run(state, self.queries, self.whole), time.perf_counter() - start

    def measure(self, kept: Passages, pruning: float) -> Measured:
        """Answer with the passages that are left, with an engine that has read nothing yet."""
        prompts = self.write.run(self.chat, self.queries, kept)
        share = sum(map(len, kept.passages)) / sum(map(len, self.whole.passages))
        if not self.answers:
            return Measured(share, self.gold(kept), sum(prompts.lengths), math.nan, pruning, math.nan)
        speaker = self.say.open(self.device)
        start = time.perf_counter()
        said: list[str] = []
        for at in range(0, len(prompts), Generate.batch):
            rows = prompts.take(range(at, min(at + Generate.batch, len(prompts))))
            said += self.say.run(speaker, rows).texts
        seconds = time.perf_counter() - start
        scores = [best(f1, s, q.answers or ()) for s, q in zip(said, self.work.questions, strict=True)]
        return Measured(
            share, self.gold(kept), sum(prompts.lengths), statistics.mean(scores), pruning, seconds
        )

    def gold(self, kept: Passages) -> float:
        """Of the gold passages that were found, how many stay."""
        left = there = 0
        for q, all_, some in zip(self.work.questions, self.whole.passages, kept.passages, strict=True):
            for g in {g.document for g in q.gold}:
                if any(names(g, p.heading) for p in all_):
                    there += 1
                    left += any(names(g, p.heading) for p in some)
        return left / max(there, 1)


def at_random(whole: Passages, kept: Passages) -> Passages:
    """As many passages of each question, drawn."""
    draw = np.random.default_rng(0)
    rows = []
    for all_, some in zip(whole.passages, kept.passages, strict=True):
        rows.append(tuple(all_[i] for i in sorted(draw.choice(len(all_), len(some), replace=False))))
    return Passages(whole.ids, tuple(rows))


def by_rank(whole: Passages, kept: Passages) -> Passages:
    """As many passages of each question, those that the search puts first."""
    pairs = zip(whole.passages, kept.passages, strict=True)
    return Passages(whole.ids, tuple(all_[: len(some)] for all_, some in pairs))


def compare(work: Work, layers: int, keeps: list[float], answers: bool) -> None:
    """All measurements, a line each."""
    with tempfile.TemporaryDirectory() as folder:
        answering = Answering(work, *found(work, Path(folder)), answers)
        first = answering.measure(answering.whole, 0.0)
        print(COLUMNS.format("keep", "passages", "gold kept", "tokens", "F1", "prune s", "generate s"))
        show("1 (off)", first, first)
        for keep in keeps:
            kept, seconds = answering.pruned(keep, layers)
            show(f"{keep:g}", answering.measure(kept, seconds), first)
            show("at random", answering.measure(at_random(answering.whole, kept), 0.0), first)
            show("by rank", answering.measure(by_rank(answering.whole, kept), 0.0), first)


def show(name: str, m: Measured, first: Measured) -> None:
    """One line."""
    cells = (f"{m.passages:.0%}", f"{m.gold:.0%}", f"{m.tokens / first.tokens:.0%}", f"{m.f1:.3f}")
    print(COLUMNS.format(name, *cells, f"{m.pruning:.2f}", f"{m.generating:.2f}"), flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.95, 0.8, 0.5])
    parser.add_argument("--no-answers", action="store_true", help="only look, and say what is kept")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--material", type=Path, default=Path("../shared/material/derived"))
    given = parser.parse_args()
    if not (given.material / "hotpotqa100.corpus.jsonl").is_file():
        print(f"skipped: no hotpotqa100.corpus.jsonl in {given.material}; name its folder with --material")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        work = prepare(given.material, Path(folder), given.questions, NEW, given.dtype)
        print(
            f"{len(work.questions)} questions, {K} passages each, the first {given.layers} layers of {MODEL}"
        )
        compare(work, given.layers, given.keep, not given.no_answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
