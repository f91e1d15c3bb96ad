import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import Failure, RidgewayError
from pipeline.evaluate import exact_match, f1, names, normalise, read_answers, score, score_records
from pipeline.questions import Gold, Question, Questions


def place(document: str, page: int = 1, heading: str = "", also: tuple[str, ...] = ()) -> dict[str, Any]:
    twins = [{"document": name, "page": 1, "chunk": 0} for name in also]
    return {"document": document, "page": page, "heading": heading, "also": twins}


def record(answer: str | None, passages: list[Any] = [], citations: list[Any] = []) -> dict[str, Any]:  # noqa: B006
    status = "unanswered" if answer is None else "answered"
    return {"answer": answer, "status": status, "passages": passages, "citations": citations}


def test_answers_are_normalised_as_in_squad() -> None:
    assert normalise("  The  Ostermoor-workshop, a place!\n") == "ostermoorworkshop place"


def test_exact_match_ignores_case_articles_and_punctuation() -> None:
    assert exact_match("The Eiffel tower.", "eiffel tower") == 1.0
    assert exact_match("Eiffel", "eiffel tower") == 0.0


def test_f1_is_the_harmonic_mean_over_bags_of_words() -> None:
    assert f1("red red lamp", "red lamp") == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert f1("green", "red lamp") == 0.0
    assert f1("", "red") == 0.0


def test_the_best_of_several_right_answers_counts() -> None:
    scores = score_records({"a": record("60 cm [1]")}, [Question("a", "?", answers=("sixty", "60 cm"))])
    assert (scores.exact_match, scores.f1) == (1.0, 1.0)


def test_every_question_counts_answered_or_not() -> None:
    questions = [Question(i, "?", answers=("yes",)) for i in "abcd"]
    scores = score_records({"a": record("yes"), "b": record("no"), "c": record(None)}, questions)
    assert (scores.questions, scores.answered, scores.unanswered, scores.failed) == (4, 2, 1, 1)
    assert (scores.answerable, scores.exact_match, scores.f1) == (4, 0.25, 0.25)


def test_unanswerable_questions_are_right_when_left_unanswered() -> None:
    questions = [Question("a", "?", answers=()), Question("b", "?", answers=()), Question("c", "?")]
    scores = score_records({"a": record(None), "b": record("yes"), "c": record(None)}, questions)
    assert (scores.unanswerable, scores.unanswerable_accuracy) == (2, 0.5)
    assert scores.exact_match is None


def test_recall_counts_gold_documents_among_the_first_passages() -> None:
    passages = [place("x.pdf"), place("a.pdf"), place("y.pdf"), place("b.pdf"), place("z.pdf")]
    question = Question("a", "?", gold=(Gold("a.pdf"), Gold("b.pdf")))
    scores = score_records({"a": record("yes", passages)}, [question])
    assert scores.document_recall == ((1, 0.0), (2, 0.5), (4, 1.0), (5, 1.0))
    assert scores.page_recall == ()
    assert scores.with_pages == 0


def test_page_recall_wants_document_and_page() -> None:
    question = Question("a", "?", gold=(Gold("a.pdf", 2),))
    scores = score_records({"a": record("yes", [place("a.pdf", 1), place("a.pdf", 2)])}, [question])
    assert scores.document_recall == ((1, 1.0), (2, 1.0))
    assert scores.page_recall == ((1, 0.0), (2, 1.0))


def test_a_passage_counts_under_the_names_of_its_twins() -> None:
    question = Question("a", "?", gold=(Gold("copy.pdf", 1),))
    scores = score_records({"a": record("yes", [place("a.pdf", 7, also=("copy.pdf",))])}, [question])
    assert scores.page_recall == ((1, 1.0),)


@pytest.mark.parametrize("gold", ["reports/2023 Q3.pdf", "2023 Q3.pdf", "2023 Q3", "*2023*", "Summary"])
def test_a_gold_name_is_a_name_a_stem_a_glob_or_a_heading(gold: str) -> None:
    assert names(gold, "reports/2023 Q3.pdf", "Summary")


@pytest.mark.parametrize("gold", ["2023", "*.txt", "Sum*"])
def test_a_gold_name_is_not_a_part_of_a_name(gold: str) -> None:
    assert not names(gold, "reports/2023 Q3.pdf", "Summary")


def test_a_citation_is_right_on_a_gold_page_only() -> None:
    questions = [Question(i, "?", gold=(Gold("a.pdf", 2),)) for i in "abc"]
    records = {
        "a": record("yes", citations=[{"document": "b.pdf", "page": 2}, {"document": "a.pdf", "page": 2}]),
        "b": record("yes", citations=[{"document": "a.pdf", "page": 1}]),
    }
    assert score_records(records, questions).citation_page_accuracy == pytest.approx(1 / 3)


def test_answers_to_other_questions_are_refused() -> None:
    with pytest.raises(RidgewayError, match="'x' is no id of the question file"):
        score_records({"x": record("yes")}, [Question("a", "?")])


def test_a_run_folder_is_scored_from_its_answers(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"id": "a", **record("no")}) + "\n" + json.dumps({"id": "a", **record("yes")}))
    scores = score(tmp_path, Questions((Question("a", "?", answers=("yes",), gold=(Gold("x", 1),)),)))
    assert scores.as_dict()["exact_match"] == 1.0
    assert json.loads(json.dumps(scores.as_dict()))["document_recall"] == {}
    assert scores.table() == (
        ("exact match", "1.000", "1"),
        ("F1", "1.000", "1"),
        ("cited page is right", "0.000", "1"),
    )


def test_questions_that_could_not_be_read_count_as_failed(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(json.dumps({"id": "a", **record("yes")}))
    unread = Failure(("line 2",), "questions", "unreadable", "no JSON")
    scores = score(tmp_path, Questions((Question("a", "?"),), (unread,)))
    assert (scores.questions, scores.answered, scores.failed) == (2, 1, 1)


def test_a_missing_or_broken_file_of_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match="cannot read the answers"):
        read_answers(tmp_path / "answers.jsonl")
    (tmp_path / "answers.jsonl").write_text('{"id": "a"}\n{"id": ')
    with pytest.raises(RidgewayError, match="line 2 is no answer record"):
        read_answers(tmp_path / "answers.jsonl")
