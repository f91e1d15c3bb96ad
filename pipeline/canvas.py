"""Where everything in a `Picture` goes: rectangles for boxes and frames, a line for each arrow.

Loops are laid out first, each as a page of its own, then placed as one item in what is around them. Arrows
into the next round run along lanes at the right of their loop. Text is measured by rule of thumb, as fonts
differ: boxes are a little wider than need be. Coordinates are pixels from the top left of the picture.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.draw import Arrow, Box, Picture
from pipeline.layers import Link
from pipeline.layout import Layout, Route, lay_out

__all__ = ["LINE", "PADDING", "Canvas", "Line", "Rect", "text_width"]

LINE, PADDING, TITLE = 17.0, 16.0, 26.0
"""Height of a line of text; space in a frame around its content; height of a frame's title."""

LANE = 14.0
"""Between arrows back, side by side at the right of their loop."""


@dataclass(frozen=True, slots=True)
class Rect:
    """Top left corner, width and height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> float:
        """The x half way."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """The y of the lower edge."""
        return self.y + self.height

    def meets(self, other: Rect) -> bool:
        """Whether the two share more than an edge."""
        apart = self.x >= other.x + other.width or other.x >= self.x + self.width
        return not (apart or self.y >= other.bottom or other.y >= self.bottom)

    def holds(self, x: float, y: float) -> bool:
        """Whether a point is inside."""
        return self.x < x < self.x + self.width and self.y < y < self.bottom


@dataclass(frozen=True, slots=True)
class Line:
    """An arrow's path; `points` are on it, those first where its label would stand best."""

    path: str
    points: tuple[tuple[float, float], ...]


