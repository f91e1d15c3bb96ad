import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import Failure
from pipeline.records import (
    PARQUET_ROWS,
    JsonLines,
    answer_record,
    error_record,
    line,
    printable,
    read_lines,
    write_parquet,
)
from pipeline.values import Answers, Citation, Passage


def answers(status: str = "answered", score: float = 0.5) -> Answers:
    box = ((0.1, 0.2, 0.3, 0.4),)
    passage = Passage(("a.pdf", 3, 0), "It is here.", "Places", 5, 16, score, box, (("b.pdf", 1, 2),))
    return Answers(
        ids=(("q1",),),
        texts=("here",),
        statuses=(status,),
        reasons=("" if status == "answered" else "nothing found",),
        citations=((Citation("a.pdf", 3, 11, 15, "here", score, box),),),
        attributions=("marked",),
        dropped=(1,),
        passages=((passage,),),
        trimmed=(2,),
        rounds=(1,),
        prompt_tokens=(100,),
        new_tokens=(4,),
        stops=("end",),
    )


def parsed(record: dict[str, Any]) -> Any:
    """The record as a strict parser reads it back."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(line(record).encode().decode("utf-8", "strict"), parse_constant=refuse)


def test_an_answer_is_recorded_with_its_pages_from_one() -> None:
    assert parsed(answer_record(answers(), 0, "Where?", 1.5)) == {
        "id": "q1",
        "question": "Where?",
        "answer": "here",
        "status": "answered",
        "reason": "",
        "citations": [
            {
                "document": "a.pdf",
                "page": 3,
                "start": 11,
                "end": 15,
                "quote": "here",
                "score": 0.5,
                "boxes": [[0.1, 0.2, 0.3, 0.4]],
            }
        ],
        "attribution": "marked",
        "dropped_citations": 1,
        "passages": [
            {
                "document": "a.pdf",
                "page": 3,
                "chunk": 0,
                "score": 0.5,
                "heading": "Places",
                "start": 5,
                "end": 16,
                "text": "It is here.",
                "also": [{"document": "b.pdf", "page": 1, "chunk": 2}],
            }
        ],
        "rounds": 1,
        "tokens": {"prompt": 100, "new": 4},
        "stop": "end",
        "trimmed": 2,
        "seconds": 1.5,
    }


def test_an_unanswered_question_has_no_answer_but_a_reason() -> None:
    record = answer_record(answers("unanswered"), 0, "Where?")
    assert record["answer"] is None
    assert record["reason"] == "nothing found"


@pytest.mark.parametrize(
    ("score", "reason"), [(float("nan"), "NaN"), (np.float32("inf"), "Infinity"), (-np.inf, "-Infinity")]
)
def test_a_score_that_is_not_finite_is_null_with_a_reason(score: float, reason: str) -> None:
    record = parsed(answer_record(answers(score=score), 0, "Where?", seconds=score))
    for place in (record["citations"][0], record["passages"][0]):
        assert place["score"] is None
        assert place["score_reason"] == reason
    assert (record["seconds"], record["seconds_reason"]) == (None, reason)


def test_numbers_in_lists_and_arrays_are_made_strict_too() -> None:
    record = {"boxes": [[0.0, float("nan")]], "vector": np.array([1.0, np.inf], np.float32), "n": np.int64(3)}
    assert parsed(record) == {
        "boxes": [[0.0, None]],
        "boxes_reason": "NaN",
        "vector": [1.0, None],
        "vector_reason": "Infinity",
        "n": 3,
    }


@pytest.mark.parametrize("text", ["a\nb\r\x00\x1b[31m", "a\u2028b\u2029c\x85d", "\x7f\x9b", "naïve 😀 €"])
def test_any_text_is_one_line_and_comes_back_whole(text: str) -> None:
    written = line({"answer": text})
    assert len(written.splitlines()) == 1
    assert not any(ord(c) < 32 or 0x7F <= ord(c) <= 0x9F for c in written)
    assert json.loads(written) == {"answer": text}


def test_halves_of_surrogate_pairs_are_joined_or_replaced() -> None:
    assert parsed({"\udc00": "\ud83d\ude00 and \ud800"}) == {"\ufffd": "😀 and \ufffd"}


def test_what_is_no_json_value_is_an_error() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        line({"answer": object()})


def test_lines_are_readable_as_soon_as_they_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with JsonLines(path) as file:
        file.append({"id": "a"})
        assert list(read_lines(path)) == [{"id": "a"}]
        file.append({"id": "b"})
    with pytest.raises(ValueError, match="closed"):
        file.append({"id": "c"})
    assert path.read_bytes() == b'{"id": "a"}\n{"id": "b"}\n'


@pytest.mark.parametrize("torn", [b"", b'{"id": "b', b"\xff"])
def test_a_file_is_continued_after_its_last_whole_line(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "a"}\n' + torn)
    with JsonLines(path) as file:
        file.append({"id": "c"})
    assert [record["id"] for record in read_lines(path)] == ["a", "c"]


def test_an_error_names_document_and_page() -> None:
    failure = Failure(("a.pdf", 3), "read", "unreadable", "page 3 is torn", detail="Traceback ...")
    assert error_record(failure) == {
        "id": ["a.pdf", 3],
        "category": "unreadable",
        "stage": "read",
        "question": None,
        "document": "a.pdf",
        "page": 3,
        "chunk": None,
        "message": "page 3 is torn",
    }


def test_an_error_of_a_question_names_no_document() -> None:
    record = error_record(Failure(("q1", 2), "generate", "model", "no"), question=True)
    assert (record["question"], record["document"], record["page"]) == ("q1", None, None)


def test_parquet_holds_what_the_lines_hold(tmp_path: Path) -> None:
    import pyarrow.parquet

    path, count = tmp_path / "answers.jsonl", PARQUET_ROWS + 2
    records = [answer_record(answers(), 0, f"question {i}", 0.5) for i in range(count - 1)]
    records.append(answer_record(answers("unanswered", score=float("nan")), 0, "last"))
    with JsonLines(path) as file:
        for record in records:
            file.append(record)
    assert write_parquet(path, tmp_path / "answers.parquet") == count
    rows = pyarrow.parquet.read_table(tmp_path / "answers.parquet").to_pylist()
    assert rows[:-1] == records[:-1]
    assert (rows[-1]["answer"], rows[-1]["citations"][0]["score"]) == (None, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answers.jsonl", "answers.parquet"]


def test_parquet_of_no_answers_has_the_same_columns(tmp_path: Path) -> None:
    import pyarrow.parquet

    (tmp_path / "answers.jsonl").touch()
    assert write_parquet(tmp_path / "answers.jsonl", tmp_path / "answers.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "answers.parquet")
    assert set(table.column_names) == set(answer_record(answers(), 0, "Where?"))


def test_text_for_a_terminal_cannot_steer_it() -> None:
    assert printable("a\x1b[2Jb\r\x9bc\u202ed\ud800\n\te") == (
        "a\\u001b[2Jb\\u000d\\u009bc\\u202ed\ufffd\n\te"
    )
