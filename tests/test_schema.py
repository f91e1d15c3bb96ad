"""The schema accepts what `pipeline.config` loads and marks what it refuses.

`faults` is the part of JSON Schema that ours uses, and refuses keywords that it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from ruamel.yaml import YAML

from pipeline.config import loads
from pipeline.errors import ConfigError
from pipeline.schema import schema
from stages import STAGES
from tests.toys import Numbers

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
WORDS = {"$schema", "$defs", "title", "description", "default", "then"}
TABLE = {
    "Plus": "tests.toys:Plus", "Collatz": "tests.toys:Collatz", "Strip": "tests.toys:Strip",
    "Everything": "tests.test_schema:Everything",
}  # fmt: skip
CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@dataclass(frozen=True, slots=True)
class Everything:
    """One of each.

    `path`: a folder.
    """

    path: Path
    count: int = 1
    share: float | None = float("inf")
    flag: bool = False
    mode: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ("${x}",)
    limits: tuple[int, ...] | None = None
    odd: complex = 1j

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


SCHEMA = schema(TABLE)


def faults(rules: Any, value: Any, whole: Any, at: str = "") -> list[str]:
    """The places at which `value` breaks the rules."""
    if rules is False:
        return [at]
    found: list[str] = []
    for word, rule in rules.items():
        if word not in WORDS:
            found += CHECKS[word](rule, value, whole, at, rules)
    return found


def typed(rule: Any, value: Any) -> bool:
    names = [rule] if isinstance(rule, str) else rule
    return any(isinstance(value, TYPES[n]) and (not isinstance(value, bool) or n == "boolean") for n in names)


def members(rules: Any, value: Any) -> Iterator[tuple[str, Any]]:
    known = rules.get("properties", {})
    return ((k, v) for k, v in value.items() if k not in known) if isinstance(value, dict) else iter(())


def within(rule: Any, value: Any, whole: Any, at: str, rules: Any) -> list[str]:
    inside = ((k, value[k]) for k in rule if k in value) if isinstance(value, dict) else iter(())
    return [f for k, v in inside for f in faults(rule[k], v, whole, f"{at}/{k}")]


def one_of(rule: Any, value: Any, whole: Any, at: str, rules: Any) -> list[str]:
    return [] if sum(not faults(r, value, whole, at) for r in rule) == 1 else [at]


CHECKS: Mapping[str, Any] = {
    "$ref": lambda r, v, w, at, _: faults(w["$defs"][r.removeprefix("#/$defs/")], v, w, at),
    "type": lambda r, v, w, at, _: [] if typed(r, v) else [at],
    "const": lambda r, v, w, at, _: [] if v == r else [at],
    "enum": lambda r, v, w, at, _: [] if v in r else [at],
    "not": lambda r, v, w, at, _: [] if faults(r, v, w, at) else [at],
    "anyOf": lambda r, v, w, at, _: [] if any(not faults(o, v, w, at) for o in r) else [at],
    "oneOf": one_of,
    "allOf": lambda r, v, w, at, _: [f for o in r for f in faults(o, v, w, at)],
    "if": lambda r, v, w, at, rules: [] if faults(r, v, w, at) else faults(rules["then"], v, w, at),
    "pattern": lambda r, v, w, at, _: [at] if isinstance(v, str) and not re.search(r, v) else [],
    "minimum": lambda r, v, w, at, _: [at] if typed("number", v) and v < r else [],
    "minProperties": lambda r, v, w, at, _: [at] if isinstance(v, dict) and len(v) < r else [],
    "required": lambda r, v, w, at, _: [f"{at}/{k}" for k in r if isinstance(v, dict) and k not in v],
    "items": lambda r, v, w, at, _: [f for x in v if isinstance(v, list) for f in faults(r, x, w, at)],
    "properties": within,
    "propertyNames": lambda r, v, w, at, _: [f for k in v for f in faults(r, k, w, f"{at}/{k}")],
    "additionalProperties": lambda r, v, w, at, rules: [
        f for k, x in members(rules, v) for f in faults(r, x, w, f"{at}/{k}")
    ],
}

LOOP = """
ridgeway: 1
inputs: {n: "tests.toys:Numbers"}
stages:
  steps:
    n: n
    carry: {n: next}
    until: flags
    max_rounds: 3
    loop:
      inputs: {n: "tests.toys:Numbers"}
      stages:
        go: {stage: Collatz, a: n, batch: 4}
        bare: {stage: Strip, a: go, device: null}
      outputs: {next: bare, flags: go}
