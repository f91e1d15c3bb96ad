"""What comes of a stage's rows: how many, how heavy, how long; as earlier batches have shown.

A stage that makes many rows of one may make as many of each, or the more the longer a row is (the pages of a
large file). Both are kept, with how far each has been from what came, and the better one predicts. When not:
where lengths are unknown, or no two batches could be compared so far, rows are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

ROUNDING = 1e-9
"""What two sums of errors may differ by, for each row that was made, and mean nothing."""


@dataclass(frozen=True, slots=True)
class Yield:
    """What a stage has made, in all: of `rows` it made `made`, weighing `nbytes`, of `length` in sum.

    `read`: the lengths of its rows in sum; `off_rows`, `off_read`: by how many rows it was wrong, in sum, to
    expect as many of each row as before, and as many of each unit of length.
    """

    rows: float = 0.0
    made: float = 0.0
    nbytes: float = 0.0
    length: float = 0.0
    read: float = 0.0
    off_rows: float = 0.0
    off_read: float = 0.0

    def plus(self, other: Yield) -> Yield:
        """Both together; the older counts half, so that a new corpus soon decides.

        Where only one of them knows lengths these are not added: the older gives way, or lengths are dropped.
        """
        if other.read and not self.read:
            return other
        both = Yield(*(getattr(self, f.name) / 2 + getattr(other, f.name) for f in fields(self)))
        if not other.read:
            return replace(both, read=0.0, off_rows=0.0, off_read=0.0)
        by_row, by_length = self.rates()
        off_rows = both.off_rows + abs(other.made - by_row * other.rows)
        off_read = both.off_read + abs(other.made - by_length * other.read)
        return replace(both, off_rows=off_rows, off_read=off_read)

    def expected(self, rows: float, read: float) -> float:
        """What it would make of `rows` that are `read` long in sum: by what has been less wrong so far."""
        by_row, by_length = self.rates()
        better = self.off_rows - self.off_read > ROUNDING * self.made
        return by_length * read if read and better else by_row * rows

    def rates(self) -> tuple[float, float]:
        """Rows made of each row, and of each unit of length."""
        return self.made / self.rows if self.rows else 0.0, self.made / self.read if self.read else 0.0


def summed(batches: Sequence[Yield]) -> Yield:
    """All of them, each compared with what all say: a batch alone tells nothing."""
    found = Yield(*(sum(getattr(b, f.name) for b in batches) for f in fields(Yield)))
    by_row, by_length = found.rates()
    if not found.read:
        return found
    off_rows = sum(abs(b.made - by_row * b.rows) for b in batches)
    return replace(found, off_rows=off_rows, off_read=sum(abs(b.made - by_length * b.read) for b in batches))
