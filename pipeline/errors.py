"""What can go wrong, and whose it is.

Two families. A `RidgewayError` is for the person who wrote the pipeline, the command or the question
file: it ends the program before any work, with exit code 2. A `RowError` belongs to one row: the row
becomes a `Failure` in `errors.jsonl`, and everything else goes on. Messages say where, what was
found, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RowId = tuple[str | int, ...]
"""A stable path to a row: `("reports/q3.pdf", 12, 4)` is document, page (from 1), chunk (from 0)."""

CATEGORIES = (
    "unreadable",
    "encrypted",
    "empty",
    "timeout",
    "memory",
    "too long",
    "model",
    "worker died",
    "server",
    "bug",
)


class RidgewayError(ValueError):
    """Something the user can mend: base of all errors that end a command with exit code 2."""


class GraphError(RidgewayError):
    """A graph that cannot work: unknown names, ports that do not fit, cycles, unused nodes.

    `at` is the path to the fault in the pipeline file: `("stages", "search", "k")`.
    """

    def __init__(self, message: str, *at: str) -> None:
        super().__init__(message)
        self.at = at


class ConfigError(RidgewayError):
    """A pipeline file that cannot be read; the message begins with `file:line`."""


class PlanError(RidgewayError):
    """A graph that this machine cannot run as asked."""


class ModelError(RidgewayError):
    """A model name that leads to no model, or a model that cannot do what is asked."""


class IndexMismatchError(RidgewayError):
    """An index on disk that was built with another encoder, other settings or other documents."""


class RowError(Exception):
    """One row cannot be processed; raised by stages.

    `category` is one of `CATEGORIES`; the message tells the user what to do about it.
    """

    def __init__(self, category: str, message: str) -> None:
        assert category in CATEGORIES, category
        super().__init__(category, message)
        self.category = category
        self.message = message

    def __str__(self) -> str:
        return self.message


class BadRowsError(Exception):
    """Some rows of a batch failed, and the stage knows which: they fail, the others run again.

    A stage that cannot tell raises anything else, and the batch is halved until the bad row stands alone.
    """

    def __init__(self, rows: Mapping[RowId, RowError]) -> None:
        super().__init__(dict(rows))
        self.rows = dict(rows)


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that did not make it, and why."""

    id: RowId
    stage: str
    category: str
    message: str
    detail: str = field(default="", compare=False)
    """Traceback of an unexpected exception, for the log; never shown by default."""
