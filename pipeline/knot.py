"""Where the core meets its stages: the one module of `pipeline` that knows the other folders.

What a pipeline file names is looked up in `stages`, and documents are found by `vision`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.graph import Graph
    from pipeline.lookup import Table
    from pipeline.run_folder import Task


def stages_table() -> Table:
    """The stages that a pipeline file may name."""
    from stages import STAGES

    return STAGES


def loaded(file: Path, run_folder: Path | str, settings: list[str], allow: list[str]) -> Graph:
    """The graph of a pipeline file, with RUN standing for the folder of the index."""
    from pipeline.config import load
    from stages import STAGES

    sys.path.insert(0, os.getcwd())
    return load(file, STAGES, {**os.environ, "RUN": str(run_folder)}, tuple(settings), tuple(allow))


def kept(file: Path, settings: list[str], allow: list[str]) -> str:
    """The pipeline as a run folder keeps it: RUN stays a variable, so that the folder can be moved."""
    from pipeline.config import dump
    from stages import STAGES

    mark = "RIDGEWAY-RUN-FOLDER"
    return dump(loaded(file, mark, settings, allow), STAGES).replace(mark, "${RUN:-run}")


def task_of(
    graph: Graph, out: Path, index: Path, documents: list[str], asked: Any, reindex: bool, kept: str = ""
) -> Task:
    """The job that the command line asks for, with the documents found on disk."""
    from pipeline.run_folder import Task
    from pipeline.versions import versions

    task = Task(graph, out, index, questions=asked, reindex=reindex, pipeline=kept, versions=versions())
    found = crawled(documents)
    if found is None:
        return task
    return replace(task, documents=found.documents, failures=found.failures, unsupported=found.unsupported)


def crawled(documents: list[str]) -> Any:
    """What lies at the places that the command line names; None if it names none."""
    from vision.files import crawl

    return crawl(documents) if documents else None
