"""Whether more rows will come: the one predicate behind groups, shared rows and outputs.

Every step has *instances*, one for each row it will process. They are counted under each prefix of their
id, from birth to settlement. Where none is alive and nothing can bring one to life, the step is *quiet*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pipeline.errors import RowId
from pipeline.program import Step, Turn
from pipeline.wiring import Wiring

MEMO = 1 << 16
"""Quiet places to remember; what is forgotten is worked out again."""

Place = tuple[tuple[int, ...], RowId]
"""Where a row is: the round of each loop around it, and its id."""


class Quiet:
    """Counts live instances. `rounds`: the round of each row that is in a loop, or was."""

    def __init__(self, wiring: Wiring) -> None:
        self.rounds: dict[tuple[str, Place], int] = {}
        self._wiring = wiring
        self._live: dict[tuple[str, Place], int] = defaultdict(int)
        self._quiet: set[tuple[str, Place]] = set()

    def count(self, name: str, place: Place, by: int) -> None:
        """An instance of `name` was born at `place` (`by` 1) or is settled (-1)."""
        for k in range(len(place[1]) + 1):
            at = (name, (place[0], place[1][:k]))
            self._live[at] += by
            if not self._live[at]:
                del self._live[at]

    def is_closed(self, producer: str, place: Place) -> bool:
        """Whether no more rows under `place` will come from `producer`."""
        if producer in self._wiring.program.sources:
            return True
        turn = self._wiring.owner.get(producer)
        if turn is None:
            return self.is_quiet(self._wiring.nodes[producer], place)
        if producer in turn.carried and len(place[1]) >= turn.depth:
            outer = (place[0][:-1], place[1][: turn.depth])
            return place[0][-1] <= self.rounds.get((turn.name, outer), -1)
        return self.is_quiet(turn, (place[0][: len(turn.scope)], place[1]))

    def is_quiet(self, n: Step | Turn, place: Place) -> bool:
        """Whether node `n` has no instance under `place` and will get none."""
        at = (place[0], place[1][: self._wiring.groups.get(n.name, n.depth)])
        if self._live.get((n.name, at)):
            return False
        if (n.name, at) not in self._quiet and self.is_fed(n, at):
            if len(self._quiet) >= MEMO:
                self._quiet.clear()
            self._quiet.add((n.name, at))
        return (n.name, at) in self._quiet

    def is_fed(self, n: Step | Turn, at: Place) -> bool:
        """Whether all rows that `n` reads under `at` are there."""
        return all(self.is_closed(e.producer, (at[0][: e.scope], at[1][: e.depth])) for e in n.edges)


def under(place: Place, top: Place) -> bool:
    """Whether `place` is at or below `top`: in its rounds, with its id as a prefix."""
    return place[0][: len(top[0])] == top[0] and place[1][: len(top[1])] == top[1]


def touched(table: Mapping[Place, Any], place: Place, scope: int, depth: int) -> list[Place]:
    """The places in `table` (rounds of length `scope`, ids of length `depth`) on the path of `place`."""
    if len(place[0]) >= scope and len(place[1]) >= depth:
        at = (place[0][:scope], place[1][:depth])
        return [at] if at in table else []
    return [p for p in table if under(p, (place[0][:scope], place[1][:depth]))]
