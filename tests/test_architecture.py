"""Who may import whom, how large things may be, and that every line in a table leads somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import generated, values
from pipeline.lookup import Table, load
from pipeline.policies import POLICIES
from pipeline.stage import ports
from pipeline.values import Rows
from retrieval.index import INDEXES
from stages import STAGES
from vision import READERS

ROOT = Path(__file__).parents[1]
FOLDERS = ("pipeline", "retrieval", "vision", "stages")
FILES = sorted(p.relative_to(ROOT).as_posix() for f in FOLDERS for p in (ROOT / f).rglob("*.py"))

MAY_IMPORT = {
    "pipeline": {"pipeline"},
    "retrieval": {"pipeline", "retrieval"},
    "vision": {"pipeline", "vision"},
    "stages": {"pipeline", "retrieval", "vision", "stages"},
}
KNOTS = {"pipeline/knot.py"}
"""Files of `pipeline` that may import the other folders."""

ORDER = [
    "versions", "layers", "errors", "lookup", "document", "profiles", "profile_file", "machine",
    "machine_file", "roofline", "allocator", "dryrun", "memory", "rows", "generated", "values", "models",
    "probes", "hardware", "fingerprint", "kernels", "cuda_kernels", "bench", "calibrate", "stage", "node",
    "graph", "beside", "program", "twins", "apply", "local", "timeline", "perfetto", "advice", "compare",
    "roles", "gates", "chains", "cuts", "policy", "policies", "plan", "buffers", "handover", "events",
    "wiring", "quiet", "holds", "graves", "groups", "tracking", "tasks", "board", "merging", "scheduler",
    "watch", "yields", "learned", "flows", "estimate", "invent", "simulate", "spaces", "bounds",
    "pipelined", "search", "candidates", "planner", "trial", "choices", "reasons", "what_if", "compressed",
    "shelf", "clock", "worker", "serialisers", "cluster", "hands", "executor", "handoff", "planning",
    "dumping", "declared", "config", "question_files", "questions", "records", "evaluate", "draw", "layout",
    "canvas", "svg", "catalogue", "schema", "doctor", "stored", "look_back", "run_folder", "job", "report",
    "plan_report", "foresee", "knot", "shell", "options", "commands", "cli",
]  # fmt: skip
"""The modules of `pipeline`: each imports only what stands before it."""

HEAVY = {
    "torch", "transformers", "sentence_transformers", "faiss", "dask", "distributed", "pypdfium2", "PIL",
    "onnxruntime", "rapidocr", "bm25s", "docx", "selectolax", "pyarrow", "gguf", "safetensors", "tokenizers",
}  # fmt: skip
MAY_BE_HEAVY = {
    "pipeline/cluster.py": {"dask", "distributed"},
    "pipeline/executor.py": {"dask", "distributed"},
    "retrieval/faiss_index.py": {"faiss"},
}
"""Files that may import heavy libraries as they are imported; everywhere else it is done late."""


def imports(path: str, late: bool = True) -> Iterator[str]:
    """The modules that a file imports; `late`: also in functions. What only type checkers see is left out."""
    todo: list[ast.AST] = [ast.parse((ROOT / path).read_text("utf-8"))]
    while todo:
        found = todo.pop()
        if isinstance(found, ast.Import):
            yield from (name.name for name in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"{path}:{found.lineno}: relative import"
            module = found.module or ""
            yield from (f"{module}.{n.name}" if module in FOLDERS else module for n in found.names)
        elif isinstance(found, ast.If) and "TYPE_CHECKING" in ast.dump(found.test):
            todo += found.orelse
        elif late or not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(found)


@pytest.mark.parametrize("path", [f for f in FILES if f not in KNOTS])
def test_folders_import_only_those_below_them(path: str) -> None:
    above = {*FOLDERS, "tests", "benchmarks"} - MAY_IMPORT[path.partition("/")[0]]
    assert not {m for m in imports(path) if m.partition(".")[0] in above}


def test_every_module_of_pipeline_has_its_place_in_the_order() -> None:
    found = {f.split("/")[1].removesuffix(".py") for f in FILES if f.startswith("pipeline/")} - {"__init__"}
    assert sorted(found - set(ORDER)) == [], "put the new modules into ORDER, behind what they import"
    assert sorted(set(ORDER) - found) == [], "these modules are gone: take them out of ORDER"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", ORDER)
def test_a_module_of_pipeline_imports_only_earlier_ones(name: str) -> None:
    files = [f for f in FILES if f.startswith(f"pipeline/{name}/") or f == f"pipeline/{name}.py"]
    used = {m.split(".")[1] for f in files for m in imports(f) if m.startswith("pipeline.")} - {name}
    later = {m for m in used & set(ORDER) if ORDER.index(m) >= ORDER.index(name)}
    assert not later, f"{name} stands before {sorted(later)} in ORDER"


@pytest.mark.parametrize("path", FILES)
def test_heavy_libraries_are_imported_late(path: str) -> None:
    found = {m.partition(".")[0] for m in imports(path, late=False)} & HEAVY
    assert found <= MAY_BE_HEAVY.get(path, set())


@pytest.mark.parametrize("module", ["pipeline", "pipeline.cli", "stages", "retrieval", "vision"])
def test_what_every_command_imports_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & {{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", FILES)
def test_files_and_functions_are_short(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert text.count("\n") <= 250
    functions = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= 60] == []


# tables

TABLES: dict[str, Table] = {
    "STAGES": STAGES, "INDEXES": INDEXES, "READERS": READERS, "POLICIES": POLICIES,
}  # fmt: skip


@pytest.mark.parametrize(("table", "name"), [(t, n) for t, entries in TABLES.items() for n in entries])
def test_a_line_in_a_table_leads_to_a_class(table: str, name: str) -> None:
    assert inspect.isclass(load(TABLES[table][name]))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_ports_of_our_own_types(name: str) -> None:
    kind = load(STAGES[name])
    found = ports(kind)
    assert kind.__name__ == name
    assert all(
        k.__module__ in (values.__name__, generated.__name__, Rows.__module__)
        for k in (*found.inputs.values(), found.output)
    )
    assert kind.__doc__


def is_stage(kind: Any) -> bool:
    return inspect.isclass(kind) and is_dataclass(kind) and hasattr(kind, "run")


def test_every_stage_that_is_defined_is_in_the_table() -> None:
    modules = [f.removesuffix(".py").replace("/", ".") for f in FILES if f.startswith("stages/")]
    found = {
        f"{module}:{name}"
        for module in modules
        for name, kind in vars(importlib.import_module(module)).items()
        if is_stage(kind) and kind.__module__ == module
    }
    assert found == set(STAGES.values())


MAIN_PATH = (
    "cli", "knot", "shell", "job", "planning", "run_folder", "executor", "cluster", "worker", "apply",
    "scheduler", "board",
)  # fmt: skip
"""From the command line to a stage, with who decides; how the Scheduler counts rows is read apart."""


def code_lines(path: str) -> int:
    """Lines that do something: no blanks, comments, docstrings or imports, and of the commands only `run`."""
    text = (ROOT / path).read_text("utf-8")
    left_out: set[int] = set()
    for found in ast.walk(ast.parse(text)):
        words = isinstance(found, ast.Expr) and isinstance(found.value, ast.Constant)
        other = isinstance(found, ast.FunctionDef) and found.name != "run" and found.decorator_list
        command = other and "app.command" in ast.unparse(found.decorator_list[0])  # type: ignore[attr-defined]
        if words or command or isinstance(found, ast.Import | ast.ImportFrom):
            left_out |= set(range(found.lineno, (found.end_lineno or 0) + 1))  # type: ignore[attr-defined]
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for i, line in lines if line.strip() and line.strip()[0] != "#" and i not in left_out)


def test_the_way_from_the_command_line_to_a_stage_stays_short() -> None:
    assert sum(code_lines(f"pipeline/{module}.py") for module in MAIN_PATH) < 1000
