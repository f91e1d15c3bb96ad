"""The pipeline against a hand-written script, on the same work in one run.

The script is what a good engineer writes: read the passages, one batched `encode`, one matrix product,
prompts sorted by length, batched `generate`. Both sides use the same models, prompts and batch size, and
have their models loaded before the clock starts. Runs are paired (script, pipeline, script, ...), and the
verdict is on the median of the pairs' ratios. First the answers are checked: equal in float32; in other
types equal recall of gold documents, and F1 within 0.05 (there even the script differs from itself).

    python -m benchmarks.document_qa [--questions 32] [--pairs 3] [--dtype float32] [--material DIR]

Exits 0 only where the pipeline takes at most half of the script's time, with the same answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import models
from pipeline.cluster import local_client
from pipeline.evaluate import best, f1, names
from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.machine import Device, Machine, cores
from pipeline.node import Node
from pipeline.questions import Question
from pipeline.questions import read as read_questions
from pipeline.values import Documents, Passage, Passages, Queries
from retrieval.text import normalize
from stages.embed import Embed, EmbedQueries
from stages.fetch import Fetch, StoreChunks
from stages.generate import Generate
from stages.index import IndexVectors
from stages.llm import weights
from stages.prompt import WritePrompt
from stages.read import ListPages, ReadPages
from stages.search import Search
from stages.split import Split

ENCODER, MODEL = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
K, BATCH, WINDOW = 4, 16, 250
TARGET = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """A corpus of passages, one JSON line each, and questions over it."""

    corpus: Path
    questions: tuple[Question, ...]
    new_tokens: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a side made of a question: its answer, and the titles of the passages it found."""

    answer: str
    titles: tuple[str, ...]


