"""The run folder: what a job leaves behind, written as it goes.

RUN/answers.jsonl   a line for each answered or unanswered question, written as it finishes,
                    in the order of the questions at the end
RUN/errors.jsonl    a line for each row that failed: documents, pages, questions
RUN/run.json        versions, pipeline, models, plan, counts, seconds, predicted and measured
RUN/timeline.json   what ran when and where, for Perfetto (ui.perfetto.dev)
RUN/pipeline.yaml   the pipeline as it ran
RUN/index.json      what the indexes in RUN were made from (see `stored`)
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import stored
from pipeline.errors import Failure
from pipeline.graph import Graph
from pipeline.program import flatten
from pipeline.questions import Questions
from pipeline.records import JsonLines, answer_record, error_record, sort_lines, write_json
from pipeline.stage import expands
from pipeline.timeline import Tally, totals
from pipeline.values import Answers, Documents, Rows

if TYPE_CHECKING:
    from pipeline.executor import Run
    from pipeline.job import Listen
    from pipeline.local import Result
    from pipeline.planner import Planned


@dataclass(frozen=True, slots=True)
class Task:
    """What a job is to do. `out`: the run folder; `index`: where its indexes lie, often the same.

    `failures`: rows that failed before the run; `unsupported`: files that no reader knows.
    """

    graph: Graph
    out: Path
    index: Path
    documents: Documents | None = None
    questions: Questions | None = None
    failures: tuple[Failure, ...] = ()
    unsupported: tuple[str, ...] = ()
    reindex: bool = False
    pipeline: str = ""
    """The pipeline file of `graph`, kept in the run folder."""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of a job. `documents`, `pages`: read = indexed + empty + failed."""

    answered: int
    unanswered: int
    failed: int
    errors: int
    documents: Mapping[str, int]
    pages: Mapping[str, int]
    chunks: int
    reused: bool
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 all well, 1 some rows failed."""
        return 1 if self.errors else 0


@dataclass(frozen=True, slots=True)
class Work:
    """What is left to run, the index that is used again if there is one, and the documents' hashes."""

    graph: Graph
    inputs: Mapping[str, Rows]
    known: stored.Stored | None
    hashes: Mapping[str, str]


