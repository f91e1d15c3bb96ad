"""Which rows can run, and which values may go: the counting half of the Scheduler.

An instance of a step (see `quiet`) is born when the first of the rows it owns arrives, waits for the
others, is ready, runs, and is settled. What is quiet says when a many-to-one group is whole, when a
shared row may be forgotten, and when an input has all its outputs. Failed rows leave tombstones, which
stand for all rows below them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from pipeline.errors import Failure, RowId
from pipeline.events import Fail, Instruction
from pipeline.graves import Graves
from pipeline.groups import Groups
from pipeline.holds import Holds, Item, Outlets, length_of, mate_of
from pipeline.policy import Queue, Waiting
from pipeline.program import Edge, Program, Step, Turn
from pipeline.quiet import Place, Quiet, touched
from pipeline.stage import expands
from pipeline.wiring import Wiring, owned, produces

Instance = tuple[Place, dict[str, tuple[Item, ...]]]
"""A place of a step, and the rows that it reads there by port."""


class Tracker:
    """The rows of one run. `ready`: of each step, the instances that can run."""

    def __init__(self, program: Program, ordered: bool, queue: Callable[[str], Queue[Instance]]) -> None:
        self.said: list[Instruction] = []
        self.holds = Holds(self.said)
        self.outlets = Outlets(program, ordered, self.said, self.holds)
        self.ready = {s.name: queue(s.name) for s in program.steps}
        self._program = program
        self._wiring = Wiring(program)
        self._nodes = self._wiring.nodes
        self.below, self.around = self._wiring.below, self._wiring.around
        self._quiet = Quiet(self._wiring)
        self._groups = Groups(self._wiring, self._quiet, self.holds)
        self._waiting: dict[str, dict[Place, dict[str, Item]]] = defaultdict(dict)
        self._shared: dict[tuple[str, str], dict[Place, Item]] = defaultdict(dict)
        self._graves = Graves()
        self._blocked: dict[tuple[str, str, Place], dict[Place, None]] = defaultdict(dict)
        self._leaving: dict[tuple[str, Place], dict[str, Item | Failure]] = defaultdict(dict)

    # rows come in

    def start(self, sources: Mapping[str, tuple[RowId, ...]], items: Mapping[str, list[Item]]) -> None:
        """Take in the rows of all sources."""
        for output, root in self._program.roots.items():
            self.outlets.expect(output, sources[root] if root else ((),))
        for name, ids in sources.items():
            for group in self._wiring.gathered[name]:
                self._groups.open(group, ((), ()))
            self.made(name, [((), i) for i in ids], items[name])
        self._sweep()

    def made(self, producer: str, places: list[Place], items: list[Item]) -> None:
        """Take in the rows of a value: one at each place."""
        for n, e in self._wiring.readers[producer]:
            if n.name in self._wiring.plain:
                self._arrive_plain(n.name, e.port, places, items)
            else:
                for place, item in zip(places, items, strict=True):
                    self._arrive(n, e, place, item)
        if producer in self.outlets.by_producer:
            for place, item in zip(places, items, strict=True):
                self.outlets.record(producer, place[1], item)
        for turn in self._wiring.exits[producer]:
            for place, item in zip(places, items, strict=True):
                self._leave(turn, producer, place, item)

    def failed(self, step: str, place: Place, category: str, message: str, detail: str = "") -> None:
        """The rows that an instance was to give will never come."""
        failure = Failure(place[1], step, category, message, detail)
        self.said.append(Fail(failure))
        self._deliver(step, place, failure)

    def settled(self, step: Step, places: Collection[Place], good: bool) -> None:
        """These instances ran (`good`) or failed, and their rows are handed on: forget what they read."""
        read: list[Item] = []
        waiting, is_group = self._waiting[step.name], step.name in self._groups
        for place in places:
            read += self._groups.take(step.name, place) if is_group else waiting.pop(place).values()
        if good and expands(step.stage):  # a row that became many, or none, makes their groups
            for name in self._wiring.gathered[step.name]:
                for place in places:
                    self._groups.open(name, place)
        self.holds.release_all(read)
        self._settle(step.name, places)

    def _deliver(self, producer: str, place: Place, item: Item | Failure) -> None:
        for n, e in self._wiring.readers[producer]:
            if isinstance(item, Failure):
                self._bury(n, e, place, item)
            else:
                self._arrive(n, e, place, item)
        self.outlets.record(producer, place[1], item)
        for turn in self._wiring.exits[producer]:
            self._leave(turn, producer, place, item)

    def _arrive_plain(self, name: str, port: str, places: list[Place], items: list[Item]) -> None:
        """As `_arrive`, for a step of one port: each row can run as it comes."""
        if self._graves.any_dead:
            alive = [(p, i) for p, i in zip(places, items, strict=True) if not self._graves.is_dead(name, p)]
            places, items = [p for p, _ in alive], [i for _, i in alive]
        waiting, ready = self._waiting[name], self.ready[name]
        self._quiet.count(name, places, 1)
        self.holds.keep_all(items)
        for place, item in zip(places, items, strict=True):
            waiting[place] = {port: item}
            ready.add(Waiting((place, {port: (item,)}), item.length, place[1][:1], item.mate))

    def _arrive(self, n: Step | Turn, e: Edge, place: Place, item: Item) -> None:
        if n.name in self._groups:
            self._groups.arrive(n.name, e, place, item)
        elif not owned(n, e):
            self._shared[n.name, e.port][place] = self.holds.keep(item)
            for waiting in self._blocked.pop((n.name, e.port, place), ()):
                self._try(n, waiting)
        elif not self._graves.is_dead(n.name, place):
            if place not in self._waiting[n.name]:
                self._waiting[n.name][place] = {}
                self._quiet.count(n.name, (place,), 1)
            self._waiting[n.name][place][e.port] = self.holds.keep(item)
            self._try(n, place)

    def _try(self, n: Step | Turn, place: Place) -> None:
        """Make the waiting instance ready if all its rows are there."""
        items = self._waiting[n.name].get(place)
        if items is None:
            return
        found: dict[str, tuple[Item, ...]] = {}
        for e in n.edges:
            if owned(n, e):
                item = items.get(e.port)
            else:
                at = (place[0][: e.scope], place[1][: e.depth])
                failure = self._graves.tomb(n.name, e.port, at)
                if failure is not None:
                    return self._give_up(n, place, failure)
                item = self._shared[n.name, e.port].get(at)
                if item is None:
                    self._blocked[n.name, e.port, at][place] = None
            if item is None:
                return None
            found[e.port] = (item,)
        if isinstance(n, Turn):
            return self._enter(n, place)
        self._make_ready(n.name, place, found)
        return None

    def _make_ready(self, name: str, place: Place, found: dict[str, tuple[Item, ...]]) -> None:
        own = {port: found[port] for port in self._waiting[name].get(place, found)}  # shared rows weigh alike
        self.ready[name].add(Waiting((place, found), length_of(own), place[1][:1], mate_of(found)))

    # rows that will never come

    def _bury(self, n: Step | Turn, e: Edge, place: Place, failure: Failure) -> None:
        """The row at `place`, and all below it, will never reach `n`."""
        if n.name in self._groups and len(place[1]) > self._wiring.groups[n.name]:
            return
        if not owned(n, e):
            self._graves.bury(n.name, e.port, place, failure)
            self._blocked.pop((n.name, e.port, place), None)
        for waiting in touched(self._waiting[n.name], place, len(n.scope), n.depth):
            self._give_up(n, waiting, failure)
        if owned(n, e) and self._graves.die(n.name, place):
            for producer in produces(n):
                self._deliver(producer, place, failure)

    def _give_up(self, n: Step | Turn, place: Place, failure: Failure) -> None:
        items = self._waiting[n.name].pop(place)
        self._graves.die(n.name, place)
        for producer in produces(n):
            self._deliver(producer, place, failure)
        self.holds.release_all(items.values())
        self._settle(n.name, (place,))

    # loops

    def _enter(self, turn: Turn, place: Place) -> None:
        self._quiet.rounds[turn.name, place] = 0
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
            self._quiet.rounds[turn.name, outer] = following
            for entry, p in turn.carried.items():
                self._deliver(entry, ((*outer[0], following), outer[1]), made[p])
        self.holds.release_all([m for m in made.values() if isinstance(m, Item)])

    def _exit(self, turn: Turn, place: Place, made: Mapping[str, Item | Failure]) -> None:
        self._quiet.rounds[turn.name, place] = turn.max_rounds
        for output, item in made.items():
            self._deliver(output, place, item)
        self.holds.release_all(self._waiting[turn.name].pop(place).values())
        self._settle(turn.name, (place,))

    # what is quiet

    def _settle(self, name: str, places: Collection[Place]) -> None:
        self._quiet.count(name, places, -1)
        relays = self._wiring.relays.get(name, ())
        for place in places:
            if not any(self._quiet.is_live(r, place) for r in relays):
                self._sweep(name, place)

    def _sweep(self, name: str = "", place: Place = ((), ())) -> None:
        """Act on what became quiet now that `name` is done with `place` (at the start: anything)."""
        groups, shared = self._wiring.watched[name]
        for n in groups:
            for group in self._groups.touched(n, place):
                if (found := self._groups.whole(n, group)) is not None:
                    self._make_ready(n.name, group, found)
        for m, e in shared:
            if self._shared[m.name, e.port]:
                self._forget(m, e, place)
        for output, producer in self._program.outputs.items():
            for root in self.outlets.open(output, place[1]):
                own = producer == name and place == ((), root)  # an instance lives once
                if own or self._quiet.is_closed(producer, ((), root)):
                    self.outlets.close(output, root)

    def _forget(self, n: Step | Turn, e: Edge, place: Place) -> None:
        """Let go of the rows of a shared port that nobody will read any more."""
        shared = self._shared[n.name, e.port]
        reader = self._nodes[n.scope[e.scope]] if e.scope < len(n.scope) else n
        for at in touched(shared, place, e.scope, e.depth):
            if self._quiet.is_quiet(reader, at):
                self.holds.release_all((shared.pop(at),))
