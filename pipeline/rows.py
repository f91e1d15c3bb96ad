"""A batch of rows: columns of equal length and a row id each.

Columns are tuples (anything per row) or arrays whose first axis is the row. Rows are shared between
stages, so nothing here changes after it is made. What the columns mean is said in `pipeline.values`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from pipeline.errors import RowId


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of rows: subclass it, add columns, and the rest follows."""

    ids: tuple[RowId, ...]
    whole: ClassVar[bool] = False
    """Whether such rows stand for the whole corpus, under the id `()`, also where they are an input."""
    lossy: ClassVar[tuple[str, ...]] = ()
    """Columns of vectors that may travel as int8 where the user allows it (see `pipeline.compressed`)."""

    def __post_init__(self) -> None:
        for f in fields(self):
            column = _frozen(getattr(self, f.name), f"{type(self).__name__}.{f.name}")
            if len(column) != len(self.ids):
                raise ValueError(
                    f"{type(self).__name__}.{f.name} has {len(column)} rows, ids has {len(self.ids)}"
                )
            object.__setattr__(self, f.name, column)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Sequence[int]) -> Self:
        """The rows at `index`, in that order; does not modify."""
        return type(self)(*(_take(getattr(self, f.name), index) for f in fields(self)))

    def split(self) -> Iterator[Self]:
        """One batch for each row."""
        return (self.take([i]) for i in range(len(self)))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All rows of `parts`, in order; the parts are of one type. No parts give an empty batch."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none: Any = [np.zeros((0, 0), np.float32) if _is_array(f.type) else () for f in fields(cls)]
            return cls(*none)
        return cls(*(_concat([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    @property
    def nbytes(self) -> int:
        """Bytes of the payload: exact for arrays, estimated for Python objects."""
        return sum(_nbytes(getattr(self, f.name)) for f in fields(self))

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """A cost hint per row (tokens, characters), or None where rows cost alike."""
        return None

    @property
    def keys(self) -> tuple[Hashable, ...] | None:
        """What each row would like to share a lane with (its first document), or None where all lanes do."""
        return None

    @property
    def counted(self) -> tuple[Mapping[str, int], ...] | None:
        """Numbers of each row that a run adds up by step (tokens), or None where there are none."""
        return None


def row_order(row: RowId) -> tuple[tuple[bool, str | int], ...]:
    """The order of ids: element by element, numbers before texts."""
    return tuple((isinstance(part, str), part) for part in row)


def _frozen(column: Any, name: str) -> Any:
    """The column, unchangeable: several stages read the same rows (one appending would change all)."""
    if isinstance(column, tuple):
        return tuple(_frozen_item(x, name) for x in column) if _needs_freezing(column) else column
    if isinstance(column, (list, dict, set)):
        raise ValueError(f"{name} is a {type(column).__name__}: a column is a tuple or an array")
    return _frozen_item(column, name)


def _needs_freezing(column: tuple[Any, ...]) -> bool:
    """Whether anything in it, however deep, is more than texts and numbers."""
    return any(
        _needs_freezing(x) if isinstance(x, tuple) else not isinstance(x, (str, int, float, type(None)))
        for x in column
    )


def _frozen_item(value: Any, name: str) -> Any:
    if isinstance(value, (list, dict, set, bytearray)):
        raise ValueError(f"{name} holds a {type(value).__name__}: rows are shared, use a tuple")
    if type(value) is tuple and _needs_freezing(value):
        return tuple(_frozen_item(x, name) for x in value)
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.view()
        value.flags.writeable = False
    return value


def _take(column: Any, index: Sequence[int]) -> Any:
    if isinstance(column, tuple):
        return tuple(column[i] for i in index)
    return column[list(index)]


def _is_array(annotation: Any) -> bool:
    return str(annotation).startswith(("NDArray", "numpy.ndarray", "np.ndarray"))


def _concat(columns: list[Any]) -> Any:
    if isinstance(columns[0], tuple):
        return tuple(x for column in columns for x in column)
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    import torch

    return torch.cat(columns)


def _nbytes(value: Any) -> int:
    if isinstance(value, tuple):
        return 56 + sum(_nbytes(x) for x in value)
    if isinstance(value, str):
        return 49 + len(value)
    size = getattr(value, "nbytes", None)
    return int(size) if size is not None else 32
