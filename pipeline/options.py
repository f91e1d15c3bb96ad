"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(help="Pipeline file (YAML).", show_default=False)]
Out = Annotated[Path, typer.Option(file_okay=False, help="Run folder: answers, errors, index.")]
Index = Annotated[
    Path | None, typer.Option(file_okay=False, help="Folder of an index that exists; default: --out.")
]
Set = Annotated[list[str], typer.Option("--set", help="Override a key: stages.hits.k=12. Repeatable.")]
Allow = Annotated[list[str], typer.Option(help="A module that the file may name stages from. Repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more, with tracebacks of failed rows.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")]
Documents = Annotated[list[str], typer.Option("--documents", "-d", help="Folder, file or glob. Repeatable.")]
Reindex = Annotated[bool, typer.Option(help="Build the index again, whatever is there.")]
Cluster = Annotated[str, typer.Option("--scheduler", help="Address of a Dask scheduler to run on.")]
Svg = Annotated[Path | None, typer.Option(help="Write an SVG picture here instead of Mermaid text.")]
MachineName = Annotated[
    str,
    typer.Option("--machine", help="A shipped machine, or a file; default: this one.", show_default=False),
]
OwnLanes = Annotated[
    str,
    typer.Option(
        "--machine",
        help="A machine file that says which lanes to run on here; default: the planner's choice.",
        show_default=False,
    ),
]
Asked = Annotated[Path | None, typer.Option("--questions", help="Plan for these questions.")]
RowCount = Annotated[int, typer.Option(min=1, help="Plan for so many rows of each input that is not given.")]
PolicyNames = Annotated[
    list[str], typer.Option("--policy", help="Follow it; join several with +. Repeatable.")
]
Deadline = Annotated[
    float | None,
    typer.Option(help="Seconds in which it must be done, in the worst case.", show_default=False),
]
Lose = Annotated[list[str], typer.Option(help="Lose a lane: cuda:1@30, at second 30. Repeatable.")]
Trace = Annotated[Path | None, typer.Option(dir_okay=False, help="Write the timeline here, for Perfetto.")]


def split(policies: list[str]) -> tuple[str, ...]:
    """The policies of `--policy a+b --policy c`."""
    return tuple(name for joined in policies for name in joined.split("+"))


Apart = Annotated[
    bool, typer.Option("--apart", help="Each lane in a process of its own; values go by shared memory.")
]
Lossy = Annotated[
    bool,
    typer.Option("--lossy-edges", help="Vectors may travel between hosts as int8, where that is faster."),
]
