"""`ridgeway`: the command line. The one module of the core that knows the stages: it ties the knot.

Exit codes: 0 all well, 1 some rows failed, 2 usage, pipeline file or plan, 130 stopped.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.options import Allow, Cluster, Documents, File, Index, Json, Out, Quiet, Reindex, Set, Verbose
from pipeline.report import console, finish, mistakes_told, print_json, show, show_scores, table
from pipeline.shell import do, made_by, settle, speak

if TYPE_CHECKING:
    from pipeline.graph import Graph
    from pipeline.run_folder import Task

app = typer.Typer(
    help="Questions over folders of documents, scans and images, answered with citations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    file: File,
    questions: Annotated[Path, typer.Option("--questions", help="JSONL, CSV or TXT.", show_default=False)],
    out: Out = Path("run"),
    documents: Documents = [],  # noqa: B006
    index: Index = None,
    reindex: Reindex = False,
    parquet: Annotated[bool, typer.Option(help="Also write answers.parquet.")] = False,
    scheduler: Cluster = "",
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Answer a list of questions over documents; the batch job."""
    from pipeline import questions as question_files

    speak(verbose, quiet or as_json)
    graph = _load(file, (index or out).absolute(), settings, allow)
    asked = question_files.read(questions)
    task = _task(graph, out, index or out, documents, asked, reindex, _kept(file, settings, allow))
    summary = do(task, scheduler, quiet or as_json)
    if parquet:
        from pipeline.records import write_parquet

        write_parquet(out / "answers.jsonl", out / "answers.parquet")
    finish(summary, out, as_json, quiet, answers=True)
    raise typer.Exit(summary.exit_code)


@app.command()
def index(
    file: File,
    documents: Documents,
    out: Out = Path("run"),
    reindex: Reindex = False,
    scheduler: Cluster = "",
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Read documents and build their index, without asking anything."""
    speak(verbose, quiet or as_json)
    graph = _load(file, out.absolute(), settings, allow)
    task = _task(graph, out, out, documents, None, reindex, _kept(file, settings, allow))
    summary = do(task, scheduler, quiet or as_json)
    finish(summary, out, as_json, quiet, answers=False)
    raise typer.Exit(summary.exit_code)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.", show_default=False)],
    index: Annotated[Path, typer.Option(help="A run folder, or one made by `ridgeway index`.")] = Path("run"),
    file: Annotated[
        Path | None, typer.Option("--pipeline", help="Default: the one the index was made by.")
    ] = None,
    documents: Annotated[str, typer.Option(help="Glob over document names to search in.")] = "",
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Ask one question over an index that exists."""
    from pipeline.questions import Question, Questions
    from pipeline.records import read_lines

    speak(verbose, quiet or as_json)
    graph = _load(file or made_by(index), index.absolute(), settings, allow)
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as folder:
        out = Path(folder)
        task = _task(graph, out, index, [], Questions((Question("question", question, documents),)), False)
        summary = do(task, "", quiet or as_json)
        if as_json:
            print_json(
                next(read_lines(out / "answers.jsonl"), None) or next(read_lines(out / "errors.jsonl"))
            )
        else:
            show(out)
    raise typer.Exit(summary.exit_code)


@app.command()
def check(file: File, settings: Set = [], allow: Allow = [], as_json: Json = False) -> None:  # noqa: B006
    """Validate a pipeline file, without loading a model."""
    graph = _load(file, Path("run"), settings, allow)
    facts = {"file": str(file), "nodes": len(graph.nodes), "outputs": list(graph.outputs)}
    print_json(facts) if as_json else print(f"{file}: {len(graph.nodes)} nodes, well formed")


@app.command()
def draw(
    file: File,
    svg: Annotated[
        Path | None, typer.Option(help="Write an SVG picture here instead of Mermaid text.")
    ] = None,
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
) -> None:
    """Draw a pipeline: Mermaid text, or an SVG picture."""
    from pipeline import draw as drawing
    from pipeline import svg as picture

    graph = _load(file, Path("run"), settings, allow)
    if svg is None:
        print(drawing.mermaid(graph))
    else:
        svg.write_text(picture.svg(graph), encoding="utf-8")


@app.command()
def stages(as_json: Json = False) -> None:
    """List the stages with their ports and parameters."""
    from rich.markup import escape

    from pipeline.catalogue import catalogue
    from stages import STAGES

    entries = catalogue(STAGES)
    if as_json:
        print_json([e.as_dict() for e in entries])
    else:
        rows = [[escape(t) for t in (e.name, e.summary, e.ports(), e.settings())] for e in entries]
        table(console(), ("stage", "what it does", "ports", "parameters"), rows, lines=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    from pipeline.schema import schema as make
    from stages import STAGES

    print_json(make(STAGES))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look at versions, devices, models, memory and disk, and say what to do."""
    from rich.markup import escape

    from pipeline.doctor import examine

    found = examine()
    if as_json:
        print_json(found.as_dict())
    else:
        rows = [[escape(text) for text in row] for row in found.rows()]
        table(console(), ("check", "status", "found", "what to do"), rows)
    raise typer.Exit(found.exit_code)


@app.command("eval")
def evaluate(
    run_folder: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    questions: Annotated[
        Path, typer.Option("--questions", help="The question file, with answers.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Score a run: exact match, F1, recall of gold documents, citations."""
    from pipeline import evaluate as evaluation
    from pipeline import questions as question_files

    scores = evaluation.score(run_folder, question_files.read(questions))
    print_json(scores.as_dict()) if as_json else show_scores(scores)


def main() -> None:
    """The entry point: errors of the user's end with exit code 2 and one line."""
    settle()
    with mistakes_told():
        app()


def _load(file: Path, run_folder: Path | str, settings: list[str], allow: list[str]) -> Graph:
    """The graph of a pipeline file, with RUN standing for the folder of the index."""
    from pipeline.config import load
    from stages import STAGES

    sys.path.insert(0, os.getcwd())
    return load(file, STAGES, {**os.environ, "RUN": str(run_folder)}, tuple(settings), tuple(allow))


def _kept(file: Path, settings: list[str], allow: list[str]) -> str:
    """The pipeline as a run folder keeps it: RUN stays a variable, so that the folder can be moved."""
    from pipeline.config import dump
    from stages import STAGES

    mark = "RIDGEWAY-RUN-FOLDER"
    return dump(_load(file, mark, settings, allow), STAGES).replace(mark, "${RUN:-run}")


def _task(
    graph: Graph, out: Path, index: Path, documents: list[str], asked: Any, reindex: bool, kept: str = ""
) -> Task:
    """The job that the command line asks for, with the documents found on disk."""
    from pipeline.run_folder import Task
    from pipeline.versions import versions

    task = Task(graph, out, index, questions=asked, reindex=reindex, pipeline=kept, versions=versions())
    if not documents:
        return task
    from vision.files import crawl

    found = crawl(documents)
    return replace(task, documents=found.documents, failures=found.failures, unsupported=found.unsupported)


if __name__ == "__main__":
    main()
