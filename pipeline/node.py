"""A stage or a loop in its place, and the order in which nodes follow each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pipeline.errors import GraphError
from pipeline.stage import gathers


@dataclass(frozen=True, slots=True)
class Node:
    """A stage or a loop in its place. Use `node()` to make one.

    `inputs`: port to the name of what feeds it; a loop with several outputs is named `loop.output`.
    `device` pins the node to one; `batch` is the largest number of rows at once.
    """

    name: str
    stage: Any
    inputs: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "stages")
        if self.batch is not None and self.batch < 1:
            raise GraphError(
                f"node {self.name!r}: batch must be 1 or more, found {self.batch!r}",
                "stages", self.name, "batch",
            )  # fmt: skip
        if self.batch is not None and gathers(self.stage) is not None:
            raise GraphError(
                f"node {self.name!r}: {type(self.stage).__name__} gathers all rows of a group at once, "
                f"so a batch size has no effect; remove it",
                "stages", self.name, "batch",
            )  # fmt: skip


def check_name(name: str, *at: str) -> None:
    """Raise GraphError unless `name` can stand in references."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise GraphError(f"a name is letters, digits and _, found {name!r}", *at, name)


def node(name: str, stage: Any, device: str | None = None, batch: int | None = None, **inputs: str) -> Node:
    """A node: `node("search", Search(k=8), queries="questions", index="index")`."""
    return Node(name, stage, inputs, device, batch)


def in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, each after those it reads, else as they came. Raises GraphError with the circle."""
    by_name = {n.name: n for n in nodes}
    reads = {n.name: [b for r in n.inputs.values() if (b := r.partition(".")[0]) in by_name] for n in nodes}
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        path = " -> ".join(error.args[1])
        at = ("stages", error.args[1][0])
        raise GraphError(f"the graph goes in a circle: {path}; use a loop", *at) from None
    placed: dict[str, Node] = {}

    def place(name: str) -> None:
        if name not in placed:
            for read in reads[name]:
                place(read)
            placed[name] = by_name[name]

    for name in by_name:
        place(name)
    return tuple(placed.values())