class RunFolder:
    """Puts results into the run folder as they come."""

    def __init__(self, task: Task, work: Work) -> None:
        self.task = task
        self.work = work
        self.started = time.monotonic()
        self.models = stored.models(
            task.graph
        )  # one that is not there ends the job here, before old results go
        old = ("answers.jsonl", "answers.parquet") if task.questions else ()  # indexing keeps old answers
        for name in (*old, "errors.jsonl", "run.json", "timeline.json"):
            (task.out / name).unlink(missing_ok=True)
        if work.known is None:  # a stopped run leaves no record that does not fit
            (task.index / stored.FILE).unlink(missing_ok=True)
        (task.out / "pipeline.yaml").write_text(task.pipeline, encoding="utf-8")
        self.answers = JsonLines(task.out / "answers.jsonl")
        self.errors = JsonLines(task.out / "errors.jsonl")
        self.texts = {q.id: q.question for q in task.questions.rows} if task.questions else {}
        self.reading = {n.name for n in stored.indexing(task.graph).nodes}
        unread = len(task.questions.failures) if task.questions else 0
        self.statuses = {"answered": 0, "unanswered": 0, "failed": unread}
        self.failures: list[Failure] = []
        self.run: Run | None = None
        self.seen: dict[str, Any] = {}

    def fail(self, failure: Failure) -> None:
        """Write down a row that failed."""
        self.failures.append(failure)
        if failure.detail:
            logging.getLogger("ridgeway").debug(
                "row %s, stage %s:\n%s", failure.id, failure.stage, failure.detail
            )
        self.errors.append(error_record(failure, failure.stage not in {*self.reading, "crawl"}))

    def follow(self, listen: Listen, client: Any, planned: Planned | None) -> None:
        """Run the graph as planned, and write what comes."""
        from pipeline.executor import run
        from pipeline.look_back import look_back

        plan = planned.plan if planned else None
        self.run = run(self.work.graph, self.work.inputs, client, ordered=False, listen=listen, plan=plan)
        told = 0
        for result in self.run:
            for failure in self.run.failures[told:]:
                self.fail(failure)
            told = len(self.run.failures)
            if isinstance(result.rows, Answers):
                self.take(result)
        for failure in self.run.failures[told:]:
            self.fail(failure)
        self.seen = look_back(self.run, planned, self.task.out)

    def take(self, result: Result) -> None:
        """Write down what became of a question."""
        question = str(result.id[0])
        seconds = round(time.monotonic() - self.started, 3)
        rows = result.rows
        if isinstance(rows, Answers) and len(rows):
            self.statuses[rows.statuses[0]] += 1
            self.answers.append(answer_record(rows, 0, self.texts[question], seconds))
            return
        self.statuses["failed"] += 1
        for failure in result.failures:
            if failure.id != result.id:
                why = f"row {failure.id} of stage {failure.stage!r} failed: {failure.message}"
                self.fail(Failure(result.id, "answers", failure.category, why))

    def finish(self) -> Summary:
        """Put the answers in order, and write what happened."""
        if self.task.questions is not None:
            sort_lines(self.task.out / "answers.jsonl", {q: i for i, q in enumerate(self.texts)})
        documents, pages, chunks = self.count()
        known = self.work.known
        summary = Summary(
            answered=self.statuses["answered"],
            unanswered=self.statuses["unanswered"],
            failed=self.statuses["failed"],
            errors=len(self.failures),
            documents=documents,
            pages=pages,
            chunks=chunks,
            reused=known is not None,
            seconds=round(time.monotonic() - self.started, 3),
        )
        if known is None and not {f.stage for f in self.failures} & {
            n.name for n in stored.durable(self.task.graph)
        }:
            counts = {"documents": documents, "pages": pages, "chunks": chunks}
            missing = tuple(f for f in self.failures if f.stage in self.reading)
            settings = stored.settings(self.task.graph)
            stored.Stored(settings, self.work.hashes, counts, missing).save(self.task.index)
        write_json(self.task.out / "run.json", self.record(summary))
        return summary

    def count(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Documents, pages (read = indexed + empty + failed), and chunks."""
        if self.work.known is not None:
            c = self.work.known.counts
            return dict(c["documents"]), dict(c["pages"]), int(c["chunks"])
        tallies = self.run.tallies if self.run else {}
        listing, splitting = (_expander(self.work.graph, depth, tallies) for depth in (1, 2))
        mine = [f for f in self.failures if f.stage in {*self.reading, "crawl"}]
        bad = {f.id[0] for f in mine if f.id} - {i[0] for i in splitting.roots}
        bad_pages = len({f.id for f in mine if len(f.id) == 2})
        read = len(self.task.documents or ()) + len(self.task.failures)
        return (
            _counts(read, len(splitting.roots), len(bad)) | {"unsupported": len(self.task.unsupported)},
            _counts(listing.rows, splitting.parents, bad_pages),
            splitting.rows,
        )

    def record(self, summary: Summary) -> dict[str, Any]:
        """The contents of run.json."""
        settings = stored.settings(self.task.graph)
        spans = self.run.spans if self.run else []
        return {
            "versions": dict(self.task.versions),
            "pipeline": self.task.pipeline,
            "pipeline_sha256": hashlib.sha256(self.task.pipeline.encode()).hexdigest(),
            "models": self.models,
            "summary": dataclasses.asdict(summary),
            "indexing": settings,
            "unsupported": list(self.task.unsupported),
            "plan": [dict(zip(("step", "devices", "batch"), row, strict=True)) for row in self.plan()],
            "stages": [dataclasses.asdict(t) for t in totals(spans)],
            **self.seen,
        }

    def plan(self) -> list[tuple[str, str, str]]:
        """The plan's table, once there is a plan."""
        return self.run.plan.table() if self.run and self.run.plan else []


def _expander(graph: Graph, depth: int, tallies: Mapping[str, Tally]) -> Tally:
    """The tally of the first step that makes many rows of ids of `depth` elements."""
    steps = [s for s in flatten(graph).steps if expands(s.stage) and s.depth == depth]
    return tallies.get(steps[0].name, Tally()) if steps else Tally()


def _counts(read: int, indexed: int, failed: int) -> dict[str, int]:
    return {"read": read, "indexed": indexed, "empty": read - indexed - failed, "failed": failed}
