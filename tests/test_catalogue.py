"""The catalogue says what the classes say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from pipeline.catalogue import catalogue, entry, hint_name
from stages import STAGES
from tests.toys import Numbers

HERE = "tests.test_catalogue"
TABLE = {"Odd": f"{HERE}:Odd", "Bare": f"{HERE}:Bare", "Total": "tests.toys:Total", "Fan": "tests.toys:Fan"}


@dataclass(frozen=True, slots=True)
class Odd:
    """Adds odd things.

    `path` is where from. Of `scale`: any number, as
    large as wanted. Raises ValueError where `scale` is even.
    """

    path: Path
    scale: float | None = float("inf")
    mode: Literal["a", "b"] = "a"
    tags: tuple[str, ...] = field(default_factory=tuple)
    hidden: int = field(default=3, init=False)
    batch: ClassVar[int] = 7
    accelerated: ClassVar[bool] = True

    def run(self, state: Any, a: Numbers, b: Numbers) -> Numbers:
        return a


@dataclass(frozen=True, slots=True)
class Bare:
    n: int

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_an_entry_holds_the_first_line_the_ports_and_the_traits() -> None:
    odd = entry("Odd", TABLE)
    assert (odd.name, odd.summary, odd.kind) == ("Odd", "Adds odd things.", "one to one")
    assert (dict(odd.inputs), odd.output) == ({"a": "Numbers", "b": "Numbers"}, "Numbers")
    assert (odd.batch, odd.accelerated) == (7, True)
    assert odd.ports() == "a: Numbers, b: Numbers -> Numbers (one to one)"


def test_parameters_have_type_default_and_what_the_docstring_says_of_them() -> None:
    path, scale, mode, tags = entry("Odd", TABLE).parameters
    assert (path.name, path.hint, path.required, path.description) == (
        "path", Path, True, "`path` is where from.",
    )  # fmt: skip
    assert scale.description == "Of `scale`: any number, as large as wanted."
    assert (scale.default, mode.default, tags.default) == (float("inf"), "a", ())
    assert [str(p) for p in (path, scale, mode, tags)] == [
        "path: Path",
        "scale: float | None = inf",
        "mode: 'a' | 'b' = 'a'",
        "tags: tuple[str, ...] = ()",
    ]


def test_a_long_default_is_cut_for_people_only() -> None:
    (template,) = (p for p in entry("WritePrompt", STAGES).parameters if p.name == "template")
    assert len(str(template)) < 80
    assert template.as_dict()["default"] == template.default


def test_json_holds_what_json_can_say() -> None:
    told = json.loads(json.dumps(entry("Odd", TABLE).as_dict(), allow_nan=False))
    assert told["parameters"][0] == {
        "name": "path", "type": "Path", "required": True, "description": "`path` is where from.",
    }  # fmt: skip
    assert [p.get("default") for p in told["parameters"]] == [None, "inf", "a", []]


@pytest.mark.parametrize(
    ("name", "kind"), [("Bare", "one to one"), ("Fan", "one to many"), ("Total", "many to one (depth 0)")]
)
def test_the_kind_tells_how_many_rows_become_how_many(name: str, kind: str) -> None:
    assert entry(name, TABLE).kind == kind


def test_a_class_without_docstring_has_no_summary() -> None:
    assert entry("Bare", TABLE).summary == ""


def test_a_name_that_is_not_in_the_table_is_refused_with_the_near_miss() -> None:
    with pytest.raises(LookupError, match="no stage named 'Bear'; did you mean 'Bare'"):
        entry("Bear", TABLE)


@pytest.mark.parametrize(
    ("hint", "name"),
    [(int, "int"), (None | str, "None | str"), (tuple[int | None, ...], "tuple[int | None, ...]")],
)
def test_types_are_written_as_people_write_them(hint: Any, name: str) -> None:
    assert hint_name(hint) == name


def test_every_stage_of_the_table_has_a_summary_and_a_port() -> None:
    entries = catalogue(STAGES)
    assert [e.name for e in entries] == list(STAGES)
    assert [e.name for e in entries if not (e.summary and e.inputs)] == []


def test_it_needs_no_heavy_library() -> None:
    code = (
        "import sys; from pipeline.catalogue import catalogue; from stages import STAGES; catalogue(STAGES);"
        "sys.exit(bool({'torch', 'faiss', 'PIL', 'onnxruntime', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
