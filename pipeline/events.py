"""What the Scheduler is told and what it says: plain records, so that a run can be replayed.

Rows are named, never held: a value is known by its key (a source's name or a task's number) and a row
in it by its index. In goes what happened, out comes what to do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from pipeline.apply import Fault
from pipeline.errors import Failure, RowId
from pipeline.values import Rows

Key = int | str
"""A value: the number of the task that made it, or the name of the source."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What the Scheduler may know of a value. `nbytes`: of all rows; the others: a row each.

    `keys`: what a row would like to share a lane with, such as its document or prefix; `counted`: numbers
    that the run adds up, and the Scheduler does not look at.
    """

    ids: tuple[RowId, ...]
    nbytes: int
    lengths: tuple[int, ...] | None = None
    done: tuple[bool, ...] | None = None
    keys: tuple[Hashable, ...] | None = None
    counted: tuple[Mapping[str, int], ...] | None = field(default=None, compare=False)


def describe(rows: Rows) -> Meta:
    """The description of a value."""
    done = getattr(rows, "done", None)
    flags = None if done is None else tuple(bool(d) for d in done)
    return Meta(rows.ids, rows.nbytes, rows.lengths, flags, rows.keys, rows.counted)


@dataclass(frozen=True, slots=True)
class Start:
    """All sources with their rows; the first event of a run."""

    sources: tuple[tuple[str, Meta], ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A task gave a value."""

    task: int
    meta: Meta


@dataclass(frozen=True, slots=True)
class Failed:
    """A task raised, or its worker died."""

    task: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Lost:
    """A lane is gone. What it had under way is asked for again elsewhere, and its tasks are void."""

    device: str


Event = Start | Done | Failed | Lost


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a value, by index."""

    key: Key
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """Run `step` on `device` over these rows; the value it makes is called `task`.

    `owed`: the ids of the rows, in order, or of the group that they make. `shares`: where steps of equal
    stages share the call, `step` the first of them, how many of the rows are whose, in order; else nothing.
    """

    task: int
    step: str
    device: str
    ports: tuple[tuple[str, tuple[Part, ...]], ...]
    owed: tuple[RowId, ...]
    shares: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody will read this value again."""

    key: Key


@dataclass(frozen=True, slots=True)
class Emit:
    """The row `root` of the input has all its rows (sorted by id) and failures at this output."""

    output: str
    root: RowId
    parts: tuple[Part, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """A row failed at a step; said once, however much depends on it."""

    failure: Failure


Instruction = Submit | Free | Emit | Fail
