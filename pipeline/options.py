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
