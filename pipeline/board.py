"""Who is doing what: the tasks under way, by lane and by step. Shown to policies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pipeline.holds import Weights
from pipeline.machine import Machine
from pipeline.program import Program
from pipeline.tasks import Batch, Task
from pipeline.tracking import Tracker

QUEUED = 2
"""Tasks in flight on a lane: one that runs and one behind it, which hides the way to the scheduler."""


class Board:
    """Counts tasks. `again`: batches of each step that must run once more, before what is ready.

    `promised`: bytes that the tasks under way are expected to make.
    """

    def __init__(self, program: Program, machine: Machine, rows: Tracker) -> None:
        self.tasks: dict[int, Task] = {}
        self.weights = Weights()
        self.promised = 0
        self.lost: set[str] = set()
        self.again: dict[str, list[Batch]] = {s.name: [] for s in program.steps}
        self.steps_of: dict[str, tuple[str, ...]] = {}
        self._ready = rows.ready
        names = [s.name for s in program.steps]
        self._above = {n: [a for a in names[:i] if n in rows.below[a]] for i, n in enumerate(names)}
        self._around = rows.around
        self._busy: dict[str, int] = defaultdict(int)
        self._flying: dict[str, int] = defaultdict(int)
        self._opened: set[tuple[str, str]] = set()
        self._order = {name: i for i, name in enumerate(machine.names)}
        self._room = set(machine.names)
        self._rivals = {
            d.name: [o.name for o in machine.devices if o is not d and set(o.cores) & set(d.cores)]
            for d in machine.devices
        }

    # what policies may ask

    def waiting(self, step: str, *others: str) -> int:
        """Rows of a step, and of others, that can run now."""
        rows = len(self._ready[step])
        return rows + sum(map(self.waiting, others)) if others else rows

    def coming(self, step: str) -> bool:
        """Whether anything moves that could bring it more rows."""
        return self.source(step) is not None

    def flying(self, step: str) -> int:
        """Batches of the step under way."""
        return self._flying[step]

    def busy(self, lane: str) -> int:
        """Batches under way or queued on a lane."""
        return self._busy[lane]

    def idle(self, lane: str) -> bool:
        """Whether a lane has nothing under way and nothing of its own that it could run now."""
        return not self._busy[lane] and not any(self.has_rows(s) for s in self.steps_of.get(lane, ()))

    def opened(self, step: str, lane: str) -> bool:
        """Whether the lane has run the step's stage, so that weights and index are there."""
        return (step, lane) in self._opened

    # what the Scheduler does

    def source(self, step: str) -> str | None:
        """The nearest step above that moves, so that it may bring `step` more rows."""
        moving = (a for a in reversed(self._above[step]) if self._flying[a] or self.has_rows(a))
        return next(moving, None)

    def returning(self, step: str) -> str | None:
        """The nearest step from which rows of a loop may come round to `step` again, if any moves."""
        moving = (a for a in reversed(self._around[step]) if self._flying[a] or self.has_rows(a))
        return next(moving, None)

    def has_rows(self, step: str) -> bool:
        """Whether a step could run."""
        return bool(self.again[step] or self._ready[step])

    def with_room(self) -> list[str]:
        """The lanes that may be free, in the order of the machine."""
        return sorted(self._room, key=self._order.__getitem__)

    def standing(self) -> list[str]:
        """The lanes that are there and have nothing to do, while no other lane works on their cores."""
        return [lane for lane in self.with_room() if self.is_free(lane, 1)]

    def is_free(self, lane: str, depth: int) -> bool:
        """Whether a lane has fewer than `depth` tasks, and no lane on its cores has any."""
        if self._busy[lane] >= depth or lane in self.lost:
            return False
        return not any(map(self._busy.__getitem__, self._rivals[lane]))

    def begin(self, number: int, task: Task) -> None:
        """A task is handed to its lane."""
        self.tasks[number] = task
        self._busy[task.device] += 1
        if self._busy[task.device] >= QUEUED:
            self._room.discard(task.device)
        for part in task.by_step:
            self.promised += part.promised
            self._flying[part.step.name] += 1
            self._opened.add((part.step.name, task.device))

    def retire(self, number: int) -> Task:
        """A task is over."""
        task = self.tasks.pop(number)
        self._busy[task.device] -= 1
        self._room.add(task.device)
        for part in task.by_step:
            self.promised -= part.promised
            self._flying[part.step.name] -= 1
        return task

    def lose(self, lane: str) -> None:
        """A lane is gone: what it had under way must run again elsewhere."""
        self.lost.add(lane)
        for number in [n for n, task in self.tasks.items() if task.device == lane]:
            for part in self.retire(number).by_step:
                self.again[part.step.name].append(part.rows)
        self._room.discard(lane)

    def left(self, lanes: Iterable[str]) -> list[str]:
        """Those that are not lost."""
        return [lane for lane in lanes if lane not in self.lost]
