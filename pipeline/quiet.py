"""Whether more rows will come: the one predicate behind groups, shared rows and outputs.

Every step has *instances*, one for each row it will process. They are counted under each prefix of their
id, from birth to settlement. Where none is alive and nothing can bring one to life, the step is *quiet*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
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
        self._live: dict[str, dict[Place, int]] = defaultdict(dict)
        self._quiet: set[tuple[str, Place]] = set()
        asked = _depths(wiring)
        self._caps = {n.name: wiring.groups.get(n.name, n.depth) for n in wiring.nodes.values()}
        self._above = {name: [d for d in asked if d < cap] for name, cap in self._caps.items()}

    def count(self, name: str, places: Collection[Place], by: int) -> None:
        """Instances of `name` were born at `places` (`by` 1) or are settled (-1)."""
        live, above = self._live[name], self._above[name]
        for at in [*places, *[(p[0], p[1][:d]) for d in above for p in places]]:
            number = live.get(at, 0) + by
            if number:
                live[at] = number
            else:
                del live[at]

    def is_live(self, name: str, place: Place) -> bool:
        """Whether an instance of `name` is alive at this very place."""
        return place in self._live[name]

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
        cap = self._caps[n.name]
        at = place if len(place[1]) <= cap else (place[0], place[1][:cap])
        if at in self._live[n.name]:
            return False
        if (n.name, at) not in self._quiet and self.is_fed(n, at):
            if len(self._quiet) >= MEMO:
                self._quiet.clear()
            self._quiet.add((n.name, at))
        return (n.name, at) in self._quiet

    def is_fed(self, n: Step | Turn, at: Place) -> bool:
        """Whether all rows that `n` reads under `at` are there."""
        return all(self.is_closed(e.producer, (at[0][: e.scope], at[1][: e.depth])) for e in n.edges)


def _depths(wiring: Wiring) -> list[int]:
    """How long the ids are under which anything is ever asked to be quiet."""
    edges = {e.depth for n in wiring.nodes.values() for e in n.edges}
    outputs = {1 if root else 0 for root in wiring.program.roots.values()}
    return sorted(edges | outputs | set(wiring.groups.values()))


def under(place: Place, top: Place) -> bool:
    """Whether `place` is at or below `top`: in its rounds, with its id as a prefix."""
    return place[0][: len(top[0])] == top[0] and place[1][: len(top[1])] == top[1]


def touched(table: Mapping[Place, Any], place: Place, scope: int, depth: int) -> list[Place]:
    """The places in `table` (rounds of length `scope`, ids of length `depth`) on the path of `place`."""
    if len(place[0]) >= scope and len(place[1]) >= depth:
        at = (place[0][:scope], place[1][:depth])
        return [at] if at in table else []
    return [p for p in table if under(p, (place[0][:scope], place[1][:depth]))]
