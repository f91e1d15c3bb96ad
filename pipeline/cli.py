"""`ridgeway`: the command line.

Exit codes: 0 all well, 1 some rows failed, 2 usage, pipeline file or plan, 130 stopped.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pipeline import commands
from pipeline.knot import kept, loaded, task_of
from pipeline.options import (
    Allow,
    Apart,
    Cluster,
    Deadline,
    Documents,
    File,
    Index,
    Json,
    Lossy,
    Out,
    OwnLanes,
    PolicyNames,
    Quiet,
    Reindex,
    Set,
    Verbose,
    split,
)
from pipeline.report import finish, mistakes_told, print_json, show
from pipeline.shell import do, made_by, settle, speak

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
    policy: PolicyNames = [],  # noqa: B006
    deadline: Deadline = None,
    apart: Apart = False,
    lossy: Lossy = False,
    machine: OwnLanes = "",
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Answer a list of questions over documents; the batch job."""
    from pipeline import questions as question_files

    speak(verbose, quiet or as_json)
    graph = loaded(file, (index or out).absolute(), settings, allow)
    asked = question_files.read(questions)
    task = task_of(graph, out, index or out, documents, asked, reindex, kept(file, settings, allow))
    wishes = {"policies": split(policy), "deadline": deadline, "apart": apart, "lossy": lossy}
    summary = do(task, scheduler, quiet or as_json, machine=machine, **wishes)
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
    apart: Apart = False,
    machine: OwnLanes = "",
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Read documents and build their index, without asking anything."""
    speak(verbose, quiet or as_json)
    graph = loaded(file, out.absolute(), settings, allow)
    task = task_of(graph, out, out, documents, None, reindex, kept(file, settings, allow))
    summary = do(task, scheduler, quiet or as_json, apart=apart, machine=machine)
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
    machine: OwnLanes = "",
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
    graph = loaded(file or made_by(index), index.absolute(), settings, allow)
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as folder:
        out = Path(folder)
        task = task_of(graph, out, index, [], Questions((Question("question", question, documents),)), False)
        summary = do(task, "", quiet or as_json, machine=machine)
        if as_json:
            print_json(
                next(read_lines(out / "answers.jsonl"), None) or next(read_lines(out / "errors.jsonl"))
            )
        else:
            show(out)
    raise typer.Exit(summary.exit_code)


for _command in (
    commands.plan, commands.simulate, commands.check, commands.draw, commands.stages, commands.schema,
    commands.calibrate, commands.doctor,
):  # fmt: skip
    app.command()(_command)
app.command("eval")(commands.evaluate)


def main() -> None:
    """The entry point: errors of the user's end with exit code 2 and one line."""
    settle()
    with mistakes_told():
        app()


if __name__ == "__main__":
    main()
