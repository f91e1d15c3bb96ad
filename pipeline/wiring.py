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
    a producer; `below`: names of the nodes that a node can influence, itself included;
    `around`: the steps from which rows of a loop come back to a step that is not behind them, in order;
    `watched`: of those (under "", of all), the many-to-one steps, and the ports that share rows; `plain`:
    steps of one port whose rows are theirs alone; `relays`: readers of a step that, while alive at the
    same place, keep open all that the step could close.
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
        self.below = {n.name: tuple(self._reach(n.name)) for n in program.nodes}
        self.around = {s.name: tuple(self._around(s)) for s in program.steps}
        below = [*self.below.items(), ("", tuple(self.nodes))]
        self.watched = {name: self._watch(names) for name, names in below}
        self.plain = {s.name for s in program.steps if self._is_plain(s)}
        self.relays = {s.name: tuple(self._relay(s)) for s in program.steps}

    def _around(self, s: Step) -> Iterator[str]:
        is_round = any(n != s.name and s.name in self.below[n] for n in self.below[s.name])
        for later in self.program.steps[self.program.steps.index(s) :]:
            if s.name in self.below[later.name] and (later is not s or is_round):
                yield later.name

    def _watch(self, names: tuple[str, ...]) -> tuple[list[Step], list[tuple[Step | Turn, Edge]]]:
        found = [self.nodes[name] for name in names]
        groups = [n for n in found if isinstance(n, Step) and n.name in self.groups]
        return groups, [(n, e) for n in found for e in n.edges if not owned(n, e)]

    def _is_plain(self, s: Step) -> bool:
        return len(s.edges) == 1 and s.name not in self.groups and owned(s, s.edges[0])

    def _relay(self, s: Step) -> Iterator[str]:
        made_by = {p: n.name for n in self.nodes.values() for p in produces(n)}
        waits = {made_by.get(p, p) for p in self.program.outputs.values()} & set(self.below[s.name])
        for r, e in self.readers[s.name]:
            alike = isinstance(r, Step) and r.name not in self.groups and r.scope == s.scope and owned(r, e)
            if alike and s.made == s.depth == r.depth and waits <= set(self.below[r.name]):
                (groups, shared), (its_groups, its_shared) = self.watched[s.name], self.watched[r.name]
                if all(g in its_groups for g in groups) and all(p in its_shared for p in shared):
                    yield r.name

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
