"""What to do next: a pure state machine, event in, instructions out.

The Scheduler knows row ids, sizes and cost hints, never payloads. It forms batches from whatever rows
are ready, whichever document, question or round they come from; it prefers the deepest step with a full
batch, and runs a part-filled one only when nothing that could fill it is moving. A batch that fails is
halved until the bad row stands alone. Values that wait between steps are kept under a window of bytes.
Nothing here reads a clock, a random number or a file: the same events give the same instructions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pipeline.events import Done, Event, Failed, Instruction, Key, Meta, Start, Submit
from pipeline.holds import Item, parts_of
from pipeline.plan import Plan
from pipeline.program import Program, Step
from pipeline.quiet import Place
from pipeline.stage import expands
from pipeline.tracking import Tracker

QUEUED = 2
"""Tasks in flight on a lane: one that runs and one behind it, which hides the way to the scheduler."""


_Batch = dict[Place, dict[str, tuple[Item, ...]]]
"""Instances of a step: place to port to the rows it reads."""


@dataclass(frozen=True, slots=True)
class _Task:
    step: Step
    device: str
    rows: _Batch


class Scheduler:
    """Decides a run. `handle(event)` returns what to do; `finished` says when nothing is left to do.

    With `ordered`, inputs leave in the order in which they came, else as they finish.
    """

    def __init__(self, program: Program, plan: Plan, ordered: bool = True) -> None:
        self._plan = plan
        self._rows = Tracker(program, ordered)
        self._depth = {s.name: i for i, s in enumerate(program.steps)}
        self._deepest_first = tuple(reversed(program.steps))
        below = self._rows.below
        names = [s.name for s in program.steps]
        self._above = {name: [a for a in names[:i] if name in below[a]] for i, name in enumerate(names)}
        self._tasks: dict[int, _Task] = {}
        self._busy: dict[str, int] = defaultdict(int)
        self._flying: dict[str, int] = defaultdict(int)
        self._again: dict[str, list[_Batch]] = defaultdict(list)
        self._numbers = 0

    @property
    def finished(self) -> bool:
        """Whether every input has left, as an answer or as an error."""
        return self._rows.outlets.empty and not self._tasks

    @property
    def live_bytes(self) -> int:
        """Bytes of all values that someone will still read."""
        return self._rows.holds.live_bytes

    def handle(self, event: Event) -> list[Instruction]:
        """Take in what happened; returns what to do, in order: no lane waits while results leave."""
        if isinstance(event, Start):
            self._start(event)
        elif isinstance(event, Done):
            self._done(event)
        elif isinstance(event, Failed):
            self._failed(event)
        self._dispatch()
        said = sorted(self._rows.said, key=lambda s: not isinstance(s, Submit))
        self._rows.said.clear()
        return said

    # events

    def _start(self, event: Start) -> None:
        items = {}
        for name, meta in event.sources:
            self._rows.holds.add(name, meta.nbytes)
            items[name] = _items(name, meta)
        self._rows.start({name: meta.ids for name, meta in event.sources}, items)
        for name, _ in event.sources:
            self._rows.holds.drop(name)

    def _done(self, event: Done) -> None:
        task = self._retire(event.task)
        places = {place[1]: place for place in task.rows}
        self._rows.holds.add(event.task, event.meta.nbytes)
        at = [(places[i[:-1]][0], i) if expands(task.step.stage) else places[i] for i in event.meta.ids]
        self._rows.made(task.step.name, at, _items(event.task, event.meta))
        self._rows.settled(task.step, task.rows, good=True)
        self._rows.holds.drop(event.task)

    def _failed(self, event: Failed) -> None:
        task, fault = self._retire(event.task), event.fault
        bad = {p: fault.rows[p[1]] for p in task.rows if p[1] in fault.rows} if fault.rows else {}
        if not bad and len(task.rows) == 1:
            bad = dict.fromkeys(task.rows, (fault.category, fault.message))
        for place, (category, message) in bad.items():
            self._rows.failed(task.step.name, place, category, message, fault.detail)
        self._rows.settled(task.step, bad, good=False)
        left = [p for p in task.rows if p not in bad]
        cut = len(left) if bad else len(left) // 2
        for places in (left[:cut], left[cut:]):
            if places:
                self._again[task.step.name].append({p: task.rows[p] for p in places})

    def _retire(self, number: int) -> _Task:
        task = self._tasks.pop(number)
        self._busy[task.device] -= 1
        self._flying[task.step.name] -= 1
        return task

    # decisions

    def _dispatch(self) -> None:
        """Fill the lanes."""
        for device in self._plan.machine.names:
            while self._busy[device] < QUEUED and (step := self._choose(device)) is not None:
                self._submit(step, device)

    def _choose(self, device: str) -> Step | None:
        """The step to run next on a lane: the deepest that has enough rows, or None to wait."""
        here = [s for s in self._deepest_first if device in self._plan.placements[s.name].devices]
        here = [s for s in here if self._rows.ready[s.name] or self._again[s.name]]
        if here and self._rows.holds.live_bytes > self._plan.window:
            return self._choose_draining(here)
        return next((s for s in here if self._is_worth(s)), None)

    def _choose_draining(self, here: list[Step]) -> Step | None:
        """Over the window: only what lies behind the work in flight; with none, the deepest goes on."""
        deepest = max((self._depth[task.step.name] for task in self._tasks.values()), default=-1)
        return here[0] if self._depth[here[0].name] > deepest else None

    def _is_worth(self, step: Step) -> bool:
        """Whether a batch should run now: full, or nothing that could fill it is moving."""
        full = len(self._rows.ready[step.name]) >= self._size(step)
        return bool(self._again[step.name]) or full or not self._is_moving(step)

    def _is_moving(self, step: Step) -> bool:
        return any(self._flying[a] or self._rows.ready[a] or self._again[a] for a in self._above[step.name])

    def _size(self, step: Step) -> int:
        return self._plan.placements[step.name].batch

    def _submit(self, step: Step, device: str) -> None:
        again, ready = self._again[step.name], self._rows.ready[step.name]
        rows = again.pop() if again else dict(ready.take(self._size(step)))
        ports = {e.port: dict.fromkeys(i for row in rows.values() for i in row[e.port]) for e in step.edges}
        self._numbers += 1
        self._tasks[self._numbers] = _Task(step, device, rows)
        self._busy[device] += 1
        self._flying[step.name] += 1
        parts = tuple((port, parts_of(list(items))) for port, items in ports.items())
        self._rows.said.append(Submit(self._numbers, step.name, device, parts, tuple(p[1] for p in rows)))


def _items(key: Key, meta: Meta) -> list[Item]:
    lengths = meta.lengths or (0,) * len(meta.ids)
    done = meta.done or (False,) * len(meta.ids)
    return [Item(key, i, length, flag) for i, (length, flag) in enumerate(zip(lengths, done, strict=True))]