outputs: {end: steps.next}
"""


def one_node(node: str) -> str:
    return f"ridgeway: 1\ninputs: {{n: tests.toys:Numbers}}\nstages:\n  x: {node}\noutputs: {{x: x}}\n"


def block(*lines: str) -> str:
    return "".join(f"\n    {line}" for line in lines)


def accepted(text: str) -> bool:
    return not faults(SCHEMA, YAML(typ="safe").load(text), SCHEMA)


def loaded(text: str) -> bool:
    try:
        loads(text, "x.yaml", TABLE, {"EIGHT": "8", "YES": "true"}, allow=("tests",))
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_pipelines_that_come_with_ridgeway_are_valid(path: Path) -> None:
    rules = schema(STAGES)
    assert faults(rules, YAML(typ="safe").load(path), rules) == []


def test_it_is_json_of_the_draft_and_always_the_same() -> None:
    text = json.dumps(SCHEMA, allow_nan=False)
    assert json.loads(text)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.dumps(schema(TABLE)) == text


@pytest.mark.parametrize(
    "node",
    [
        "{stage: Plus, a: n}",
        "{stage: Plus, a: n, n: 2, device: 'cpu:0', batch: 3}",
        block("stage: Plus", "a: n", "n: ${EIGHT}", "batch: ${EIGHT}"),
        "{stage: 'tests.toys:Plus', a: n, n: 3}",
        "{stage: Everything, a: n, path: here, count: 2, share: 1, flag: true, mode: b, names: [x]}",
        block("stage: Everything", "a: n", "path: '${EIGHT}'", "share: null", "flag: ${YES}", "names: []"),
        block("stage: Everything", "a: n", "path: x", "limits:", "- 1", "- ${EIGHT}"),
    ],
)
def test_what_loads_is_valid(node: str) -> None:
    assert loaded(one_node(node))
    assert accepted(one_node(node))


@pytest.mark.parametrize(
    "node",
    [
        "{stage: Plus}",
        "{stage: Plus, a: n, k: 2}",
        "{stage: Plus, a: n, n: two}",
        "{stage: Plus, a: n, n: true}",
        block("stage: Plus", "a: n", "n: $${EIGHT}"),
        "{stage: Plus, a: [n]}",
        "{stage: Plus, a: n, batch: 0}",
        "{stage: Minus, a: n}",
        "{a: n}",
        "{stage: Everything, a: n}",
        "{stage: Everything, a: n, path: 3}",
        "{stage: Everything, a: n, path: x, mode: c}",
        "{stage: Everything, a: n, path: x, names: y}",
        "{stage: Everything, a: n, path: x, limits: [a]}",
        "{stage: Everything, a: n, path: x, odd: 1}",
    ],
)
def test_what_does_not_load_is_marked(node: str) -> None:
    assert not loaded(one_node(node))
    assert not accepted(one_node(node))


def test_a_fault_is_told_of_the_stage_that_is_meant() -> None:
    text = one_node("{stage: Plus, a: n, nn: 2}")
    assert faults(SCHEMA, YAML(typ="safe").load(text), SCHEMA) == ["/stages/x/nn"]


def test_a_loop_is_valid_with_its_body_and_inputs() -> None:
    assert loaded(LOOP)
    assert accepted(LOOP)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("carry: {n: next}", "carry: {}"),
        ("until: flags", ""),
        ("max_rounds: 3", "max_rounds: 0"),
        ("    n: n\n", "    n: n\n    batch: 3\n"),
        ("    n: n\n", "    n: n\n    stage: Plus\n"),
        ("batch: 4", "batches: 4"),
        ("outputs: {end: steps.next}", "outputs: {}"),
        ("ridgeway: 1", "ridgeway: 2"),
        ("  steps:", "  the steps:"),
        ("inputs: {n:", "input: {n:"),
        ("inputs: {n:", "inputs: {the n:"),
    ],
)
def test_a_loop_or_file_that_does_not_load_is_marked(old: str, new: str) -> None:
    text = LOOP.replace(old, new, 1)
    assert text != LOOP
    assert not loaded(text)
    assert not accepted(text)


def test_parameters_have_the_words_and_defaults_of_the_class() -> None:
    known = SCHEMA["$defs"]["stage.Everything"]
    assert known["description"] == "One of each.\n\n`path`: a folder."
    assert known["properties"]["path"] == {
        "type": "string", "description": "parameter: Path\n\n`path`: a folder.",
    }  # fmt: skip
    assert known["properties"]["count"]["default"] == 1
    assert known["properties"]["names"]["default"] == ["$${x}"]
    assert "default" not in known["properties"]["share"]
    assert known["required"] == ["stage", "a", "path"]
    assert known["additionalProperties"] is False


@pytest.mark.parametrize(
    ("policies", "ok"),
    [("[steal]", True), ("[lengths, steal]", True), ("[]", True), ("[stael]", False), ("steal", False)],
)
def test_policies_are_those_that_there_are(policies: str, ok: bool) -> None:
    text = f"{one_node('{stage: Plus, a: n}')}\npolicies: {policies}\n"
    assert (loaded(text), accepted(text)) == (ok, ok)
