"""Free pages in a row: what allocators of pages take from and give back to. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["Runs"]


class Runs:
    """The free ones of `pages` pages, as runs that touch no other. Best fit, the lowest of equals."""

    def __init__(self, pages: int) -> None:
        self._order: list[tuple[int, int]] = []
        self._length: dict[int, int] = {}
        self._start: dict[int, int] = {}
        self._add(0, pages)

    @property
    def longest(self) -> int:
        """Pages of the longest run."""
        return self._order[-1][0] if self._order else 0

    def take(self, pages: int) -> int | None:
        """The first of so many pages in a row; None where no run is that long."""
        place = bisect_left(self._order, (pages, 0))
        if place == len(self._order):
            return None
        start = self._order[place][1]
        self.take_at(start, pages)
        return start

    def take_at(self, start: int, pages: int) -> bool:
        """So many pages from `start` on, which begins a run; False where it does not, or is too short."""
        if self._length.get(start, 0) < pages:
            return False
        left = self._remove(start) - pages
        if left:
            self._add(start + pages, left)
        return True

    def give(self, start: int, pages: int) -> None:
        """Pages that are free again, joined with the runs at both ends."""
        end = start + pages
        if end in self._length:
            end += self._remove(end)
        if start in self._start:
            start = self._start[start]
            self._remove(start)
        self._add(start, end - start)

    def _add(self, start: int, length: int) -> None:
        insort(self._order, (length, start))
        self._length[start] = length
        self._start[start + length] = start

    def _remove(self, start: int) -> int:
        length = self._length.pop(start)
        del self._start[start + length]
        del self._order[bisect_left(self._order, (length, start))]
        return length
