"""The demo, end to end, with the real models: what `make demo` does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import evaluate, questions
from pipeline.cluster import local_client
from pipeline.config import dump, load
from pipeline.errors import IndexMismatchError
from pipeline.job import Summary, Task, run_job
from pipeline.machine import Device, Machine, cores
from pipeline.records import read_lines
from stages import STAGES
from vision.files import crawl

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "configs" / "demo"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_client(Machine((Device("cpu:0", cores()),))) as found:
        yield found


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    run = tmp_path_factory.mktemp("demo")
    settings = ("stages.said.max_new_tokens=24",)
    graph = load(ROOT / "configs" / "document_qa.yaml", STAGES, {"RUN": str(run)}, settings)
    found = crawl([DEMO / "documents"])
    asked = questions.read(DEMO / "questions.jsonl")
    return Task(graph, run, run, found.documents, asked, found.failures, pipeline=dump(graph, STAGES))


@pytest.fixture(scope="module")
def summary(task: Task, client: Any) -> Summary:
    return run_job(task, client=client)


@pytest.fixture(scope="module")
def records(task: Task, summary: Summary) -> Mapping[str, Any]:
    return {r["id"]: r for r in read_lines(task.out / "answers.jsonl")}


def test_every_document_and_page_is_indexed(summary: Summary) -> None:
    assert dict(summary.documents) == {"read": 5, "indexed": 5, "empty": 0, "failed": 0, "unsupported": 0}
    assert dict(summary.pages) == {"read": 11, "indexed": 11, "empty": 0, "failed": 0}
    assert summary.exit_code == 0


def test_at_least_eight_of_ten_questions_cite_the_right_page(task: Task, records: Mapping[str, Any]) -> None:
    assert task.questions is not None
    right = 0
    for q in task.questions.rows:
        r = records[q.id]
        right += evaluate.cites(r, q.gold) if q.gold else r["status"] == "unanswered"
    assert right >= 8, {k: [(c["document"], c["page"]) for c in r["citations"]] for k, r in records.items()}


def test_the_question_that_the_documents_do_not_answer_is_left_open(records: Mapping[str, Any]) -> None:
    r = records["mural"]
    assert (r["status"], r["answer"], r["citations"]) == ("unanswered", None, [])
    assert r["reason"]


def test_quotes_stand_where_the_citations_say(task: Task, records: Mapping[str, Any]) -> None:
    texts = {
        (p["document"], p["page"], p["start"]): p["text"] for r in records.values() for p in r["passages"]
    }
    for r in records.values():
        for c in r["citations"]:
            near = [
                t[c["start"] - s : c["end"] - s]
                for (d, page, s), t in texts.items()
                if (d, page) == (c["document"], c["page"]) and s <= c["start"] and c["end"] <= s + len(t)
            ]
            assert c["quote"] in near


def test_the_scan_and_the_photograph_are_cited_with_boxes(records: Mapping[str, Any]) -> None:
    for question in ("stranded", "fennel-tank"):
        first = records[question]["citations"][0]
        assert first["boxes"]
        assert all(0 <= x <= 1 for box in first["boxes"] for x in box)


def test_another_encoder_is_refused_before_any_work(task: Task, summary: Summary) -> None:
    graph = load(
        ROOT / "configs" / "document_qa.yaml", STAGES, {"RUN": str(task.out)}, ("stages.chunks.tokens=100",)
    )
    with pytest.raises(IndexMismatchError, match=r"chunks\.tokens was 200, the pipeline asks for 100"):
        run_job(replace(task, graph=graph))


def test_the_multi_step_pipeline_answers_over_the_same_index(
    task: Task, summary: Summary, client: Any, tmp_path: Path
) -> None:
    settings = ("stages.steps.loop.stages.said.max_new_tokens=8",)
    graph = load(ROOT / "configs" / "multi_step_qa.yaml", STAGES, {"RUN": str(task.out)}, settings)
    assert task.questions is not None
    asked = questions.Questions(
        tuple(q for q in task.questions.rows if q.id in ("largest-tank", "opening-year"))
    )
    found = run_job(replace(task, graph=graph, out=tmp_path, documents=None, questions=asked), client=client)
    assert found.reused
    rounds = {r["id"]: r["rounds"] for r in read_lines(tmp_path / "answers.jsonl")}
    assert set(rounds) == {"largest-tank", "opening-year"}
    assert all(1 <= n <= 2 for n in rounds.values())


def test_the_record_of_the_run_names_models_and_seconds(task: Task, summary: Summary) -> None:
    found = json.loads((task.out / "run.json").read_text())
    assert set(found["models"]) == {"all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"}
    assert all(m["fingerprint"] for m in found["models"].values())
    assert sum(s["seconds"] for s in found["stages"]) <= summary.seconds + 1
