"""Names to things: tables of `name -> "module:Class"`, and near misses for those who mistype."""

from __future__ import annotations

import difflib
import importlib
import operator
from collections.abc import Iterable, Mapping
from typing import Any

Table = Mapping[str, str]


def near_miss(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'search'?"`, or the known names where nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def load(path: str) -> Any:
    """The object at `"module:name"`, or `"module:Outer.name"`. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


def find(name: str, table: Table, what: str) -> Any:
    """The object that `table` holds under `name`, imported now.

    Raises LookupError that names the near miss.
    """
    if name not in table:
        raise LookupError(f"no {what} named {name!r}{near_miss(name, table)}")
    return load(table[name])
