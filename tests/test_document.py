"""YAML 1.2 and nothing more, with the place of everything (B70)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.document import escape, parse
from pipeline.errors import ConfigError


def read(text: str, **variables: str) -> Any:
    return parse(text, "f.yaml", variables).data


def error(text: str, *settings: str, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml", variables, settings)
    return str(caught.value)


# scalars


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("y", "y"), ("tRue", "tRue"),
        ("true", True), ("TRUE", True), ("False", False),
        ("null", None), ("Null", None), ("~", None), ("", None), ("nUll", "nUll"),
        ("12", 12), ("012", 12), ("-7", -7), ("+7", 7), ("0o14", 12), ("0x1F", 31),
        ("1_000", "1_000"), ("0b1", "0b1"), ("0o9", "0o9"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("1e3", 1000.0), ("1.", 1.0), (".5", 0.5), ("-1.5E-2", -0.015), ("1e", "1e"), (".", "."),
        (".inf", math.inf), ("-.Inf", -math.inf), ("inf", "inf"), ("nan", "nan"),
        ("=", "="), ("<<", "<<"), ("'12'", "12"), ('"true"', "true"), ("''", ""), ("9" * 5000, math.inf),
    ],
)  # fmt: skip
def test_scalars_are_typed_by_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    found = read(f"a: {text}")["a"]
    assert (type(found), found) == (type(value), value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(read("a: .nan")["a"])


def test_a_directive_cannot_bring_back_the_old_typing() -> None:
    assert read("%YAML 1.1\n---\na: no\nb: 012") == {"a": "no", "b": 12}


def test_a_block_of_text_is_a_text() -> None:
    assert read("a: |\n  12\nb: >\n  x\n  y\n") == {"a": "12\n", "b": "x y\n"}


def test_lists_and_keys_and_aliases_are_plain_values() -> None:
    assert read("a: &x [1, {b: 2}]\nc: *x\n1: d") == {"a": [1, {"b": 2}], "c": [1, {"b": 2}], "1": "d"}


def test_an_empty_file_is_nothing() -> None:
    assert read("") is None
    assert read("# a comment\n") is None


# what is refused


@pytest.mark.parametrize(
    "text", ["a: !x 5", "a: !!python/object:os.system {}", "a: !!binary aGk=", "a: !!str 5", "a: !!int '5'",
             "a: !!set {b}", "a: !!omap [b: 1]", "a: !x [1]", "!x a: 1"],
)  # fmt: skip
def test_tags_are_refused_with_their_line(text: str) -> None:
    assert error(f"\n{text}").startswith("f.yaml:2: a: the tag '")


def test_a_key_that_stands_twice_is_told_with_both_lines() -> None:
    assert error("a:\n  k: 1\n  j: 2\n  k: 3") == (
        "f.yaml:4: a.k: this key stands twice, first in line 2; remove one"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "f.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: [1\nb: 2", "f.yaml:2: not valid YAML: "),
        ("a: 1\n--- \nb: 2", "f.yaml:2: not valid YAML: but found another document"),
        ("a: *x", "f.yaml:1: not valid YAML: found undefined alias"),
        ("a: 1\nb: \x00", "f.yaml:2: not valid YAML: unacceptable character #x0000"),
        ("? [a]\n: b", "f.yaml:1: a key must be a text"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text: str, message: str) -> None:
    assert error(text).startswith(message)


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
    )
    assert "more than 100000 values, aliases counted" in error(bomb)


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x {b: *x}", "a: " + "[" * 1000])
def test_what_has_no_end_is_refused(text: str) -> None:
    assert "nested deeper than 100 levels" in error(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:-?[]{}&*!|>'\"#%@`,.0179ex_~=<+$ \n\t", max_size=40))
def test_any_text_is_read_or_refused_in_one_line_with_its_place(text: str) -> None:
    told = ""
    try:
        parse(text, "f.yaml", {})
    except ConfigError as caught:
        told = str(caught)
    assert told == "" or told.startswith("f.yaml:")
    assert "\n" not in told


# variables


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "one"), ("x${A}y${A}", "xoneyone"), ("'${A}'", "one"), ("${N}", 5), ("'${N}'", "5"),
        ("x${N}", "x5"), ("${B:-two}", "two"), ("${A:-two}", "one"), ("${EMPTY:-two}", "two"),
        ("'${EMPTY}'", ""), ("${B:-}", None), ("$${A}", "${A}"), ("$A", "$A"), ("${A", "${A"),
    ],
)  # fmt: skip
def test_a_variable_stands_for_its_text(text: str, value: Any) -> None:
    assert read(f"a: {text}", A="one", N="5", EMPTY="")["a"] == value


@pytest.mark.parametrize(
    "text", ["[1, 2]", "{b: 1}", "x: y", "# no", "&a", "*a", "!x 1", "a\nb: c", "- 1", "'"]
)
def test_the_text_of_a_variable_never_becomes_structure(text: str) -> None:
    assert read("a: ${V}\nb: x-${V}", V=text) == {"a": text, "b": f"x-{text}"}


def test_a_variable_in_a_variable_is_text() -> None:
    assert read("a: ${A}", A="${B}", B="no")["a"] == "${B}"


def test_a_variable_that_is_not_set_is_told_with_its_key() -> None:
    assert error("s:\n  a: ${MISSING}") == (
        "f.yaml:2: s.a: variable 'MISSING' is not set; set it, or write ${MISSING:-default}"
    )


def test_keys_know_no_variables() -> None:
    assert read("${A}: 1", A="x") == {"${A}": 1}


@given(st.text(alphabet="${}:-aA", max_size=12))
@settings(max_examples=100, deadline=None)
def test_an_escaped_text_is_read_as_it_was(text: str) -> None:
    assert read(f"a: '{escape(text)}'", A="no", a="no")["a"] == text


# settings


def test_a_setting_replaces_a_value_and_is_typed_as_in_the_file() -> None:
    made = parse("s: {k: 8, t: x}", "f.yaml", {}, ("s.k=012", "s.t='5'", "s.new=[a, b]"))
    assert made.data == {"s": {"k": 12, "t": "5", "new": ["a", "b"]}}


def test_a_setting_knows_variables() -> None:
    assert parse("s: {k: 8}", "f.yaml", {"K": "3"}, ("s.k=${K}",)).data == {"s": {"k": 3}}


def test_a_setting_may_hold_an_equals_sign() -> None:
    assert parse("s: {k: 8}", "f.yaml", {}, ("s.k=a=b",)).data == {"s": {"k": "a=b"}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stages.serch.k=1", "--set stages.serch.k=1: no 'stages.serch' in f.yaml; did you mean 'search'?"),
        ("stages.search.k", "--set stages.search.k: expected key=value, such as stages.hits.k=12"),
        ("=1", "--set =1: expected key=value"),
        ("stages.search.k.x=1", "--set stages.search.k.x=1: 'stages.search.k' holds no keys in f.yaml"),
        ("stages.search.k.x.y=1", "--set stages.search.k.x.y=1: no 'stages.search.k.x' in f.yaml"),
        ("stages.search.k=[", "--set stages.search.k=[:1: not valid YAML"),
        ("stages.search.k=!x 1", "--set stages.search.k=!x 1:1: stages.search.k: the tag '!x'"),
        ("stages.search.k=${X}", "--set stages.search.k=${X}: stages.search.k: variable 'X' is not set"),
        (
            "stages.search.k={a: 1, a: 2}",
            "--set stages.search.k={a: 1, a: 2}:1: stages.search.k.a: this key stands",
        ),
    ],
)
def test_a_setting_that_leads_nowhere_is_refused(setting: str, message: str) -> None:
    assert error("stages: {search: {k: 8}}", setting).startswith(message)


def test_a_setting_of_a_file_without_keys_is_refused() -> None:
    assert "holds no keys" in error("", "k=1")


def test_everything_knows_where_it_stands() -> None:
    made = parse("a:\n  b:\n  - x\n", "f.yaml", {}, ("a.c={d: 1}",))
    assert str(made.error(("a", "b", "0"), "bad")) == "f.yaml:2: a.b.0: bad"
    assert str(made.error(("a", "c", "d"), "bad")) == "--set a.c={d: 1}: a.c.d: bad"
    assert str(made.error(("nowhere",), "bad")) == "f.yaml:1: nowhere: bad"
    assert str(made.error((), "bad")) == "f.yaml:1: bad"
