"""Small values and stages on whole numbers, whose results are known by heart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, RowError
from pipeline.values import Rows


@dataclass(frozen=True, slots=True)
class Numbers(Rows):
    x: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flags(Rows):
    x: tuple[int, ...]
    done: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Whole(Numbers):
    """Numbers of the whole corpus: one row, under the id ()."""

    whole: ClassVar[bool] = True


def numbers(**x: int) -> Numbers:
    return Numbers(tuple((name,) for name in x), tuple(x.values()))


@dataclass(frozen=True, slots=True)
class Plus:
    """Adds; refuses `bad` for the whole batch, as a stage does that cannot tell which row it was."""

    n: int = 1
    bad: int = -1

    def run(self, state: Any, a: Numbers) -> Numbers:
        if self.bad in a.x:
            raise ValueError(f"{self.bad} in a batch of {len(a)}")
        return Numbers(a.ids, tuple(x + self.n for x in a.x))


@dataclass(frozen=True, slots=True)
class Picky:
    """Passes on; names the rows that can be divided by `by`."""

    by: int

    def run(self, state: Any, a: Numbers) -> Numbers:
        bad = {i: RowError("unreadable", f"{x}") for i, x in zip(a.ids, a.x, strict=True) if x % self.by == 0}
        if bad:
            raise BadRowsError(bad)
        return a


@dataclass(frozen=True, slots=True)
class Join:
    """Sums two ports; rows with shorter ids are shared."""

    def run(self, state: Any, a: Numbers, b: Numbers) -> Numbers:
        ids = max(a.ids, b.ids, key=lambda ids: len(ids[0]))
        return Numbers(ids, tuple(_at(a, i) + _at(b, i) for i in ids))


def _at(rows: Numbers, i: tuple[str | int, ...]) -> int:
    return rows.x[next(k for k, j in enumerate(rows.ids) if i[: len(j)] == j)]


@dataclass(frozen=True, slots=True)
class Fan:
    """One row to `x % most` rows."""

    most: int = 4
    bad: int = -1
    expands: ClassVar[bool] = True

    def run(self, state: Any, a: Numbers) -> Numbers:
        if self.bad in a.x:
            raise ValueError("bad")
        made = [((*i, k), x * 10 + k) for i, x in zip(a.ids, a.x, strict=True) for k in range(x % self.most)]
        return Numbers(tuple(i for i, _ in made), tuple(x for _, x in made))


@dataclass(frozen=True, slots=True)
class Total:
    """Sums all rows that share `gathers` id elements; the weights make their order matter."""

    gathers: int = 0

    def run(self, state: Any, a: Numbers) -> Numbers:
        return Numbers(((),), (sum((k + 1) * x for k, x in enumerate(a.x)),))


@dataclass(frozen=True, slots=True)
class Collatz:
    """A round: halve or triple; done at one. Refuses `bad`."""

    bad: int = -1

    def run(self, state: Any, a: Numbers) -> Flags:
        if self.bad in a.x:
            raise ValueError("bad")
        x = tuple(n // 2 if n % 2 == 0 else 3 * n + 1 for n in a.x)
        return Flags(a.ids, x, np.array([n <= 1 for n in x]))


@dataclass(frozen=True, slots=True)
class Strip:
    """The numbers without their flags."""

    def run(self, state: Any, a: Flags) -> Numbers:
        return Numbers(a.ids, a.x)
