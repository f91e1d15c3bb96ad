"""Which layer each item of a directed graph stands in, and in which order: no lengths yet, but widths.

The first half of the method of Sugiyama, Tagawa and Toda (1981): ranks by longest path; a link over several
ranks passes through a waypoint in each; layers are ordered by the barycentre of their neighbours. See
`pipeline.layout` for the second half. Pure and deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Layers", "Link", "Segment", "ranked"]

_WAYPOINT = (4.0, 0.0)
_SWEEPS = 16


@dataclass(frozen=True, slots=True)
class Link:
    """`source` above `target`; `leaves`, `enters`: where, in pixels to the right of each item's centre."""

    source: str
    target: str
    leaves: float = 0.0
    enters: float = 0.0


def ranked(
    items: Sequence[str], links: Sequence[Link], first: Collection[str], last: Collection[str]
) -> dict[str, int]:
    """The layer of each item: below all that feeds it, and no further from its readers than need be."""
    ranks = dict.fromkeys(items, 0)
    for _ in items:
        for link in links:
            ranks[link.target] = max(ranks[link.target], ranks[link.source] + 1)
    bottom = max(ranks.values(), default=0)
    ranks |= {i: max(bottom, 1) for i in last}
    for i in sorted(items, key=lambda i: -ranks[i]):
        below = [ranks[link.target] for link in links if link.source == i]
        above = sum(link.target == i for link in links)
        if i not in first and len(below) >= max(above, 1):
            ranks[i] = min(below) - 1
    dense = {rank: k for k, rank in enumerate(sorted(set(ranks.values())))}
    return {i: dense[rank] for i, rank in ranks.items()}


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a link, from one layer to the next."""

    upper: str
    lower: str
    leaves: float
    enters: float
    weight: float


class Layers:
    """Items and waypoints in ordered `layers`; `sizes` and `ranks` of each; the `segments` between them.

    `chains`: for each link the items and waypoints that it passes.
    """

    def __init__(
        self, sizes: Mapping[str, tuple[float, float]], links: Sequence[Link], ranks: Mapping[str, int]
    ) -> None:
        self.sizes = dict(sizes)
        self.ranks = dict(ranks)
        self.chains = [self._chain(k, link) for k, link in enumerate(links)]
        self.segments = [s for pair in zip(links, self.chains, strict=True) for s in _pieces(*pair)]
        self.up: dict[str, list[Segment]] = defaultdict(list)
        self.down: dict[str, list[Segment]] = defaultdict(list)
        for s in self.segments:
            self.up[s.lower].append(s)
            self.down[s.upper].append(s)
        depth = max(self.ranks.values(), default=-1) + 1
        self.layers = [[i for i, rank in self.ranks.items() if rank == r] for r in range(depth)]
        self._order()

    def _chain(self, k: int, link: Link) -> list[str]:
        """The items and waypoints that a link passes; makes the waypoints."""
        between = range(self.ranks[link.source] + 1, self.ranks[link.target])
        points = [f"{k}@{rank}" for rank in between]  # @ is in no item's id
        self.sizes |= dict.fromkeys(points, _WAYPOINT)
        self.ranks |= dict(zip(points, between, strict=True))
        return [link.source, *points, link.target]

    def width(self, item: str) -> float:
        """Pixels from side to side; a waypoint is a line's worth."""
        return self.sizes[item][0]

    def _order(self) -> None:
        """Order the layers for few crossings: the best of a number of sweeps down and up."""
        best, fewest = self.layers, self._crossings()
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in self.layers[1:] if down else self.layers[-2::-1]:
                self._sort(layer, down)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _sort(self, layer: list[str], down: bool) -> None:
        """Sort by the mean place of the neighbours; what has none keeps its place."""
        at = self._places()
        keys = {}
        for item in layer:
            near = (
                [_upper(s, at) for s in self.up[item]] if down else [_lower(s, at) for s in self.down[item]]
            )
            keys[item] = sum(near) / len(near) if near else at[item][0]
        layer.sort(key=keys.__getitem__)

    def _places(self) -> dict[str, tuple[float, float]]:
        """The place in its layer of each item, 0 to 1, and what a pixel is worth there."""
        return {
            i: ((k + 0.5) / len(layer), 1 / self.width(i) / len(layer))
            for layer in self.layers
            for k, i in enumerate(layer)
        }

    def _crossings(self) -> int:
        at, by_layer = self._places(), defaultdict(list)
        for s in self.segments:
            by_layer[self.ranks[s.upper]].append((_upper(s, at), _lower(s, at)))
        return sum(
            (a - c) * (b - d) < 0
            for ends in by_layer.values()
            for k, (a, b) in enumerate(ends)
            for c, d in ends[:k]
        )


def _upper(s: Segment, at: Mapping[str, tuple[float, float]]) -> float:
    place, pixel = at[s.upper]
    return place + s.leaves * pixel


def _lower(s: Segment, at: Mapping[str, tuple[float, float]]) -> float:
    place, pixel = at[s.lower]
    return place + s.enters * pixel


def _pieces(link: Link, chain: Sequence[str]) -> Iterator[Segment]:
    """The segments of a link; the longer ones pull harder, so that they run straight."""
    inner = len(chain) - 2
    for k, (upper, lower) in enumerate(pairwise(chain)):
        leaves = link.leaves if k == 0 else 0.0
        enters = link.enters if k == inner else 0.0
        yield Segment(upper, lower, leaves, enters, 4.0 if 0 < k < inner else 1.0)
