"""Where the items of a directed graph go on a page: in layers, top down, each below what feeds it.

The second half of the method of Sugiyama, Tagawa and Toda (1981); `pipeline.layers` is the first. Every item
is moved as near above or below its neighbours as the order in its layer allows, which is an isotonic
regression; then long links are straightened in the space that is left. It knows sizes and links only:
nothing of stages, loops or SVG. Lengths in pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.layers import Layers, Link, ranked

__all__ = ["Layout", "Route", "lay_out"]

GAP_X, GAP_Y = 36.0, 60.0
"""Between neighbours in a layer, and between layers."""

_INFINITY = float("inf")
_SWEEPS = 16


@dataclass(frozen=True, slots=True)
class Route:
    """The way of a link. `start`: bottom of its source's layer; `end`: top of its target's layer.

    `via`: for each layer between them the x to keep, its top and its bottom.
    """

    start: float
    via: tuple[tuple[float, float, float], ...]
    end: float


@dataclass(frozen=True, slots=True)
class Layout:
    """`places`: the top left corner of each item, the page's being (0, 0); `routes`: one for each link."""

    width: float
    height: float
    places: Mapping[str, tuple[float, float]]
    routes: tuple[Route, ...]


def lay_out(
    sizes: Mapping[str, tuple[float, float]],
    links: Sequence[Link],
    first: Collection[str] = (),
    last: Collection[str] = (),
) -> Layout:
    """Place items of the given sizes (width, height); `first` and `last` stand in the outer layers.

    The links must not go in a circle.
    """
    page = _Page(Layers(sizes, links, ranked(list(sizes), links, first, last)))
    page.settle()
    for link, chain in zip(links, page.of.chains, strict=True):
        page.straighten(chain[1:-1], page.x[link.target] + link.enters)
    page.shift()
    tops = page.tops()
    return Layout(
        width=max((x + page.of.width(i) / 2 for i, x in page.x.items()), default=0.0),
        height=tops[-1][1] if tops else 0.0,
        places={i: (page.x[i] - size[0] / 2, tops[page.of.ranks[i]][0]) for i, size in sizes.items()},
        routes=tuple(page.route(chain, tops) for chain in page.of.chains),
    )


class _Page:
    """Ordered layers with coordinates; `x` is that of each item's centre."""

    def __init__(self, layers: Layers) -> None:
        self.of = layers
        self.x: dict[str, float] = {}
        for layer in layers.layers:
            self._put(layer, [0.0] * len(layer))

    def settle(self) -> None:
        """Pull the items below their upper neighbours, above their lower ones, and last between both."""
        layers = self.of.layers
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in layers if down else layers[::-1]:
                self._put(layer, [self._wanted(i, above=down, below=not down) for i in layer])
        for layer in layers:
            self._put(layer, [self._wanted(i, above=True, below=True) for i in layer])

    def straighten(self, points: Sequence[str], aim: float) -> None:
        """Give as many waypoints in a row as can have it the same x, the nearest to `aim` that is free."""
        while points:
            low, high, count = -_INFINITY, _INFINITY, 0
            for left, right in map(self._free, points):
                if count and max(low, left) > min(high, right):
                    break
                low, high, count = max(low, left), min(high, right), count + 1
            self.x |= dict.fromkeys(points[:count], min(max(aim, low), high))
            points = points[count:]

    def shift(self) -> None:
        """Let the leftmost item begin at 0."""
        left = min((x - self.of.width(i) / 2 for i, x in self.x.items()), default=0.0)
        self.x = {i: x - left for i, x in self.x.items()}

    def tops(self) -> list[tuple[float, float]]:
        """Top and bottom of each layer."""
        found: list[tuple[float, float]] = []
        for layer in self.of.layers:
            top = found[-1][1] + GAP_Y if found else 0.0
            found.append((top, top + max(self.of.sizes[i][1] for i in layer)))
        return found

    def route(self, chain: Sequence[str], tops: Sequence[tuple[float, float]]) -> Route:
        """The way of the link that passes `chain`."""
        first, *between, last = (tops[self.of.ranks[i]] for i in chain)
        via = tuple((self.x[i], *span) for i, span in zip(chain[1:-1], between, strict=True))
        return Route(first[1], via, last[0])

    def _wanted(self, item: str, above: bool, below: bool) -> float:
        """Where the item's links would be straight, on average."""
        pulls = [(self.x[s.upper] + s.leaves - s.enters, s.weight) for s in self.of.up[item] if above]
        pulls += [(self.x[s.lower] + s.enters - s.leaves, s.weight) for s in self.of.down[item] if below]
        total = sum(weight for _, weight in pulls)
        return sum(place * weight for place, weight in pulls) / total if pulls else self.x[item]

    def _put(self, layer: Sequence[str], wanted: Sequence[float]) -> None:
        """Move a layer to the centres nearest to `wanted` (least squares) that keep its order and gaps."""
        offsets = [0.0]
        for a, b in pairwise(layer):
            offsets.append(offsets[-1] + (self.of.width(a) + self.of.width(b)) / 2 + GAP_X)
        fitted = _isotonic([w - o for w, o in zip(wanted, offsets, strict=True)])
        self.x |= {i: f + o for i, f, o in zip(layer, fitted, offsets, strict=True)}

    def _free(self, item: str) -> tuple[float, float]:
        """How far left and right the item's centre can go."""
        layer = self.of.layers[self.of.ranks[item]]
        k = layer.index(item)
        room = (self.of.width(item) + GAP_X) / 2
        left = [self.x[i] + self.of.width(i) / 2 + room for i in layer[max(k - 1, 0) : k]]
        right = [self.x[i] - self.of.width(i) / 2 - room for i in layer[k + 1 : k + 2]]
        return max(left, default=-_INFINITY), min(right, default=_INFINITY)


def _isotonic(values: Sequence[float]) -> list[float]:
    """The rising sequence nearest to `values`: neighbours that fall are pooled (Ayer et al., 1955)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, n), (a, m) = pools.pop(), pools.pop()
            pools.append(((a * m + b * n) / (m + n), m + n))
    return [mean for mean, count in pools for _ in range(count)]
