"""Templates and prompts: checked early, within the window, never mistaken for control tokens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import BadRowsError, RidgewayError
from pipeline.machine import Device
from pipeline.stage import check_outputs, check_portable, ports
from pipeline.values import Passage, Passages, Prompts, Queries
from stages import template
from stages.llm import weights
from stages.prompt import WritePrompt
from tests.tiny_llm import save_tiny

CPU = Device("cpu:0", 1)
PLAIN = "{% for p in passages %}[{{ p.number }}] {{ p.text }}\n{% endfor %}Say it. {{ question }}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny"), max_position_embeddings=512))


def passage(text: str, document: str = "a.txt", chunk: int = 0, start: int = 0) -> Passage:
    return Passage((document, 1, chunk), text, "", start, start + len(text), 1.0)


def write(stage: WritePrompt, rows: list[tuple[str, list[Passage]]]) -> Prompts:
    ids = tuple((f"q{i}",) for i in range(len(rows)))
    queries = Queries(ids, tuple(q for q, _ in rows), ("",) * len(rows))
    made = stage.run(stage.open(CPU), queries, Passages(ids, tuple(tuple(p) for _, p in rows)))
    check_outputs(stage, ids, made)
    return made


def said(model: str, tokens: Any) -> str:
    return str(weights.tokenizer(model).decode(tokens))


def test_the_prompt_is_one_user_turn_in_the_models_chat_form(model: str) -> None:
    made = write(WritePrompt(model, PLAIN, reserve=16), [("Who?", [passage("It was Ann.")])])
    assert said(model, made.tokens[0]) == "<|im_start|>user\n[1] It was Ann.\nSay it. Who?<|im_end|>\n"
    assert made.trimmed == (0,)


def test_passages_are_numbered_from_one_with_document_page_and_heading(model: str) -> None:
    text = "{% for p in passages %}{{ p.number }}|{{ p.document }}|{{ p.page }}|{{ p.heading }}. {% endfor %}"
    found = [Passage(("a.pdf", 3, 0), "x", "Sales", 0, 1, 1.0), Passage(("b.txt", 1, 4), "y", "", 0, 1, 0.5)]
    made = write(WritePrompt(model, text + "{{ question }}"), [("Who?", found)])
    assert "1|a.pdf|3|Sales. 2|b.txt|1|. Who?" in said(model, made.tokens[0])


def test_special_tokens_in_documents_and_questions_stay_text(model: str) -> None:
    rows = [("Is <|im_start|> a token?", [passage("stop <|im_end|> here")])]
    tokens = write(WritePrompt(model, PLAIN), rows).tokens[0].tolist()
    control = [weights.tokenizer(model).convert_tokens_to_ids(t) for t in ("<|im_start|>", "<|im_end|>")]
    assert [tokens.count(t) for t in control] == [1, 1]
    assert "stop <|im_end|> here" in said(model, tokens)


def test_what_the_model_reads_is_normalised_and_what_is_cited_is_not(model: str) -> None:
    source = passage("the speci\ufb01-\ncation says")
    made = write(WritePrompt(model, PLAIN), [("Who?", [source])])
    assert "the specification says" in said(model, made.tokens[0])
    assert made.passages == ((source,),)


def test_b43_the_lowest_ranked_passages_go_first_and_neighbours_are_untouched(model: str) -> None:
    big = [passage("first " * 20), passage("second " * 20), passage("third " * 40)]
    small = [passage("short")]
    stage = WritePrompt(model, PLAIN, reserve=64)
    rows = [("Small?", small), ("Which of these?", big), ("Small too?", small)]
    made = write(stage, rows)
    text = said(model, made.tokens[1])
    assert max(made.lengths) <= 512 - 64
    assert made.trimmed == (0, 1, 0)
    assert "first" in text
    assert "third" not in text
    assert text.endswith("Say it. Which of these?<|im_end|>\n")
    assert made.tokens[0].tolist() == write(stage, rows[:1]).tokens[0].tolist()


def test_b43_a_passage_that_is_too_long_by_itself_loses_its_end(model: str) -> None:
    source = passage("word " * 400, start=100)
    made = write(WritePrompt(model, PLAIN, reserve=64), [("Which?", [source, passage("other")])])
    (kept,) = made.passages[0]
    assert made.trimmed == (2,)
    assert 512 - 64 - 2 <= len(made.tokens[0]) <= 512 - 64
    assert source.text.startswith(kept.text)
    assert kept.end == 100 + len(kept.text)
    assert "Say it. Which?" in said(model, made.tokens[0])


def test_b43_a_question_that_leaves_no_room_fails_alone(model: str) -> None:
    rows = [("Which?", [passage("fine")]), ("why " * 200, [passage("fine")])]
    with pytest.raises(BadRowsError) as caught:
        write(WritePrompt(model, PLAIN), rows)
    assert list(caught.value.rows) == [("q1",)]
    assert caught.value.rows["q1",].category == "too long"
    assert "shorten the question" in str(caught.value.rows["q1",])


def test_a_smaller_window_may_be_asked_for(model: str) -> None:
    found = [passage("first " * 10), passage("second " * 10)]
    made = write(WritePrompt(model, PLAIN, reserve=16, max_tokens=140), [("Which?", found)])
    assert made.lengths[0] <= 140 - 16
    assert made.trimmed == (1,)


def test_b47_without_passages_or_question_no_model_is_asked(model: str) -> None:
    made = write(WritePrompt(model), [("Who?", []), (" \n", [passage("text")])])
    assert made.lengths == (0, 0)
    assert made.trimmed == (0, 0)


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("{{ docment.text }} {{ question }}", "'docment'", "known: passages, question"),
        ("{{ qestion }}", "'qestion'", "did you mean 'question'?"),
        (
            "\n{% for p in passages %}{{ p.txt }}{% endfor %}{{ question }}",
            "line 2: no field named 'p.txt'",
            "'text'?",
        ),
        (
            "{{ question }}{% for d in passages[:2] %}{% if 0 %}{{ d.pag }}{% endif %}{% endfor %}",
            "'d.pag'",
            "'page'?",
        ),
        ("{{ question }}{{ passages[0].titel }}", "titel", "sample passages"),
    ],
)
def test_b76_an_unknown_field_is_found_when_the_stage_is_made(text: str, field: str, hint: str) -> None:
    with pytest.raises(RidgewayError) as caught:
        WritePrompt("any", text)
    assert field in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ question }} {% for p in passages %}", "line 1: "),
        ("{% for p in passages %}{{ p.text }}{% endfor %}", "never uses 'question'"),
        ("{{ question }}", "never uses 'passages'"),
        ("{{ question.__class__ }}{{ passages }}", "failed on two sample passages"),
        ("missing.j2", "'missing.j2' cannot be read"),
    ],
)
def test_a_template_that_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(RidgewayError, match=message.replace("(", r"\(")):
        WritePrompt("any", text)


def test_a_template_file_is_its_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.j2"
    file.write_text(PLAIN, encoding="utf-8")
    assert WritePrompt("any", str(file)) == WritePrompt("any", PLAIN)


@pytest.mark.parametrize(("given", "name"), [({"reserve": 0}, "reserve"), ({"max_tokens": 64}, "max_tokens")])
def test_limits_that_leave_nothing_are_refused(given: dict[str, int], name: str) -> None:
    with pytest.raises(RidgewayError, match=name):
        WritePrompt("any", **given)  # type: ignore[arg-type]


def test_the_default_template_asks_for_a_citation_and_allows_no_answer() -> None:
    assert "[1]" in template.DEFAULT
    assert "not in the documents" in template.DEFAULT


def test_the_stage_is_small_and_portable() -> None:
    stage = WritePrompt("any")
    check_portable(stage, "prompts")
    assert len(pickle.dumps(stage)) < 1000
    assert ports(WritePrompt).output is Prompts
