"""Answers that keep to a schema or an expression, whatever the model would rather say."""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ModelError, RidgewayError
from stages.llm.constrain import Constraint, State, Words, compile, words  # noqa: A004
from tests.tiny_llm import SPECIAL, alphabet

ENDS = frozenset({0, 2})
SIZE = 300
"""Logits are wider than the vocabulary, as in models with padded embeddings."""

MERGES = [("{", '"'), ('"', ":"), ("Ġ", '"'), ('"', ","), ("1", "2"), ("a", "b"), ("}", "}"), ("]", "}")]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", 12]}, "minItems": 1, "maxItems": 3},
        "known": {"type": "boolean"},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}

EXPRESSIONS = [r"[0-9]{2,4}", r"(yes|no|not known)", r"[a-c]{1,5}(, [a-c]{1,5}){0,3}", r"é{2}|日本", "a?"]


def fits_person(value: Any) -> bool:
    """What PERSON says, by hand."""
    return (
        {"name", "tags"} <= set(value) <= {"name", "age", "tags", "known"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and isinstance(value.get("age", 0), int)
        and 0 <= value.get("age", 0) <= 120
        and 1 <= len(value["tags"]) <= 3
        and all(t in ("a", "ab", 12) for t in value["tags"])
        and isinstance(value.get("known", True), bool)
    )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Bytes, and a few tokens of two characters."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {t: i for i, t in enumerate([*alphabet(), *(a + b for a, b in MERGES)])}
    made = Tokenizer(models.BPE(vocabulary, MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")


@pytest.fixture(scope="module")
def known(tokenizer: Any) -> Words:
    return words(tokenizer, SIZE, ENDS)


@pytest.fixture(scope="module")
def decode(tokenizer: Any) -> Callable[[list[int]], str]:
    return lambda tokens: str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def by_chance(state: State, seed: int) -> list[int]:
    """Tokens drawn from what is allowed, until the answer is complete or an end token was drawn."""
    random, said = np.random.default_rng(seed), []
    while not state.finished:
        said.append(int(random.choice(np.flatnonzero(state.mask()))))
        state.advance(said[-1])
    return said


def without_end(said: list[int]) -> list[int]:
    return said[:-1] if said and said[-1] in ENDS else said


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_whatever_is_drawn_matches_the_expression(
    known: Words, decode: Callable[[list[int]], str], expression: str
) -> None:
    grammar = compile(Constraint("regex", expression), known)
    found = {decode(without_end(by_chance(grammar.start(), seed))) for seed in range(30)}
    assert [text for text in found if not re.fullmatch(expression, text)] == []
    assert len(found) > 1


def test_whatever_is_drawn_is_valid_under_the_schema(
    known: Words, decode: Callable[[list[int]], str]
) -> None:
    grammar = compile(Constraint("json", json.dumps(PERSON)), known)
    found = [json.loads(decode(without_end(by_chance(grammar.start(), seed)))) for seed in range(60)]
    assert [value for value in found if not fits_person(value)] == []
    assert {len(value) for value in found} == {2, 3, 4}


def test_json_is_written_on_one_line_without_blanks_to_spare(
    known: Words, decode: Callable[[list[int]], str]
) -> None:
    constants = {"a": {"const": 1}, "b": {"const": [2, 3]}}
    schema = {
        "type": "object",
        "properties": constants,
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    state = compile(Constraint("json", json.dumps(schema)), known).start()
    assert decode(without_end(by_chance(state, 0))) == '{"a": 1, "b": [2, 3]}'


def test_an_answer_may_end_only_where_it_matches(known: Words, tokenizer: Any) -> None:
    state = compile(Constraint("regex", "ab?"), known).start()
    assert not state.mask()[list(ENDS)].any()
    state.advance(tokenizer.convert_tokens_to_ids("a"))
    assert state.mask()[list(ENDS)].all()
    assert not state.finished
    state.advance(2)
    assert state.finished


def test_an_answer_that_nothing_may_follow_is_finished_without_an_end_token(
    known: Words, tokenizer: Any
) -> None:
    state = compile(Constraint("regex", "ab?"), known).start()
    state.advance(tokenizer.convert_tokens_to_ids("ab"))
    assert state.finished
    assert set(np.flatnonzero(state.mask()).tolist()) == ENDS


def test_rows_of_one_grammar_do_not_know_of_each_other(known: Words) -> None:
    grammar = compile(Constraint("json", json.dumps(PERSON)), known)
    first, second = grammar.start(), grammar.start()
    before = second.mask()
    by_chance(first, 1)
    assert np.array_equal(second.mask(), before)
    assert before.shape == (SIZE,)
    assert before.dtype == np.bool_


@pytest.mark.parametrize("seed", range(10))
def test_masks_along_a_draft_are_those_of_going_there_step_by_step(known: Words, seed: int) -> None:
    grammar = compile(Constraint("json", json.dumps(PERSON)), known)
    draft = without_end(by_chance(grammar.start(), seed))
    state, walker = grammar.start(), grammar.start()
    before = state.mask()
    stepwise = [walker.mask()]
    for token in draft:
        walker.advance(token)
        stepwise.append(walker.mask())
    assert np.array_equal(state.masks(draft), np.stack(stepwise))
    assert np.array_equal(state.mask(), before)


def test_a_draft_is_followed_up_to_what_is_not_allowed_or_ends(known: Words, tokenizer: Any) -> None:
    state = compile(Constraint("regex", "a+"), known).start()
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    assert len(state.masks([a, a, b, a])) == 3
    assert len(state.masks([a, 2, a])) == 2
    assert len(state.masks([])) == 1
    assert len(state.masks([a, a, a])) == 4


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("jsn", "{}", "did you mean 'json'"),
        ("regex", "", "is empty"),
        ("regex", "a(", "unclosed group"),
        ("regex", "a(?=b)", "look-around"),
        ("json", "{", "is not JSON"),
        ("json", "[1]", "give an object"),
        ("json", '{"type": "blob"}', "blob"),
        ("json", '{"not": {"type": "string"}}', "not"),
    ],
)
def test_what_cannot_be_held_to_is_refused_before_any_work(kind: str, text: str, said: str) -> None:
    with pytest.raises(RidgewayError, match=re.escape(said)):
        Constraint(kind, text)


def test_a_vocabulary_needs_an_end_and_room(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="no token that ends"):
        words(tokenizer, SIZE, ())
    with pytest.raises(ModelError, match="vocab size too small"):
        words(tokenizer, 5, ENDS)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RidgewayError, match=r"ridgeway\[constrained\]"):
        Constraint("regex", "a")
