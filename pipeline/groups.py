"""Many-to-one steps: the rows of each group, until it is whole."""

from __future__ import annotations

from collections import defaultdict

from pipeline.errors import RowId
from pipeline.holds import Holds, Item
from pipeline.program import Edge, Step
from pipeline.quiet import Place, Quiet, touched
from pipeline.wiring import Wiring


class Groups:
    """The groups of every gathering step, by place."""

    def __init__(self, wiring: Wiring, quiet: Quiet, holds: Holds) -> None:
        self._depths = wiring.groups
        self._quiet = quiet
        self._holds = holds
        self._rows: dict[str, dict[Place, dict[RowId, dict[str, Item]]]] = defaultdict(dict)
        self._fired: set[tuple[str, Place]] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._depths

    def open(self, name: str, place: Place) -> dict[RowId, dict[str, Item]]:
        """The rows of a group, by id and port; a new group if there is none."""
        if place not in self._rows[name]:
            self._rows[name][place] = {}
            self._quiet.count(name, (place,), 1)
        return self._rows[name][place]

    def arrive(self, name: str, e: Edge, place: Place, item: Item) -> None:
        """A row joins its group."""
        group = self.open(name, (place[0], place[1][: self._depths[name]]))
        group.setdefault(place[1], {})[e.port] = self._holds.keep(item)

    def take(self, name: str, place: Place) -> list[Item]:
        """All rows of a group, which ends."""
        self._fired.discard((name, place))
        return [i for ports in self._rows[name].pop(place).values() for i in ports.values()]

    def touched(self, n: Step, place: Place) -> list[Place]:
        """The groups on the path of `place`."""
        return touched(self._rows[n.name], place, len(n.scope), self._depths[n.name])

    def whole(self, n: Step, group: Place) -> dict[str, tuple[Item, ...]] | None:
        """The rows of a group by port, once, when all have come."""
        if (n.name, group) in self._fired or not self._quiet.is_fed(n, group):
            return None
        self._fired.add((n.name, group))
        rows = [r for r in self._rows[n.name][group].values() if len(r) == len(n.edges)]
        return {e.port: tuple(r[e.port] for r in rows) for e in n.edges}
