import json
from pathlib import Path

import pytest

from pipeline.errors import RidgewayError
from pipeline.questions import Gold, Question, Questions, read

MATERIAL = Path(__file__).parents[2] / "shared" / "material"


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(folder: Path, *rows: object) -> Questions:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    return read(written(folder, "q.jsonl", "\n".join(lines)))


def fault(folder: Path, row: object) -> str:
    """The message of the one failure that `row` makes."""
    found = jsonl(folder, row, {"question": "good?"})
    assert [q.question for q in found.rows] == ["good?"]
    (failure,) = found.failures
    assert (failure.stage, failure.category) == ("questions", "unreadable")
    return failure.message


def test_a_jsonl_row_gives_all_fields(tmp_path: Path) -> None:
    row = {
        "id": "a",
        "question": " Where? ",
        "documents": "north/*",
        "answers": ["here", "there"],
        "gold": [{"document": "north/a.pdf", "page": 3}],
        "level": "easy",
    }
    (question,) = jsonl(tmp_path, row).rows
    assert question == Question("a", "Where?", "north/*", ("here", "there"), (Gold("north/a.pdf", 3),))


def test_no_answers_and_an_empty_list_of_answers_differ(tmp_path: Path) -> None:
    unknown, none = jsonl(tmp_path, {"question": "a"}, {"question": "b", "answers": []}).rows
    assert unknown.answers is None
    assert none.answers == ()


def test_one_answer_may_be_text_or_a_number(tmp_path: Path) -> None:
    a, b = jsonl(tmp_path, {"question": "a", "answer": "yes"}, {"question": "b", "answers": 1911}).rows
    assert (a.answers, b.answers) == (("yes",), ("1911",))


def test_gold_docs_are_gold_without_a_page(tmp_path: Path) -> None:
    (question,) = jsonl(tmp_path, {"question": "a", "gold_docs": ["Lilu (mythology)", "Alû"]}).rows
    assert question.gold == (Gold("Lilu (mythology)"), Gold("Alû"))


def test_questions_become_queries_in_order(tmp_path: Path) -> None:
    found = jsonl(tmp_path, {"id": "b", "question": "one"}, {"id": "a", "question": "two", "documents": "x*"})
    queries = found.queries()
    assert queries.ids == (("b",), ("a",))
    assert queries.texts == ("one", "two")
    assert queries.documents == ("", "x*")


def test_numeric_ids_become_text_and_missing_ones_name_the_line(tmp_path: Path) -> None:
    found = jsonl(tmp_path, {"id": 7, "question": "a"}, "", {"question": "b"}, {"id": "", "question": "c"})
    assert [q.id for q in found.rows] == ["7", "q3", "q4"]


def test_a_blank_question_is_kept(tmp_path: Path) -> None:
    assert [q.question for q in jsonl(tmp_path, {"question": "  "}).rows] == [""]


def test_an_id_used_twice_names_both_lines(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match=r"id '7' is on line 1 and again on line 3"):
        jsonl(tmp_path, {"id": 7, "question": "a"}, {"question": "b"}, {"id": "7", "question": "c"})


def test_a_broken_row_is_a_failure_and_the_rest_is_read(tmp_path: Path) -> None:
    found = jsonl(tmp_path, {"question": "a"}, '{"question": "b"', {"question": "c"})
    assert [q.id for q in found.rows] == ["q1", "q3"]
    (failure,) = found.failures
    assert failure.id == ("line 2",)
    assert failure.message == "q.jsonl:2: no JSON: Expecting ',' delimiter, column 17"


def test_a_failure_keeps_the_id_of_its_row(tmp_path: Path) -> None:
    (failure,) = jsonl(tmp_path, {"id": "x", "qestion": "a"}).failures
    assert failure.id == ("x",)
    assert failure.message == "q.jsonl:1: unknown key 'qestion'; did you mean 'question'?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "docments": "x*"}, "did you mean 'documents'?"),
        ({"text": "a"}, "no key 'question'"),
        ({"question": ["a"]}, "'question' must be text"),
        ('{"question": "\\ud800"}', "'question' must be text"),
        ({"question": "a", "id": True}, "'id' must be text or a whole number, found True"),
        ({"question": "a", "answers": [None]}, "'answers' must be text or a list of texts, found None"),
        ({"question": "a", "gold": [{"document": "x", "page": 0}]}, "pages are whole numbers from 1"),
        ({"question": "a", "gold": ["x"]}, "'gold' must be a list of {document, page}, found 'x'"),
        ({"question": "a", "answer": "x", "answers": ["y"]}, "are the same field"),
        ('{"question": "a", "question": "b"}', "key 'question' is given twice"),
        ('{"question": "a", "score": NaN}', "NaN is not in JSON"),
        ("[" * 100_000, "no JSON"),
        ("3", "expected a JSON object, found 3"),
    ],
)
def test_what_is_wrong_with_a_row_is_told(tmp_path: Path, row: object, message: str) -> None:
    assert message in fault(tmp_path, row)


