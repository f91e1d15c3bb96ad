"""A tiny document pipeline without models: lines are pages, words are chunks, answers are lookups."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import BadRowsError, RowError
from pipeline.graph import Graph, node
from pipeline.values import Answers, Chunks, Citation, Corpora, Documents, Pages, PageTexts, Queries

NO_BOXES = np.zeros((0, 4), np.float32)


@dataclass(frozen=True, slots=True)
class Lines:
    """A page a line; a document named `bad*` cannot be read."""

    expands: ClassVar[bool] = True

    def run(self, state: Any, documents: Documents) -> Pages:
        bad = {
            i: RowError("unreadable", "cannot be read") for i in documents.ids if str(i[0]).startswith("bad")
        }
        if bad:
            raise BadRowsError(bad)
        made = [
            ((*i, k + 1), path)
            for i, path in zip(documents.ids, documents.paths, strict=True)
            for k in range(len(Path(path).read_text().splitlines()))
        ]
        return Pages(tuple(i for i, _ in made), tuple(p for _, p in made))


@dataclass(frozen=True, slots=True)
class Read:
    """The text of a page; a page that says `torn` is damaged."""

    def run(self, state: Any, pages: Pages) -> PageTexts:
        texts = tuple(
            Path(p).read_text().splitlines()[int(i[1]) - 1]
            for i, p in zip(pages.ids, pages.paths, strict=True)
        )
        bad = {
            i: RowError("unreadable", "torn page")
            for i, t in zip(pages.ids, texts, strict=True)
            if t == "torn"
        }
        if bad:
            raise BadRowsError(bad)
        n = len(texts)
        return PageTexts(
            pages.ids,
            texts,
            (None,) * n,
            (np.zeros((0, 2), np.int32),) * n,
            (NO_BOXES,) * n,
            ((),) * n,
            ("text",) * n,
        )


@dataclass(frozen=True, slots=True)
class Words:
    """A chunk a word."""

    expands: ClassVar[bool] = True

    def run(self, state: Any, texts: PageTexts) -> Chunks:
        made = [
            ((*i, k), w) for i, t in zip(texts.ids, texts.texts, strict=True) for k, w in enumerate(t.split())
        ]
        words = tuple(w for _, w in made)
        n = len(words)
        return Chunks(
            tuple(i for i, _ in made),
            words,
            words,
            ("",) * n,
            (0,) * n,
            tuple(map(len, words)),
            (NO_BOXES,) * n,
        )


@dataclass(frozen=True, slots=True)
class Shelve:
    """All words on disk, with their places. `case`: a setting that decides what is stored."""

    path: Path
    case: str = "lower"
    gathers: ClassVar[int] = 0

    def run(self, state: Any, chunks: Chunks) -> Corpora:
        self.path.mkdir(parents=True, exist_ok=True)
        found = {getattr(t, self.case)(): list(i[:2]) for i, t in zip(chunks.ids, chunks.texts, strict=True)}
        (self.path / "words.json").write_text(json.dumps(found))
        return Corpora(((),), (str(self.path),))


@dataclass(frozen=True, slots=True)
class Reply:
    """Says where the question's one word stands; refuses `boom`."""

    def run(self, state: Any, queries: Queries, corpus: Corpora) -> Answers:
        if "boom" in queries.texts:
            raise ValueError("boom")
        words = json.loads((Path(corpus.paths[0]) / "words.json").read_text())
        places = [words.get(q) for q in queries.texts]
        n = len(places)
        cited = tuple(
            (Citation(str(p[0]), int(p[1]), 0, len(q), q, float("nan")),) if p else ()
            for p, q in zip(places, queries.texts, strict=True)
        )
        return Answers(
            ids=queries.ids,
            texts=tuple(f"page {p[1]}" if p else "" for p in places),
            statuses=tuple("answered" if p else "unanswered" for p in places),
            reasons=tuple("" if p else "nothing was retrieved" for p in places),
            citations=cited,
            attributions=("marked",) * n,
            dropped=(0,) * n,
            passages=((),) * n,
            trimmed=(0,) * n,
            rounds=(1,) * n,
            prompt_tokens=(0,) * n,
            new_tokens=(0,) * n,
            stops=("end",) * n,
        )


FAKES = {name: f"tests.fakes:{name}" for name in ("Lines", "Read", "Words", "Shelve", "Reply")}


def graph(run: Path, case: str = "lower") -> Graph:
    """Documents and questions to answers, with its corpus in `run`."""
    return Graph(
        {"documents": Documents, "questions": Queries},
        (
            node("pages", Lines(), documents="documents"),
            node("texts", Read(), pages="pages"),
            node("words", Words(), texts="texts"),
            node("corpus", Shelve(run / "corpus", case), chunks="words"),
            node("answers", Reply(), queries="questions", corpus="corpus"),
        ),
        {"answers": "answers"},
    )


def write(folder: Path, **texts: str) -> Documents:
    """Text files in `folder`, as documents."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    names = sorted(texts)
    return Documents(tuple((f"{n}.txt",) for n in names), tuple(str(folder / f"{n}.txt") for n in names))


@dataclass(frozen=True, slots=True)
class Block:
    """Answers like `Reply`, but a question `wait` never ends; says on disk that it has begun."""

    mark: Path

    def run(self, state: Any, queries: Queries, corpus: Corpora) -> Answers:
        if "wait" in queries.texts:
            self.mark.touch()
            threading.Event().wait()
        return Reply().run(state, queries, corpus)


PIPELINE = """
ridgeway: 1
inputs: {documents: Documents, questions: Queries}
stages:
  pages: {stage: "tests.fakes:Lines", documents: documents}
  texts: {stage: "tests.fakes:Read", pages: pages}
  words: {stage: "tests.fakes:Words", texts: texts}
  corpus: {stage: "tests.fakes:Shelve", chunks: words, path: "${RUN}/corpus"}
  answers: {stage: "tests.fakes:Reply", queries: questions, corpus: corpus, batch: 1}
outputs: {answers: answers}
"""
"""`graph` as a pipeline file."""
