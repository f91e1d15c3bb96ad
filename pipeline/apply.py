"""One batch through one stage: the only place where a stage's `run` is called.

The plain loop and the Dask workers share it, so both see the same batches, the same checks and the
same errors.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import BadRowsError, RowError, RowId
from pipeline.rows import row_order
from pipeline.stage import Ports, check_outputs, gathers
from pipeline.twins import apart
from pipeline.values import Rows


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong with a batch. `rows`: the bad ones, with (category, message); None if unknown."""

    category: str
    message: str
    rows: Mapping[RowId, tuple[str, str]] | None = None
    detail: str = ""


def assemble(stage: Any, kinds: Ports, parts: Mapping[str, Sequence[Rows]]) -> dict[str, Rows]:
    """The batch for each port: its parts in one; a gathering stage gets its rows in the order of ids.

    `kinds`: the ports of the stage, which a worker cannot always find out (see `worker.Order`).
    """
    batch = {port: kind.concat([p for p in parts[port] if len(p)]) for port, kind in kinds.inputs.items()}
    if gathers(stage) is None:
        return batch
    return {
        port: rows.take(sorted(range(len(rows)), key=lambda i: row_order(rows.ids[i])))
        for port, rows in batch.items()
    }


def apply(stage: Any, kinds: Ports, state: Any, batch: Mapping[str, Rows], owed: tuple[RowId, ...]) -> Rows:
    """Run the stage on a batch and check that it gives the rows it owes. Raises what the stage raises.

    `owed`: the ids of the rows it was given, or the id of the group that it gathers. Where steps share the
    batch, an id may come twice: the stage then sees them told apart.
    """
    ids = apart(owed)
    if ids is not owed:
        batch = {port: replace(rows, ids=ids) for port, rows in batch.items()}
    made: Rows = stage.run(state, **batch)
    if not isinstance(made, kinds.output):
        raise TypeError(f"{type(stage).__name__} owes {kinds.output.__name__}, gave {type(made).__name__}")
    check_outputs(stage, ids, made)
    return made if gathers(stage) is None and ids is owed else replace(made, ids=owed)


def fault(error: BaseException) -> Fault:
    """What an exception out of a stage says about the batch."""
    if isinstance(error, BadRowsError):
        return Fault("bug", str(error), {i: (e.category, e.message) for i, e in error.rows.items()})
    if isinstance(error, RowError):
        return Fault(error.category, error.message)
    name = type(error).__name__
    category = "memory" if isinstance(error, MemoryError) or name == "OutOfMemoryError" else "bug"
    return Fault(category, f"{name}: {error}", None, "".join(traceback.format_exception(error)))
