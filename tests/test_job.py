from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import perfetto, planning
from pipeline.cluster import local_client
from pipeline.errors import Failure, IndexMismatchError, ModelError, PlanError, RidgewayError
from pipeline.graph import Graph, node
from pipeline.job import Summary, Task, Wishes, run_job
from pipeline.machine import Device, Machine
from pipeline.questions import Question, Questions
from pipeline.records import read_lines
from pipeline.timeline import totals
from pipeline.values import Answers, Corpora, Queries
from tests.fakes import Reply, graph, write


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_client(Machine((Device("cpu:0"),))) as found:
        yield found


def questions(**texts: str) -> Questions:
    return Questions(tuple(Question(k, v) for k, v in texts.items()))


def task(folder: Path, asked: Questions | None = None, **texts: str) -> Task:
    run = folder / "run"
    return Task(graph(run), run, run, write(folder / "documents", **texts), asked)


def records(run: Path, name: str) -> list[dict[str, Any]]:
    return list(read_lines(run / name))


def test_answers_come_in_the_order_of_the_questions(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(z="two", a="one", m="two"), doc="one\ntwo")
    run_job(job, client=client)
    assert [(r["id"], r["answer"]) for r in records(job.out, "answers.jsonl")] == [
        ("z", "page 2"), ("a", "page 1"), ("m", "page 2"),
    ]  # fmt: skip


def test_counts_add_up(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), good="one two\n\ntorn", empty="\n", bad="x", none="")
    summary = run_job(
        replace(job, failures=(Failure(("void",), "crawl", "empty", "no bytes"),)), client=client
    )
    assert dict(summary.documents) == {"read": 5, "indexed": 1, "empty": 2, "failed": 2, "unsupported": 0}
    assert dict(summary.pages) == {"read": 4, "indexed": 1, "empty": 2, "failed": 1}
    assert summary.chunks == 2