def test_line_separators_inside_a_string_do_not_end_the_row(tmp_path: Path) -> None:
    (question,) = jsonl(tmp_path, '{"question": "a\u2028b"}').rows
    assert question.question == "a\u2028b"


def test_text_has_one_question_a_line(tmp_path: Path) -> None:
    found = read(written(tmp_path, "q.txt", "first?\r\n\r\n# a remark\r\nsecond?\r\n"))
    assert [(q.id, q.question) for q in found.rows] == [("q1", "first?"), ("q4", "second?")]


def test_csv_columns_are_found_in_any_case_and_order(tmp_path: Path) -> None:
    found = read(
        written(
            tmp_path,
            "q.csv",
            "\ufeffAnswer,Source Docs,QUESTION,Question Type\n"
            '"one, two","*A*, *B*","What\nis it?",Text\n,,Why?,\n,,,\n',
        )
    )
    assert found == Questions(
        (Question("q2", "What\nis it?", "*A*\n*B*", ("one, two",)), Question("q4", "Why?")),
    )


def test_csv_may_be_separated_by_semicolons_or_tabs(tmp_path: Path) -> None:
    a = read(written(tmp_path, "a.csv", '"id";"question"\n"x";"one, two?"\n'))
    b = read(written(tmp_path, "b.tsv", "id\tquestion\nx\tone, two?\n"))
    assert a == b == Questions((Question("x", "one, two?"),))


def test_csv_gold_is_json_in_a_cell(tmp_path: Path) -> None:
    found = read(
        written(tmp_path, "q.csv", 'question,gold\na,"[{""document"": ""x.pdf"", ""page"": 2}]"\nb,x.pdf\n')
    )
    assert found.rows[0].gold == (Gold("x.pdf", 2),)
    assert "'gold' must be a list" in found.failures[0].message


def test_a_bad_csv_row_is_a_failure_and_the_rest_is_read(tmp_path: Path) -> None:
    found = read(written(tmp_path, "q.csv", 'id,question\na,one\nb,two,three\nc,"x" y\nd,four\ne,"open\n'))
    assert [q.id for q in found.rows] == ["a", "d"]
    assert [f.id for f in found.failures] == [("b",), ("line 4",), ("line 6",)]
    assert "3 cells under 2 columns" in found.failures[0].message


def test_a_csv_header_with_a_slip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match=r"q\.csv:1: unknown key 'qestion'; did you mean 'question'\?"):
        read(written(tmp_path, "q.csv", "id,qestion\na,b\n"))


def test_a_csv_without_the_question_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match="expected a header row with the column 'question'"):
        read(written(tmp_path, "q.csv", "What is it?,Text\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path: Path, encoding: str) -> None:
    found = read(written(tmp_path, "q.txt", "Wo ist das Öl?\n".encode(encoding)))
    assert [q.question for q in found.rows] == ["Wo ist das Öl?"]


def test_another_encoding_is_refused_naming_the_byte(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match=r"q\.txt:2: byte 0x80 at offset 6 is no utf-8"):
        read(written(tmp_path, "q.txt", "cost?\n€5?\n".encode("cp1252")))


def test_utf16_without_a_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match="NUL"):
        read(written(tmp_path, "q.txt", "why?\n".encode("utf-16-le")))


@pytest.mark.parametrize("name", ["q.jsonl", "q.txt"])
def test_a_file_without_a_question_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RidgewayError, match="holds no question"):
        read(written(tmp_path, name, "\n"))


def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match="cannot read the questions"):
        read(tmp_path / "absent.txt")
    with pytest.raises(RidgewayError, match=r"not '\.json'"):
        read(tmp_path / "q.json")


def test_the_kg_rag_questions_are_read() -> None:
    path = MATERIAL / "kg-rag" / "sec-10-q" / "data" / "v1" / "qna_data_mini.csv"
    if not path.exists():
        pytest.skip("needs ../shared/material/kg-rag, which is not part of a clone")
    found = read(path)
    assert not found.failures
    assert {q.documents for q in found.rows} == {"*AAPL*", "*2023 Q3 INTC*", "*2023 Q3 AMZN*"}
    assert all(q.answers and "SOURCE" in q.answers[0] for q in found.rows)
