"""A graph as a picture: what is drawn, and Mermaid text for it.

The idea: a `Picture` is the graph flattened to boxes, frames and arrows, all in the graph's order, and
every renderer starts from it (`mermaid` here, `pipeline.svg` for a picture without a browser). The body
of a loop stands in a frame with its own inputs and outputs; what it carries is an arrow back. Everything
is text: nothing is fetched, and equal graphs give equal text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, Node
from pipeline.lookup import near_miss

__all__ = ["Arrow", "Box", "Frame", "Picture", "mermaid", "picture"]


@dataclass(frozen=True, slots=True)
class Box:
    """An input, a stage or an output. `lines`: name, then type of rows or class, then any note.

    `id` is letters, digits and _, unique in the picture; `frame` is that of the loop around it, or "".
    """

    id: str
    kind: Literal["input", "stage", "output"]
    lines: tuple[str, ...]
    frame: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A loop, around its body; `frame` is the one around it, or ""."""

    id: str
    title: str
    frame: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """Rows go from box `source` to box `target`; `back`: into the next round."""

    source: str
    target: str
    label: str
    back: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything to draw; frames stand before what is in them."""

    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    arrows: tuple[Arrow, ...]


def picture(graph: Graph, notes: Mapping[str, str] | None = None) -> Picture:
    """The picture of a graph.

    `notes`: a further line for nodes, by the name of their step: `search`, in a loop `steps/search`.
    Raises GraphError for a note on a node that is not there.
    """
    artist = _Artist(dict(notes or {}))
    artist.graph(graph, (), "")
    unknown = next((name for name in artist.notes if name not in artist.names), None)
    if unknown is not None:
        raise GraphError(
            f"a note is for node {unknown!r}, which is not there{near_miss(unknown, artist.names)}"
        )
    return Picture(tuple(artist.boxes), tuple(artist.frames), tuple(artist.arrows))


_Ids = dict[str, str]
"""What a graph calls a thing (an input, a node, `loop.output`) to the id of the box that gives it."""


@dataclass(slots=True)
class _Artist:
    notes: dict[str, str]
    names: list[str] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def graph(self, graph: Graph, path: tuple[str, ...], around: str) -> tuple[_Ids, _Ids]:
        """Draw a graph or a body; returns the ids of its input and of its output boxes, by name."""
        inputs = {
            name: self.box("input", (name, rows.__name__), path, around)
            for name, rows in graph.inputs.items()
        }
        given = dict(inputs)
        for n in graph.nodes:
            given |= self.node(n, graph, given, path, around)
        outputs = {}
        for name, ref in graph.outputs.items():
            rows = graph.type_of(ref).__name__
            outputs[name] = self.box("output", (name, rows), path, around)
            self.arrow(given[ref], outputs[name], rows)
        return inputs, outputs

    def node(self, n: Node, graph: Graph, given: _Ids, path: tuple[str, ...], around: str) -> _Ids:
        name = "/".join((*path, n.name))
        self.names.append(name)
        note = (self.notes[name],) if name in self.notes else ()
        if isinstance(n.stage, Loop):
            targets, found = self.loop(n, n.stage, note, path, around)
        else:
            made = self.box("stage", (n.name, type(n.stage).__name__, *note), path, around)
            targets, found = dict.fromkeys(n.inputs, made), {n.name: made}
        rows = {port: graph.type_of(ref).__name__ for port, ref in n.inputs.items()}
        alike = Counter(rows.values())
        for port, ref in n.inputs.items():
            apart = alike[rows[port]] > 1 and not isinstance(n.stage, Loop)
            self.arrow(given[ref], targets[port], f"{port}: {rows[port]}" if apart else rows[port])
        return found

    def loop(
        self, n: Node, loop: Loop, note: tuple[str, ...], path: tuple[str, ...], around: str
    ) -> tuple[_Ids, _Ids]:
        """Draw a loop; returns the boxes that its ports feed, and those that its outputs are."""
        title = f"{n.name}: at most {loop.max_rounds} rounds, until {loop.until}.done"
        made = self.id("loop", (*path, n.name))
        self.frames.append(Frame(made, ", ".join((title, *note)), around))
        inputs, outputs = self.graph(loop.body, (*path, n.name), made)
        for name, output in loop.carry.items():
            rows = loop.body.type_of(loop.body.outputs[output]).__name__
            self.arrow(outputs[output], inputs[name], rows, back=True)
        found = {f"{n.name}.{output}": id for output, id in outputs.items()}
        return inputs, found | ({n.name: next(iter(found.values()))} if len(found) == 1 else {})

    def box(
        self,
        kind: Literal["input", "stage", "output"],
        lines: tuple[str, ...],
        path: tuple[str, ...],
        frame: str,
    ) -> str:
        made = self.id(kind, (*path, lines[0]))
        self.boxes.append(Box(made, kind, lines, frame))
        return made

    def arrow(self, source: str, target: str, label: str, back: bool = False) -> None:
        self.arrows.append(Arrow(source, target, label, back))

    def id(self, kind: str, path: tuple[str, ...]) -> str:
        """An id that no other thing has; the kind before it keeps it from being a word of Mermaid's."""
        base = made = re.sub(r"[^A-Za-z0-9_]", "_", "_".join((kind, *path)))
        count = 1
        while made in self.taken:
            count += 1
            made = f"{base}_{count}"
        self.taken.add(made)
        return made


_SHAPES = {"input": ("([", "])"), "stage": ("[", "]"), "output": ("([", "])")}


def mermaid(graph: Graph, notes: Mapping[str, str] | None = None) -> str:
    """The graph as a Mermaid flowchart, top down. `notes` and errors as for `picture`."""
    drawn = picture(graph, notes)
    lines = ["flowchart TD", *_inside(drawn, "", "    ")]
    for a in drawn.arrows:
        arrow = f'-. "{_quoted(a.label)}, next round" .->' if a.back else f'-- "{_quoted(a.label)}" -->'
        lines.append(f"    {a.source} {arrow} {a.target}")
    return "\n".join(lines) + "\n"


def _inside(drawn: Picture, frame: str, indent: str) -> list[str]:
    """The boxes and frames directly in `frame`."""
    lines = []
    for b in drawn.boxes:
        if b.frame == frame:
            left, right = _SHAPES[b.kind]
            lines.append(f'{indent}{b.id}{left}"{"<br/>".join(map(_quoted, b.lines))}"{right}')
    for f in drawn.frames:
        if f.frame == frame:
            lines.append(f'{indent}subgraph {f.id}["{_quoted(f.title)}"]')
            lines += [*_inside(drawn, f.id, f"{indent}    "), f"{indent}end"]
    return lines


def _quoted(text: str) -> str:
    """Text that is only text inside Mermaid's quotes: letters and a few signs stay, the rest is `#N;`."""
    return "".join(c if c.isalnum() or c in " _.,:/()-|" else f"#{ord(c)};" for c in text)
