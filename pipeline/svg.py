"""A graph as an SVG picture that stands alone: no script, no font, no style sheet from elsewhere.

The shapes only; `pipeline.canvas` says where they go. Every colour is given, the background too, so the
picture reads the same on a dark page. Equal graphs give equal text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from pipeline.canvas import LINE, PADDING, Canvas, Line, Rect, text_width
from pipeline.draw import Arrow, Box, Frame, picture
from pipeline.graph import Graph

__all__ = ["svg"]

MARGIN = 24.0
_SMALL = 11 / 13
_INK, _SOFT, _LINE, _PAPER = "#1f2933", "#52606d", "#7b8794", "#ffffff"
_FILLS = {"input": "#e3f2e6", "stage": "#e6eefc", "output": "#fdf0d9"}
_EDGES = {"input": "#4f8f5f", "stage": "#4c6fb1", "output": "#b7822b"}
_ARROWHEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 8 4 0 8z" fill="{_LINE}"/></marker>'
)


def svg(graph: Graph, notes: Mapping[str, str] | None = None) -> str:
    """The graph as SVG text, top down. `notes` and errors as for `pipeline.draw.picture`."""
    drawn = picture(graph, notes)
    canvas = Canvas(drawn, MARGIN)
    lines = canvas.lines()
    shapes = [
        *(_frame(f, canvas.at[f.id]) for f in drawn.frames),
        *(_arrow(a, line) for a, line in zip(drawn.arrows, lines, strict=True)),
        *(_box(b, canvas.at[b.id]) for b in drawn.boxes),
        *_labels(drawn.arrows, lines, [canvas.at[b.id] for b in drawn.boxes]),
    ]
    return _document(canvas, ", ".join(graph.outputs), shapes)


def _labels(arrows: Sequence[Arrow], lines: Sequence[Line], boxes: Sequence[Rect]) -> Iterator[str]:
    """Each label where it hides least: no box, no other label, few other lines."""
    taken = list(boxes)
    for a, line in zip(arrows, lines, strict=True):
        others = [p for other in lines if other is not line for p in other.points]
        width = text_width(a.label) * _SMALL + 6

        def hidden(spot: Rect, others: Sequence[tuple[float, float]] = others) -> int:
            return 100 * sum(spot.meets(t) for t in taken) + sum(spot.holds(*p) for p in others)

        spots = [Rect(x - width / 2, y - 8, width, 16) for x, y in line.points]
        best = min(spots, key=hidden)
        taken.append(best)
        yield _rect(best, f'rx="3" fill="{_PAPER}" fill-opacity="0.9"')
        yield _text(best.centre, best.y + 12, a.label, f'font-size="11" fill="{_SOFT}"')


def _frame(f: Frame, at: Rect) -> str:
    title = _text(at.x + PADDING, at.y + 18, f.title, f'text-anchor="start" fill="{_SOFT}"')
    return _rect(at, f'rx="8" fill="#f5f7fa" stroke="{_LINE}"') + title


def _arrow(a: Arrow, line: Line) -> str:
    dots = ' stroke-dasharray="2 4"' if a.back else ""
    style = f'fill="none" stroke="{_LINE}" stroke-width="1.4"{dots} marker-end="url(#head)"'
    return f'<path d="{line.path}" {style}/>'


def _box(b: Box, at: Rect) -> str:
    round_by = 6 if b.kind == "stage" else at.height / 2
    shape = _rect(at, f'rx="{round_by:.1f}" fill="{_FILLS[b.kind]}" stroke="{_EDGES[b.kind]}"')
    styles = (f'font-weight="600" fill="{_INK}"', *[f'fill="{_SOFT}"'] * (len(b.lines) - 1))
    rows = zip(b.lines, styles, strict=True)
    return shape + "".join(_text(at.centre, at.y + 20 + LINE * k, t, s) for k, (t, s) in enumerate(rows))


def _rect(at: Rect, style: str) -> str:
    return f'<rect x="{at.x:.1f}" y="{at.y:.1f}" width="{at.width:.1f}" height="{at.height:.1f}" {style}/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Text for XML, which has no way to write control characters."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in text))


def _document(canvas: Canvas, name: str, shapes: Sequence[str]) -> str:
    width, height = f"{canvas.width:.0f}", f"{canvas.height:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" '
            'font-family="sans-serif" font-size="13" text-anchor="middle">',
            f"<title>pipeline: {_escaped(name)}</title>",
            f"<defs>{_ARROWHEAD}</defs>",
            f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
            *shapes,
            "</svg>\n",
        ]
    )
