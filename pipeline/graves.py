"""Rows that will never come: what failed stands for all rows below it."""

from __future__ import annotations

from collections import defaultdict

from pipeline.errors import Failure
from pipeline.quiet import Place


class Graves:
    """Failures by the port that waits for them, and the instances that can never run."""

    def __init__(self) -> None:
        self._tombs: dict[tuple[str, str], dict[Place, Failure]] = defaultdict(dict)
        self._dead: set[tuple[str, Place]] = set()

    @property
    def any_dead(self) -> bool:
        """Whether any instance is dead."""
        return bool(self._dead)

    def bury(self, name: str, port: str, place: Place, failure: Failure) -> None:
        """The row at `place` will not come to this port, nor any below it."""
        self._tombs[name, port][place] = failure

    def tomb(self, name: str, port: str, place: Place) -> Failure | None:
        """The failure at or above `place`, if there is one."""
        tombs = self._tombs.get((name, port), {})
        above = ((place[0], place[1][:k]) for k in range(len(place[1]) + 1)) if tombs else ()
        return next((tombs[p] for p in above if p in tombs), None)

    def die(self, name: str, place: Place) -> bool:
        """The instance of `name` at `place` can never run; False if that was known."""
        known = (name, place) in self._dead
        self._dead.add((name, place))
        return not known

    def is_dead(self, name: str, place: Place) -> bool:
        """Whether the instance at `place`, or one above it, can never run."""
        if not self._dead:
            return False
        return any((name, (place[0], place[1][:k])) in self._dead for k in range(len(place[1]) + 1))
