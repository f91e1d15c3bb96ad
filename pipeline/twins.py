"""Rows of equal ids in one batch, told apart.

Where steps share a call (see `pipeline.merging`), the row of a question may be there once for each of them.
A stage may go by id, so that every row of a batch has an id of its own also then.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipeline.errors import RowId


class Twin(tuple[str | int, ...]):
    """An id that a batch has more than once: equal to the plain id, not to that of its twins.

    A slice of it is a twin too, so that rows of two ports still find each other by prefix. Where a stage
    keeps an id in a column, it is the plain one as soon as it travels.
    """

    number: int

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and getattr(other, "number", self.number) == self.number

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _twin(found, self.number) if isinstance(at, slice) else found

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


def apart(rows: tuple[RowId, ...]) -> tuple[RowId, ...]:
    """Ids for the rows of a batch, none twice: `rows` itself where that is so already."""
    if len(set(rows)) == len(rows):
        return rows
    counts, seen = Counter(rows), Counter[RowId]()
    made = []
    for row in rows:
        made.append(_twin(row, seen[row]) if counts[row] > 1 else row)
        seen[row] += 1
    return tuple(made)


def _twin(row: RowId, number: int) -> Twin:
    made = Twin(row)
    made.number = number
    return made
