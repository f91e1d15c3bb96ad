"""What the README shows must be so."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PATHS = re.findall(r"\b(?:configs|pipeline|tests|benchmarks|stages|retrieval|vision)/[\w./]*\w", README)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", PYTHON)
def test_python_is_valid_and_what_it_imports_is_there(code: str) -> None:
    for found in ast.walk(ast.parse(code)):
        if isinstance(found, ast.ImportFrom):
            module = importlib.import_module(found.module or "")
            assert all(hasattr(module, name.name) for name in found.names)


def test_the_first_example_has_about_fifteen_lines() -> None:
    assert len([line for line in PYTHON[0].splitlines() if line.strip()]) <= 17


@pytest.mark.parametrize("path", [p for p in PATHS if p != "stages/x.py"])
def test_files_it_names_are_there(path: str) -> None:
    assert (Path(__file__).parent.parent / path).exists()


def test_every_command_it_names_is_one() -> None:
    from pipeline.cli import app

    known = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    named = set(re.findall(r"^ridgeway (\w+)", README, re.MULTILINE)) | {"draw", "stages", "schema", "doctor"}
    assert named <= known
