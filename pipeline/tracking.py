"""Which rows can run, and which values may go: the counting half of the Scheduler.

Every step has *instances*, one for each row it will process. An instance is born when the first of the
rows it owns arrives, waits for the others, is ready, runs, and is settled. From the numbers of live
instances under each id prefix follows what is *quiet*: no more rows of a prefix will come from a step.
That one predicate says when a many-to-one group is whole, when a shared row may be forgotten, and when
an input has all its outputs. Failed rows leave tombstones, which stand for all rows below them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.errors import Failure, RowId
from pipeline.events import Fail, Instruction
from pipeline.holds import Holds, Item, Outlets
from pipeline.program import Edge, Program, Step, Turn
from pipeline.stage import expands, gathers

Place = tuple[tuple[int, ...], RowId]
"""Where a row is: the round of each loop around it, and its id."""


class Tracker:
    """The rows of one run. `ready`: of each step, the instances that can run: place to port to items."""

    def __init__(self, program: Program, ordered: bool) -> None:
        self.said: list[Instruction] = []
        self.holds = Holds(self.said)
        self.outlets = Outlets(program, ordered, self.said, self.holds)
        self.ready: dict[str, dict[Place, dict[str, tuple[Item, ...]]]] = {s.name: {} for s in program.steps}
        self._program = program
        self._nodes: dict[str, Step | Turn] = {n.name: n for n in program.nodes}
        self._groups = {s.name: d for s in program.steps if (d := gathers(s.stage)) is not None}
        self._readers: dict[str, list[tuple[Step | Turn, Edge]]] = defaultdict(list)
        self._exits: dict[str, list[Turn]] = defaultdict(list)
        self._owner: dict[str, Turn] = {}
        self._wire()
        self.below = {n.name: set(self._reach(n.name)) for n in program.nodes}
        self._live: dict[tuple[str, Place], int] = defaultdict(int)
        self._waiting: dict[str, dict[Place, dict[str, Item]]] = defaultdict(dict)
        self._gathered: dict[str, dict[Place, dict[RowId, dict[str, Item]]]] = defaultdict(dict)
        self._fired: set[tuple[str, Place]] = set()
        self._shared: dict[tuple[str, str], dict[Place, Item]] = defaultdict(dict)
        self._tombs: dict[tuple[str, str], dict[Place, Failure]] = defaultdict(dict)
        self._blocked: dict[tuple[str, str, Place], list[Place]] = defaultdict(list)
        self._dead: set[tuple[str, Place]] = set()
        self._rounds: dict[tuple[str, Place], int] = {}
        self._leaving: dict[tuple[str, Place], dict[str, Item | Failure]] = defaultdict(dict)
        self._quiet: set[tuple[str, Place]] = set()

    def _wire(self) -> None:
        for n in self._program.nodes:
            for e in n.edges:
                self._readers[e.producer].append((n, e))
            if isinstance(n, Turn):
                for producer in dict.fromkeys(n.outputs.values()):
                    self._exits[producer].append(n)
                self._owner |= dict.fromkeys([*n.outputs, *n.carried], n)

    def _reach(self, name: str) -> Iterator[str]:
        """Names of the nodes that `name` can influence, itself included."""
        seen, todo = {name}, [name]
        while todo:
            n = self._nodes[todo.pop()]
            yield n.name
            made = _produces(n) if isinstance(n, Step) else [*n.outputs, *n.carried]
            readers = [r.name for p in made for r, _ in self._readers[p]]
            for reader in readers + [t.name for p in made for t in self._exits[p]]:
                if reader not in seen:
                    seen.add(reader)
                    todo.append(reader)

    # rows come in

    def start(self, sources: Mapping[str, tuple[RowId, ...]], items: Mapping[str, list[Item]]) -> None:
        """Take in the rows of all sources."""
        for output, root in self._program.roots.items():
            self.outlets.expect(output, sources[root] if root else ((),))
        for name, depth in self._groups.items():
            if depth == 0:
                self._group(name, ((), ()))
        for name, ids in sources.items():
            self.made(name, [((), i) for i in ids], items[name])
        self._sweep()

    def made(self, producer: str, places: list[Place], items: list[Item]) -> None:
        """Take in the rows of a value: one at each place."""
        for place, item in zip(places, items, strict=True):
            self._deliver(producer, place, item)

    def failed(self, step: str, place: Place, category: str, message: str, detail: str = "") -> None:
        """The rows that an instance was to give will never come."""
        failure = Failure(place[1], step, category, message, detail)
        self.said.append(Fail(failure))
        self._deliver(step, place, failure)

    def settled(self, step: Step, places: Iterable[Place], good: bool) -> None:
        """These instances ran (`good`) or failed, and their rows are handed on: forget what they read."""
        for place in places:
            if step.name in self._groups:
                items = [i for ports in self._gathered[step.name].pop(place).values() for i in ports.values()]
            else:
                items = list(self._waiting[step.name].pop(place).values())
            if good and expands(step.stage):
                self._spawn(step, place)
            for item in items:
                self.holds.release(item)
            self._settle(step.name, place)

    def _deliver(self, producer: str, place: Place, item: Item | Failure) -> None:
        for n, e in self._readers[producer]:
            if isinstance(item, Failure):
                self._bury(n, e, place, item)
            else:
                self._arrive(n, e, place, item)
        self.outlets.record(producer, place[1], item)
        for turn in self._exits[producer]:
            self._leave(turn, producer, place, item)

    def _arrive(self, n: Step | Turn, e: Edge, place: Place, item: Item) -> None:
        if n.name in self._groups:
            group = self._group(n.name, (place[0], place[1][: self._groups[n.name]]))
            group.setdefault(place[1], {})[e.port] = self.holds.keep(item)
        elif not _owned(n, e):
            self._shared[n.name, e.port][place] = self.holds.keep(item)
            for waiting in self._blocked.pop((n.name, e.port, place), ()):
                self._try(n, waiting)
        elif not self._is_dead(n.name, place):
            if place not in self._waiting[n.name]:
                self._waiting[n.name][place] = {}
                self._count(n.name, place, 1)
            self._waiting[n.name][place][e.port] = self.holds.keep(item)
            self._try(n, place)

    def _group(self, name: str, place: Place) -> dict[RowId, dict[str, Item]]:
        if place not in self._gathered[name]:
            self._gathered[name][place] = {}
            self._count(name, place, 1)
        return self._gathered[name][place]

    def _spawn(self, step: Step, place: Place) -> None:
        """A row that became many, or none, makes the groups that will gather them again."""
        for name, depth in self._groups.items():
            if (
                depth == step.depth
                and name in self.below[step.name]
                and self._nodes[name].scope == step.scope
            ):
                self._group(name, place)

    def _try(self, n: Step | Turn, place: Place) -> None:
        """Make the waiting instance ready if all its rows are there."""
        items = self._waiting[n.name].get(place)
        if items is None:
            return
        found: dict[str, tuple[Item, ...]] = {}
        for e in n.edges:
            if _owned(n, e):
                item = items.get(e.port)
            else:
                at = (place[0][: e.scope], place[1][: e.depth])
                failure = self._tomb(n.name, e.port, at)
                if failure is not None:
                    return self._give_up(n, place, failure)
                item = self._shared[n.name, e.port].get(at)
                if item is None:
                    self._blocked[n.name, e.port, at].append(place)
            if item is None:
                return None
            found[e.port] = (item,)
        if isinstance(n, Turn):
            return self._enter(n, place)
        self.ready[n.name][place] = found
        return None

    # rows that will never come

    def _bury(self, n: Step | Turn, e: Edge, place: Place, failure: Failure) -> None:
        """The row at `place`, and all below it, will never reach `n`."""
        if n.name in self._groups and len(place[1]) > self._groups[n.name]:
            return
        if not _owned(n, e):
            self._tombs[n.name, e.port][place] = failure
        for waiting in [w for w in self._waiting[n.name] if _under(w, place)]:
            self._give_up(n, waiting, failure)
        if _owned(n, e) and (n.name, place) not in self._dead:
            self._dead.add((n.name, place))
            for producer in _produces(n):
                self._deliver(producer, place, failure)

    def _give_up(self, n: Step | Turn, place: Place, failure: Failure) -> None:
        items = self._waiting[n.name].pop(place)
        self._dead.add((n.name, place))
        for producer in _produces(n):
            self._deliver(producer, place, failure)
        for item in items.values():
            self.holds.release(item)
        self._settle(n.name, place)

    def _is_dead(self, name: str, place: Place) -> bool:
        return any((name, (place[0], place[1][:k])) in self._dead for k in range(len(place[1]) + 1))

    def _tomb(self, name: str, port: str, at: Place) -> Failure | None:
        tombs = self._tombs.get((name, port), {})
        found = (tombs.get((at[0], at[1][:k])) for k in range(len(at[1]) + 1)) if tombs else iter(())
        return next((f for f in found if f), None)

    # loops

    def _enter(self, turn: Turn, place: Place) -> None:
        self._rounds[turn.name, place] = 0
        items = self._waiting[turn.name][place]
        for entry in turn.carried:
            self._deliver(entry, ((*place[0], 0), place[1]), items[entry.rpartition("/")[2]])

    def _leave(self, turn: Turn, producer: str, place: Place, item: Item | Failure) -> None:
        """An output of a round is there; when all are, the row leaves or goes round again."""
        outer = (place[0][:-1], place[1])
        made = self._leaving[turn.name, outer]
        made[producer] = self.holds.keep(item)
        if len(made) < len(set(turn.outputs.values())):
            return
        del self._leaving[turn.name, outer]
        failure = next((m for p in turn.outputs.values() if isinstance(m := made[p], Failure)), None)
        flag, following = made[turn.until], place[0][-1] + 1
        if failure is not None or following == turn.max_rounds or (isinstance(flag, Item) and flag.done):
            self._exit(turn, outer, {o: failure or made[p] for o, p in turn.outputs.items()})
        else:
            self._rounds[turn.name, outer] = following
            for entry, p in turn.carried.items():
                self._deliver(entry, ((*outer[0], following), outer[1]), made[p])
        for m in made.values():
            self.holds.release(m)

    def _exit(self, turn: Turn, place: Place, made: Mapping[str, Item | Failure]) -> None:
        self._rounds[turn.name, place] = turn.max_rounds
        for output, item in made.items():
            self._deliver(output, place, item)
        for item in self._waiting[turn.name].pop(place).values():
            self.holds.release(item)
        self._settle(turn.name, place)

    # what is quiet

    def _settle(self, name: str, place: Place) -> None:
        self._count(name, place, -1)
        self._sweep(name, place)

    def _count(self, name: str, place: Place, by: int) -> None:
        for k in range(len(place[1]) + 1):
            self._live[name, (place[0], place[1][:k])] += by

    def _is_closed(self, producer: str, place: Place) -> bool:
        """Whether no more rows under `place` will come from `producer`."""
        if producer in self._program.sources:
            return True
        turn = self._owner.get(producer)
        if turn is None:
            return self._is_quiet(self._nodes[producer], place)
        if producer in turn.carried and len(place[1]) >= turn.depth:
            outer = (place[0][:-1], place[1][: turn.depth])
            return place[0][-1] <= self._rounds.get((turn.name, outer), -1)
        return self._is_quiet(turn, (place[0][: len(turn.scope)], place[1]))

    def _is_quiet(self, n: Step | Turn, place: Place) -> bool:
        """Whether node `n` has no instance under `place` and will get none."""
        at = (place[0], place[1][: self._groups.get(n.name, n.depth)])
        if self._live.get((n.name, at)):
            return False
        if (n.name, at) not in self._quiet and self._is_fed(n, at):
            self._quiet.add((n.name, at))
        return (n.name, at) in self._quiet

    def _is_fed(self, n: Step | Turn, at: Place) -> bool:
        return all(self._is_closed(e.producer, (at[0][: e.scope], at[1][: e.depth])) for e in n.edges)

    def _sweep(self, name: str = "", place: Place = ((), ())) -> None:
        """Act on what became quiet now that `name` is done with `place` (at the start: anything)."""
        for below in self.below[name] if name else self._nodes:
            n = self._nodes[below]
            if isinstance(n, Step) and below in self._groups:
                for group in _touched(self._gathered[below], place, len(n.scope), self._groups[below]):
                    self._complete(n, group)
            for e in n.edges:
                if not _owned(n, e) and self._shared[below, e.port]:
                    self._forget(n, e, place)
        for output, producer in self._program.outputs.items():
            for root in self.outlets.open(output, place[1]):
                if self._is_closed(producer, ((), root)):
                    self.outlets.close(output, root)

    def _complete(self, n: Step, group: Place) -> None:
        """Make a many-to-one group ready if it is whole."""
        if (n.name, group) in self._fired or not self._is_fed(n, group):
            return
        self._fired.add((n.name, group))
        rows = [r for r in self._gathered[n.name][group].values() if len(r) == len(n.edges)]
        self.ready[n.name][group] = {e.port: tuple(r[e.port] for r in rows) for e in n.edges}

    def _forget(self, n: Step | Turn, e: Edge, place: Place) -> None:
        """Let go of the rows of a shared port that nobody will read any more."""
        shared = self._shared[n.name, e.port]
        reader = self._nodes[n.scope[e.scope]] if e.scope < len(n.scope) else n
        for at in _touched(shared, place, e.scope, e.depth):
            if self._is_quiet(reader, at):
                self.holds.release(shared.pop(at))


def _owned(n: Step | Turn, e: Edge) -> bool:
    """Whether each row of this port makes an instance; else instances share its rows."""
    return e.depth == n.depth and e.scope == len(n.scope)


def _produces(n: Step | Turn) -> list[str]:
    return list(n.outputs) if isinstance(n, Turn) else [n.name]


def _under(place: Place, top: Place) -> bool:
    """Whether `place` is at or below `top`: in its rounds, with its id as a prefix."""
    return place[0][: len(top[0])] == top[0] and place[1][: len(top[1])] == top[1]


def _touched(table: Mapping[Place, Any], place: Place, scope: int, depth: int) -> list[Place]:
    """The places in `table` (rounds of length `scope`, ids of length `depth`) on the path of `place`."""
    if len(place[0]) >= scope and len(place[1]) >= depth:
        at = (place[0][:scope], place[1][:depth])
        return [at] if at in table else []
    return [p for p in table if _under(p, (place[0][:scope], place[1][:depth]))]
