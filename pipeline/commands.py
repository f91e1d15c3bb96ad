"""The commands that answer no questions: they look at pipelines, machines and finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.knot import crawled, loaded, stages_table
from pipeline.options import (
    Allow,
    Apart,
    Asked,
    Deadline,
    Documents,
    File,
    Json,
    Lose,
    MachineName,
    PolicyNames,
    RowCount,
    Set,
    Svg,
    Trace,
)
from pipeline.report import console, print_json, show_scores, table


def check(file: File, settings: Set = [], allow: Allow = [], as_json: Json = False) -> None:  # noqa: B006
    """Validate a pipeline file, without loading a model."""
    graph = loaded(file, Path("run"), settings, allow)
    facts = {"file": str(file), "nodes": len(graph.nodes), "outputs": list(graph.outputs)}
    print_json(facts) if as_json else print(f"{file}: {len(graph.nodes)} nodes, well formed")


def draw(
    file: File,
    svg: Svg = None,
    machine: MachineName = "",
    planned: Annotated[bool, typer.Option("--plan", help="Say at each stage where it would run.")] = False,
    rows: RowCount = 100,
    apart: Apart = False,
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
) -> None:
    """Draw a pipeline: Mermaid text, or an SVG picture."""
    from pipeline import draw as drawing
    from pipeline import svg as picture

    graph, notes = loaded(file, Path("run"), settings, allow), None
    if planned or machine or apart:
        from pipeline import foresee

        notes = foresee.notes(graph, foresee.workload(graph, rows, None, None), machine, apart)
    if svg is None:
        print(drawing.mermaid(graph, notes))
    else:
        svg.write_text(picture.svg(graph, notes), encoding="utf-8")


def stages(as_json: Json = False) -> None:
    """List the stages with their ports and parameters."""
    from rich.markup import escape

    from pipeline.catalogue import catalogue

    entries = catalogue(stages_table())
    if as_json:
        print_json([e.as_dict() for e in entries])
    else:
        rows = [[escape(t) for t in (e.name, e.summary, e.ports(), e.settings())] for e in entries]
        table(console(), ("stage", "what it does", "ports", "parameters"), rows, lines=True)


def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    from pipeline.schema import schema as make

    print_json(make(stages_table()))


def plan(
    file: File,
    machine: MachineName = "",
    documents: Documents = [],  # noqa: B006
    questions: Asked = None,
    rows: RowCount = 100,
    policy: PolicyNames = [],  # noqa: B006
    deadline: Deadline = None,
    apart: Apart = False,
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Say where each stage would run, how long it would take, and why.

    Runs nothing, but with --documents or --questions tries stages of which nothing is known on a few rows.
    """
    from pipeline import foresee

    graph = loaded(file, Path("run"), settings, allow)
    found = crawled(documents)
    work = foresee.workload(graph, rows, found, questions)
    inputs = foresee.at_hand(graph, found, questions)
    foresee.tell_plan(foresee.planned(graph, work, machine, policy, apart, inputs), as_json, deadline)


def simulate(
    file: File,
    machine: MachineName = "",
    rows: RowCount = 100,
    policy: PolicyNames = [],  # noqa: B006
    lose: Lose = [],  # noqa: B006
    trace: Trace = None,
    settings: Set = [],  # noqa: B006
    allow: Allow = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Run the real scheduler on a virtual clock, on a machine that need not be here."""
    from pipeline import foresee

    graph = loaded(file, Path("run"), settings, allow)
    work = foresee.workload(graph, rows, None, None)
    foresee.tell_simulations(foresee.simulations(graph, work, machine, policy, lose), trace, as_json)


def calibrate(
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write it here, for plans made elsewhere.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what this machine delivers: products, memory, links, handing over. Takes about 12 s."""
    from pipeline import machine_file
    from pipeline.planning import measured
    from pipeline.shell import speak

    speak(False, as_json)
    machine = measured(again=True)
    if out is not None:
        machine_file.dump(machine, out)
    if as_json:
        print_json(
            [dict(zip(machine_file.COLUMNS, row, strict=True)) for row in machine_file.describe(machine)]
        )
        return
    table(console(), machine_file.COLUMNS, machine_file.describe(machine))
    print(f"from the end of a batch to the next: {machine.handoff * 1e3:.1f} ms")


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