class Canvas:
    """Where everything is: `at`, by id, on a page of `width` and `height` with `margin` around it all."""

    def __init__(self, drawn: Picture, margin: float) -> None:
        self.drawn = drawn
        self.frame_of = {b.id: b.frame for b in drawn.boxes} | {f.id: f.frame for f in drawn.frames}
        self.sizes = {b.id: _box_size(b) for b in drawn.boxes}
        self.layouts: dict[str, Layout] = {}
        self.at: dict[str, Rect] = {}
        self.routes: dict[Arrow, Route] = {}
        self.backs = {
            f.id: [a for a in drawn.arrows if a.back and self._scope(a) == f.id] for f in drawn.frames
        }
        width, height = self._measure("")
        self.width, self.height = width + 2 * margin, height + 2 * margin
        self._place("", margin, margin)

    def lines(self) -> list[Line]:
        """The line of each arrow of the picture."""
        ends = self._ends()
        return [self._back(a, *ends[a]) if a.back else self._forth(a, *ends[a]) for a in self.drawn.arrows]

    def _measure(self, frame: str) -> tuple[float, float]:
        """Lay out a frame, those inside it first; returns the width and height of its content."""
        for f in self.drawn.frames:
            if f.frame == frame:
                width, height = self._measure(f.id)
                lanes, (left, top) = LANE * len(self.backs[f.id]), self._corner(f.id)
                width = max(width + left + PADDING + lanes, text_width(f.title) + 2 * PADDING)
                self.sizes[f.id] = width, height + top + PADDING + lanes
        inside = [i for i, around in self.frame_of.items() if around == frame]
        ends = {b.id: b.kind for b in self.drawn.boxes if b.frame == frame and frame}
        made = self.layouts[frame] = lay_out(
            {i: self.sizes[i] for i in inside},
            [self._link(a, frame) for a in self._arrows(frame)],
            first=[i for i, kind in ends.items() if kind == "input"],
            last=[b.id for b in self.drawn.boxes if b.frame == frame and b.kind == "output"],
        )
        return made.width, made.height

    def _place(self, frame: str, x: float, y: float) -> None:
        """Put what was measured at its place, with (x, y) the top left of the frame's content."""
        made = self.layouts[frame]
        for i, (dx, dy) in made.places.items():
            self.at[i] = Rect(x + dx, y + dy, *self.sizes[i])
            if i in self.layouts:
                left, top = self._corner(i)
                self._place(i, x + dx + left, y + dy + top)
        for a, route in zip(self._arrows(frame), made.routes, strict=True):
            via = tuple((x + vx, y + top, y + bottom) for vx, top, bottom in route.via)
            self.routes[a] = Route(y + route.start, via, y + route.end)

    def _ends(self) -> dict[Arrow, tuple[float, float]]:
        """The x at which each arrow leaves and enters: spread along its boxes, so that few cross there."""
        leaves: dict[Arrow, float] = {}
        enters: dict[Arrow, float] = {}
        for b in self.drawn.boxes:
            out = [a for a in self.drawn.arrows if a.source == b.id]
            leaves |= self._spread(b.id, sorted(out, key=lambda a: self._toward(a, 0, a.target)))
            into = [a for a in self.drawn.arrows if a.target == b.id]
            enters |= self._spread(b.id, sorted(into, key=lambda a: self._toward(a, -1, a.source)))
        return {a: (leaves[a], enters[a]) for a in self.drawn.arrows}

    def _forth(self, a: Arrow, leaves: float, enters: float) -> Line:
        """The line of an arrow down."""
        route = self.routes[a]
        x, y = leaves, self.at[a.source].bottom
        parts, points = [f"M{x:.1f} {y:.1f}V{route.start:.1f}"], []
        for to, top, bottom in (*route.via, (enters, route.end, self.at[a.target].y)):
            start = route.start if len(parts) == 1 else y
            middle = (start + top) / 2
            parts.append(f"C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {top:.1f}V{bottom:.1f}")
            points += [_curve(x, start, to, top, t) for t in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2)]
            points += [(to, top + (bottom - top) * t) for t in (0.25, 0.5, 0.75) if bottom - top > LINE]
            x, y = to, bottom
        return Line("".join(parts), tuple(points))

    def _back(self, a: Arrow, leaves: float, enters: float) -> Line:
        """The line of an arrow into the next round: down, right, up along a lane, left, and down."""
        frame = self._scope(a)
        lane = LANE * self.backs[frame].index(a)
        around, content = self.at[frame], self.layouts[frame]
        top = around.y + self._corner(frame)[1] - PADDING / 2 - lane
        bottom = around.y + self._corner(frame)[1] + content.height + PADDING / 2 + lane
        right = around.x + around.width - PADDING / 2 - LANE * len(self.backs[frame]) + LANE / 2 + lane
        down, up = self.at[a.source].bottom, self.at[a.target].y
        path = f"M{leaves:.1f} {down:.1f}V{bottom:.1f}H{right:.1f}V{top:.1f}H{enters:.1f}V{up:.1f}"
        points = [(leaves + (right - leaves) * t, bottom) for t in (0.5, 0.3, 0.7)]
        points += [(enters + (right - enters) * t, top) for t in (0.5, 0.3, 0.7)]
        return Line(path, tuple(points))

    def _corner(self, frame: str) -> tuple[float, float]:
        """From a frame's top left to that of its content."""
        return PADDING, TITLE + PADDING + LANE * len(self.backs[frame])

    def _arrows(self, frame: str) -> list[Arrow]:
        return [a for a in self.drawn.arrows if not a.back and self._scope(a) == frame]

    def _scope(self, a: Arrow) -> str:
        """The innermost frame around both ends."""
        around = set(self._around(a.source))
        return next(f for f in self._around(a.target) if f in around)

    def _around(self, thing: str) -> Iterator[str]:
        while thing:
            thing = self.frame_of[thing]
            yield thing

    def _link(self, a: Arrow, scope: str) -> Link:
        (source, leaves), (target, enters) = self._lifted(a.source, scope), self._lifted(a.target, scope)
        return Link(source, target, leaves, enters)

    def _lifted(self, box: str, scope: str) -> tuple[str, float]:
        """The item in `scope` that is or holds `box`, and how far right of its centre the box is."""
        frame = self.frame_of[box]
        if frame == scope:
            return box, 0.0
        left = self.layouts[frame].places[box][0] + self._corner(frame)[0]
        return frame, left + self.sizes[box][0] / 2 - self.sizes[frame][0] / 2

    def _spread(self, box: str, arrows: list[Arrow]) -> dict[Arrow, float]:
        at = self.at[box]
        return {a: at.x + at.width * (k + 1) / (len(arrows) + 1) for k, a in enumerate(arrows)}

    def _toward(self, a: Arrow, end: int, box: str) -> float:
        """The x of the next thing on the way of an arrow; those that go back go right."""
        if a.back:
            return float("inf")
        via = self.routes[a].via
        return via[end][0] if via else self.at[box].centre


def _curve(x: float, y: float, to_x: float, to_y: float, t: float) -> tuple[float, float]:
    """The point at `t` on the cubic whose tangents are upright and meet half way down."""
    s, middle = 1 - t, (y + to_y) / 2
    share = t * t * (3 - 2 * t)
    return x + (to_x - x) * share, y * s**3 + 3 * middle * s * t * (s + t) + to_y * t**3


def text_width(text: str) -> float:
    """Pixels of a line at 13 px: 0.6 em for a character, 1 em for a wide one."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return 13 * (0.6 * (len(text) - wide) + wide)


def _box_size(b: Box) -> tuple[float, float]:
    return max(110.0, *(text_width(line) for line in b.lines)) + 24, LINE * len(b.lines) + 14