def test_each_bad_row_is_listed_once_and_the_exit_code_says_so(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one", b="boom", c="one"), good="one\ntorn", bad="x")
    summary = run_job(job, client=client)
    found = [
        (r["document"], r["page"], r["question"], r["category"]) for r in records(job.out, "errors.jsonl")
    ]
    assert sorted(found, key=str) == [
        ("bad.txt", None, None, "unreadable"), ("good.txt", 2, None, "unreadable"), (None, None, "b", "bug"),
    ]  # fmt: skip
    assert [r["id"] for r in records(job.out, "answers.jsonl")] == ["a", "c"]
    assert summary.exit_code == 1


def test_an_empty_folder_leaves_every_question_unanswered(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"))
    summary = run_job(job, client=client)
    (answer,) = records(job.out, "answers.jsonl")
    assert (answer["status"], answer["answer"], answer["citations"]) == ("unanswered", None, [])
    assert answer["reason"]
    assert summary.exit_code == 0


def test_an_index_that_fits_is_used_again(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    stamp = (job.out / "corpus" / "words.json").stat().st_mtime_ns
    again = run_job(replace(job, documents=None, questions=questions(b="one")), client=client)
    assert again.reused
    assert again.documents == {"read": 1, "indexed": 1, "empty": 0, "failed": 0, "unsupported": 0}
    assert (job.out / "corpus" / "words.json").stat().st_mtime_ns == stamp
    assert [r["id"] for r in records(job.out, "answers.jsonl")] == ["b"]


def test_another_setting_is_refused_by_name(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    with pytest.raises(IndexMismatchError, match=r"corpus\.case was 'lower', the pipeline asks for 'upper'"):
        run_job(replace(job, graph=graph(job.out, "upper")), client=client)


def test_changed_documents_are_refused_by_name_and_reindexed_when_asked(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="new"), doc="one")
    run_job(job, client=client)
    changed = replace(job, documents=write(tmp_path / "documents", doc="one\nnew"))
    with pytest.raises(IndexMismatchError, match=r"1 documents changed \('doc.txt'\)"):
        run_job(changed, client=client)
    run_job(replace(changed, reindex=True), client=client)
    assert records(job.out, "answers.jsonl")[0]["answer"] == "page 2"


def test_indexing_alone_answers_nothing(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, None, doc="one")
    summary = run_job(job, client=client)
    assert (summary.chunks, summary.answered) == (1, 0)
    assert (job.out / "index.json").is_file()


def test_questions_without_documents_or_index_are_refused(tmp_path: Path, client: Any) -> None:
    job = replace(task(tmp_path, questions(a="one")), documents=None)
    with pytest.raises(RidgewayError, match=r"no finished index .* --documents"):
        run_job(job, client=client)


def test_a_score_that_is_not_a_number_is_null_with_its_reason(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    (citation,) = records(job.out, "answers.jsonl")[0]["citations"]
    assert citation["score"] is None
    assert citation["score_reason"]


def test_the_run_folder_says_what_ran(tmp_path: Path, client: Any) -> None:
    job = replace(
        task(tmp_path, questions(a="one"), doc="one"), pipeline="the file", versions={"python": "3"}
    )
    summary: Summary = run_job(job, client=client)
    found = json.loads((job.out / "run.json").read_text())
    assert found["summary"]["answered"] == summary.answered == 1
    assert {s["step"] for s in found["stages"]} == {"pages", "texts", "words", "corpus", "answers"}
    assert (job.out / "pipeline.yaml").read_text() == found["pipeline"] == "the file"


@dataclass(frozen=True, slots=True)
class NoModel:
    """Answers with a model that is not there."""

    model: str = "nowhere"

    def identity(self) -> dict[str, str]:
        raise ModelError("no model 'nowhere'")

    def run(self, state: Any, queries: Queries, corpus: Corpora) -> Answers:
        return Reply().run(state, queries, corpus)


@pytest.mark.parametrize(
    ("stage", "device", "error"), [(Reply(), "cuda:9", PlanError), (NoModel(), None, ModelError)]
)
def test_what_cannot_run_leaves_earlier_results_alone(
    tmp_path: Path, client: Any, stage: Any, device: str | None, error: type[RidgewayError]
) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    before = {p: p.read_bytes() for p in job.out.iterdir() if p.is_file()}
    last = node("answers", stage, device=device, queries="questions", corpus="corpus")
    bad = Graph(job.graph.inputs, (*job.graph.nodes[:-1], last), job.graph.outputs)
    with pytest.raises(error):
        run_job(replace(job, graph=bad), client=client)
    assert before == {p: p.read_bytes() for p in job.out.iterdir() if p.is_file()}


def test_indexing_keeps_answers_and_a_new_run_removes_old_parquet(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    (job.out / "answers.parquet").touch()
    run_job(replace(job, questions=None, reindex=True), client=client)
    assert [r["answer"] for r in records(job.out, "answers.jsonl")] == ["page 1"]
    assert (job.out / "answers.parquet").exists()
    run_job(job, client=client)
    assert not (job.out / "answers.parquet").exists()


def test_documents_that_failed_are_listed_again_where_the_index_is_used_again(
    tmp_path: Path, client: Any
) -> None:
    job = task(tmp_path, questions(a="one"), good="one\ntorn", bad="x")
    first = run_job(job, client=client)
    listed = records(job.out, "errors.jsonl")
    again = run_job(job, client=client)
    assert again.reused
    assert sorted(listed, key=str) == sorted(records(job.out, "errors.jsonl"), key=str)
    assert (first.exit_code, again.exit_code) == (1, 1)
    assert run_job(replace(job, documents=None), client=client).exit_code == 0


def test_question_rows_that_cannot_be_read_count_as_failed(tmp_path: Path, client: Any) -> None:
    asked = replace(
        questions(a="one"), failures=(Failure(("line 2",), "questions", "unreadable", "no JSON"),)
    )
    summary = run_job(task(tmp_path, asked, doc="one"), client=client)
    assert (summary.answered, summary.failed, summary.exit_code) == (1, 1, 1)


def test_a_reindex_that_was_stopped_leaves_no_record_of_the_old_index(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(replace(job, reindex=True), stop, client)
    assert not (job.out / "index.json").exists()


# plans


def record(job: Task) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.out / "run.json").read_text())
    return found


def test_the_run_folder_says_what_was_predicted_and_where_time_went(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one\ntwo")
    run_job(job, client=client)
    found = record(job)
    assert {s["step"] for s in found["predicted"]["steps"]} == {t["step"] for t in found["stages"]}
    assert found["predicted"]["measured_seconds"] > 0
    assert all(line.startswith("cpu:0 ") for line in found["advice"])
    assert isinstance(found["memory"], str)


def test_the_timeline_has_every_batch(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one\ntwo")
    run_job(job, client=client)
    spans = perfetto.read(job.out / "timeline.json").spans
    assert {t.step: (t.batches, t.rows) for t in totals(spans)} == {
        s["step"]: (s["batches"], s["rows"]) for s in record(job)["stages"]
    }


def test_a_second_run_predicts_from_what_the_first_has_shown(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of stages without a formula, 5 ms a row were assumed."""
    monkeypatch.setattr(planning, "_path", lambda: tmp_path / "learned.json")
    job = task(tmp_path, questions(**{f"q{i}": "one" for i in range(200)}), doc="one\ntwo")
    run_job(job, client=client)
    assert (tmp_path / "learned.json").is_file()
    first = record(job)["predicted"]
    run_job(replace(job, reindex=True), client=client)
    second = record(job)["predicted"]
    assumed, known = ({s["step"]: s["predicted_seconds"] for s in p["steps"]} for p in (first, second))
    assert assumed["answers"] > 200 * 0.005 > 4 * known["answers"]


def test_an_index_that_is_used_again_leaves_a_timeline_of_the_questions_alone(
    tmp_path: Path, client: Any
) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    run_job(replace(job, documents=None), client=client)
    assert {s.step for s in perfetto.read(job.out / "timeline.json").spans} == {"answers"}


def test_a_deadline_that_would_be_missed_is_refused_before_anything_is_removed(
    tmp_path: Path, client: Any
) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    run_job(job, client=client)
    before = record(job)
    with pytest.raises(PlanError, match=r"the deadline may be missed: .* segment '\w+' takes"):
        run_job(replace(job, reindex=True), client=client, wishes=Wishes(deadline=1e-6))
    assert record(job) == before
    assert run_job(replace(job, reindex=True), client=client, wishes=Wishes(deadline=1e6)).answered == 1


def test_policies_of_the_call_stand_above_those_of_the_pipeline(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    asked = replace(job.graph, policies=("steal",))
    seen: list[tuple[str, ...]] = []

    def listen(run: Any) -> None:
        seen.append(run.plan.policies)

    run_job(replace(job, graph=asked), listen, client)
    run_job(replace(job, graph=asked, reindex=True), listen, client, Wishes(("guided",)))
    assert set(seen) == {("steal",), ("guided",)}


def test_loss_on_edges_is_allowed_only_where_it_is_wished(tmp_path: Path, client: Any) -> None:
    job = task(tmp_path, questions(a="one"), doc="one")
    seen: list[bool] = []

    def listen(run: Any) -> None:
        seen.append(run.plan.lossy)

    run_job(job, listen, client)
    assert set(seen) == {False}
    run_job(replace(job, reindex=True), listen, client, Wishes(lossy=True))
    assert seen[-1]