class Script:
    """The hand-written alternative."""

    def __init__(self, work: Work) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self.work = work
        torch.set_num_threads(cores())
        self.device = Device("cpu:0", cores())
        self.encoder = SentenceTransformer(str(models.resolve(ENCODER)), device="cpu", local_files_only=True)
        self.tokenizer = weights.tokenizer(MODEL)
        self.model = weights.model(MODEL, self.device, work.dtype)
        self.prompt = WritePrompt(MODEL)
        self.chat = self.prompt.open(self.device)

    def run(self) -> list[Said]:
        """All questions, start to end."""
        rows = [json.loads(line) for line in self.work.corpus.open(encoding="utf-8")]
        asked = self.work.questions
        texts = [r["text"] for r in rows]
        known = self.encoder.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
        wanted = self.encoder.encode(
            [q.question for q in asked], batch_size=64, normalize_embeddings=True, show_progress_bar=False
        )
        scores = wanted @ known.T
        found = [np.argsort(-s, kind="stable")[:K] for s in scores]
        passages = tuple(
            tuple(
                Passage(("corpus.jsonl", int(j) + 1, 0), rows[j]["text"], rows[j]["title"], 0, 0, float(s[j]))
                for j in best_k
            )
            for s, best_k in zip(scores, found, strict=True)
        )
        ids = tuple((q.id,) for q in asked)
        queries = Queries(ids, tuple(q.question for q in asked), ("",) * len(asked))
        prompts = self.prompt.run(self.chat, queries, Passages(ids, passages)).tokens
        self.tokens = (
            sum(len(t) for t in self.encoder.tokenizer(texts).input_ids),
            sum(len(p) for p in prompts) + len(prompts) * self.work.new_tokens,
        )
        answers = self.generate(prompts)
        return [Said(answers[i], tuple(rows[j]["title"] for j in found[i])) for i in range(len(asked))]

    def limit(self) -> float:
        """Seconds of the arithmetic alone: 2 FLOP a multiplied parameter and token, at the GEMM peak."""
        import torch

        sizes = [sum(p.numel() for p in m.parameters()) for m in (self.encoder, self.model)]
        for i, m in enumerate((self.encoder, self.model)):  # tables are looked up, not multiplied
            sizes[i] -= sum(t.weight.numel() for t in m.modules() if isinstance(t, torch.nn.Embedding))
        flops = sum(2 * size * tokens for size, tokens in zip(sizes, self.tokens, strict=True))
        square = torch.randn(2048, 2048, dtype=self.model.dtype)
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            torch.mm(square, square)
            seconds.append(time.perf_counter() - start)
        return float(flops * min(seconds) / (2 * 2048**3))

    def generate(self, prompts: Sequence[Any]) -> dict[int, str]:
        """Greedy answers, longest prompts first, in batches."""
        import torch

        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        said: dict[int, str] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            width = max(len(prompts[i]) for i in batch)
            tokens = torch.full((len(batch), width), self.tokenizer.pad_token_id)
            mask = torch.zeros((len(batch), width), dtype=torch.long)
            for row, i in enumerate(batch):
                tokens[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
                mask[row, width - len(prompts[i]) :] = 1
            with torch.inference_mode():
                out = self.model.generate(
                    input_ids=tokens,
                    attention_mask=mask,
                    max_new_tokens=self.work.new_tokens,
                    do_sample=False,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
            for i, text in zip(
                batch, self.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True), strict=True
            ):
                said[i] = text.strip()
        return said


def searching(folder: Path, k: int) -> tuple[Node, ...]:
    """From documents and questions to the `k` passages of each, "found"."""
    return (
        node("pages", ListPages(), documents="documents"),
        node("texts", ReadPages(), pages="pages", batch=256),
        node("chunks", Split(ENCODER, tokens=WINDOW, overlap=0, headings=False), texts="texts", batch=256),
        node("corpus", StoreChunks(folder / "corpus"), chunks="chunks"),
        node("vectors", Embed(ENCODER, "float32"), chunks="chunks", batch=1024),
        node("index", IndexVectors(folder / "index"), embeddings="vectors"),
        node("asked", EmbedQueries(ENCODER, "float32"), queries="questions"),
        node("hits", Search(k=k), queries="questions", vectors="asked", index="index"),
        node("found", Fetch(), hits="hits", corpus="corpus"),
    )


def graph(work: Work, folder: Path) -> Graph:
    """The same work as a pipeline."""
    nodes = (
        *searching(folder, K),
        node("prompts", WritePrompt(MODEL), queries="questions", passages="found", batch=256),
        node(
            "said",
            Generate(MODEL, max_new_tokens=work.new_tokens, dtype=work.dtype),
            prompts="prompts",
            batch=BATCH,
        ),
    )
    return Graph({"documents": Documents, "questions": Queries}, nodes, {"said": "said", "found": "found"})


def pipeline(work: Work, client: Any) -> tuple[list[Said], Any]:
    """All questions through the pipeline, from documents to answers."""
    queries = Queries(
        tuple((q.id,) for q in work.questions),
        tuple(q.question for q in work.questions),
        ("",) * len(work.questions),
    )
    documents = Documents((("corpus.jsonl",),), (str(work.corpus),))
    with tempfile.TemporaryDirectory() as folder:
        under_way = run(graph(work, Path(folder)), {"documents": documents, "questions": queries}, client)
        results = {(r.output, r.id[0]): r.rows for r in under_way}
    said = []
    for q in work.questions:
        completion, found = results["said", q.id], results["found", q.id]
        titles = tuple(p.heading for p in found.passages[0])  # type: ignore[attr-defined]
        said.append(Said(completion.texts[0], titles))  # type: ignore[attr-defined]
    return said, under_way


def prepare(material: Path, folder: Path, count: int, new_tokens: int, dtype: str) -> Work:
    """The passages that fit the encoder's window whole, and the first questions, for both sides."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(models.resolve(ENCODER) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    corpus = folder / "corpus.jsonl"
    with corpus.open("w", encoding="utf-8") as out:
        for line in (material / "hotpotqa100.corpus.jsonl").open(encoding="utf-8"):
            row = json.loads(line)
            text = normalize(row["text"]).text
            if len(tokenizer.encode(text).ids) <= WINDOW:
                out.write(json.dumps({"title": row["title"], "text": text}) + "\n")
    asked = read_questions(material / "hotpotqa100.questions.jsonl").rows
    return Work(corpus, asked[:count], new_tokens, dtype)


def quality(work: Work, said: list[Said]) -> tuple[float, float]:
    """Recall of gold documents among the passages, and F1 of the answers."""
    recalls, scores = [], []
    for q, s in zip(work.questions, said, strict=True):
        gold = {g.document for g in q.gold}
        recalls.append(sum(any(names(g, t) for t in s.titles) for g in gold) / max(1, len(gold)))
        scores.append(best(f1, s.answer, q.answers or ()))
    return statistics.mean(recalls), statistics.mean(scores)


def main() -> int:
    """Measure, print, and say whether the target holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--material", type=Path, default=Path("../shared/material/derived"))
    given = parser.parse_args()
    if not (given.material / "hotpotqa100.corpus.jsonl").is_file():
        print(f"no hotpotqa100.corpus.jsonl in {given.material}: name its folder with --material")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        work = prepare(given.material, Path(folder), given.questions, given.new_tokens, given.dtype)
        return compare(work, given.pairs)


def compare(work: Work, pairs: int) -> int:
    """Paired runs of both sides; the first run of each is not counted."""
    script = Script(work)
    machine = Machine((script.device,))
    with local_client(machine) as client:
        expected = script.run()
        got, _ = pipeline(work, client)
        if not check(work, expected, got):
            return 1
        ratios, limit = [], script.limit()
        for pair in range(pairs):
            start = time.perf_counter()
            script.run()
            middle = time.perf_counter()
            _, under_way = pipeline(work, client)
            end = time.perf_counter()
            ratios.append((end - middle) / (middle - start))
            busy = sum(s.end - s.start for s in under_way.spans)
            print(
                f"pair {pair + 1}: script {middle - start:.2f} s, pipeline {end - middle:.2f} s "
                f"({busy:.2f} s in stages), ratio {ratios[-1]:.3f}; "
                f"arithmetic alone {limit:.2f} s: {limit / (end - middle):.0%} reached"
            )
    ratio = statistics.median(ratios)
    verdict = "holds" if ratio < TARGET else "does not hold"
    print(f"median ratio {ratio:.3f} over {pairs} pairs, target below {TARGET}: {verdict}")
    return 0 if ratio < TARGET else 1


def check(work: Work, expected: list[Said], got: list[Said]) -> bool:
    """Whether both sides say the same, as far as the type of numbers allows."""
    same = sum(a == b for a, b in zip(expected, got, strict=True))
    (recall_a, f1_a), (recall_b, f1_b) = quality(work, expected), quality(work, got)
    print(f"{len(expected)} questions: {same} answers equal")
    print(f"recall {recall_a:.3f} / {recall_b:.3f}, F1 {f1_a:.3f} / {f1_b:.3f} (script / pipeline)")
    good = (
        same == len(expected)
        if work.dtype == "float32"
        else recall_a == recall_b and abs(f1_a - f1_b) <= 0.05
    )
    if not good:
        print("the answers differ: the comparison does not hold")
    return good


if __name__ == "__main__":
    raise SystemExit(main())
