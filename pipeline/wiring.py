"""What follows from a program alone: who reads whom, which loop a row enters or leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pipeline.program import Edge, Program, Step, Turn
from pipeline.stage import gathers


class Wiring:
    """The edges of a program, from the producer's side. Never changes.

    `nodes`: by name; `groups`: many-to-one steps with the id elements that a group shares; `gathered`:
    from a source or expanding step to the groups that make its rows whole again; `readers`: of each
    producer; `exits`: the loops that a producer's rows may leave; `owner`: the loop that gives or carries
    a producer; `below`: names of the nodes that a node can influence, itself included.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: dict[str, Step | Turn] = {n.name: n for n in program.nodes}
        self.groups = {s.name: d for s in program.steps if (d := gathers(s.stage)) is not None}
        self.gathered: dict[str, list[str]] = defaultdict(list)
        for s in program.steps:
            self.gathered[s.origin].append(s.name)
        self.readers: dict[str, list[tuple[Step | Turn, Edge]]] = defaultdict(list)
        self.exits: dict[str, list[Turn]] = defaultdict(list)
        self.owner: dict[str, Turn] = {}
        for n in program.nodes:
            for e in n.edges:
                self.readers[e.producer].append((n, e))
            if isinstance(n, Turn):
                for producer in dict.fromkeys(n.outputs.values()):
                    self.exits[producer].append(n)
                self.owner |= dict.fromkeys([*n.outputs, *n.carried], n)
        self.below = {n.name: set(self._reach(n.name)) for n in program.nodes}

    def _reach(self, name: str) -> Iterator[str]:
        seen, todo = {name}, [name]
        while todo:
            n = self.nodes[todo.pop()]
            yield n.name
            made = produces(n) if isinstance(n, Step) else [*n.outputs, *n.carried]
            readers = [r.name for p in made for r, _ in self.readers[p]]
            for reader in readers + [t.name for p in made for t in self.exits[p]]:
                if reader not in seen:
                    seen.add(reader)
                    todo.append(reader)


def owned(n: Step | Turn, e: Edge) -> bool:
    """Whether each row of this port makes an instance; else instances share its rows."""
    return e.depth == n.depth and e.scope == len(n.scope)


def produces(n: Step | Turn) -> list[str]:
    """The producers behind a node: itself, or the outputs of a loop."""
    return list(n.outputs) if isinstance(n, Turn) else [n.name]
