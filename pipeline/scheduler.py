"""What to do next: a pure state machine, event in, instructions out.

The Scheduler knows row ids, sizes and cost hints, never payloads. It forms batches from whatever rows
are ready, whichever document, question or round they come from; it prefers the deepest step with a full
batch, and runs a part-filled one only when nothing that could fill it is moving. A batch that fails is
halved until the bad row stands alone. Values that wait between steps are kept under a window of bytes.
Policies (`pipeline.policy`) may say otherwise: how rows wait, how large batches are, which lanes help.
Nothing here reads a clock, a random number or a file: the same events give the same instructions.
"""

from __future__ import annotations

from functools import partial

from pipeline.board import QUEUED, Board
from pipeline.events import Done, Event, Failed, Instruction, Lost, Start, Submit
from pipeline.holds import Longest, items_of
from pipeline.merging import Merging
from pipeline.plan import Plan
from pipeline.policies import POLICIES
from pipeline.policy import Lanes, Queue, Queues, Sizes, build
from pipeline.program import Program
from pipeline.tasks import Batch, Task, bad_rows, left_of, made_by, merged, submit, task_of
from pipeline.tracking import Instance, Tracker
from pipeline.wiring import owned

GONE = ("worker died", "the last device that could run this step is gone; run again to finish what is left")


class Scheduler:
    """Decides a run. `handle(event)` returns what to do; `finished` says when nothing is left to do.

    With `ordered`, inputs leave in the order in which they came, else as they finish. Raises PlanError for
    policies that nobody knows or that contradict each other.
    """

    def __init__(self, program: Program, plan: Plan, ordered: bool = True) -> None:
        self._plan = plan
        policies = build(plan.policies, POLICIES, plan.jobs)
        self._queues = [p for p in policies if isinstance(p, Queues)]
        self._sizes = [p for p in policies if isinstance(p, Sizes)]
        self._helpers = [p for p in policies if isinstance(p, Lanes)]
        self._rows = Tracker(program, ordered, self._queue)
        self.board = Board(program, plan.machine, self._rows)
        self._steps = {s.name: s for s in program.steps}
        self._deepest_first = tuple(reversed(program.steps))
        self._own = {s.name: {e.port for e in s.edges if owned(s, e)} for s in program.steps}
        self._merging = Merging(program, plan, policies)
        self._numbers = 0
        self._place()

    @property
    def finished(self) -> bool:
        """Whether every input has left, as an answer or as an error."""
        return self._rows.outlets.empty and not self.board.tasks

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
        else:
            self._lose(event)
        self._dispatch()
        said: list[Instruction] = [s for s in self._rows.said if isinstance(s, Submit)]
        said += [s for s in self._rows.said if not isinstance(s, Submit)]
        self._rows.said.clear()
        return said

    def stall(self, lane: str) -> tuple[str, str]:
        """Why a lane without tasks has none: reason and step, as in `timeline.Stall`."""
        steps = self.board.steps_of[lane]
        for step in steps:
            if self.board.has_rows(step):
                return ("window" if self._is_full else "filling"), step
        for step in steps:
            above = self.board.source(step) or self.board.returning(step)
            if above is not None:
                return "starved", above
        return "done", ""

    # events

    def _start(self, event: Start) -> None:
        items = {}
        for name, meta in event.sources:
            self._rows.holds.add(name, meta.nbytes, len(meta.ids))
            items[name] = items_of(name, meta)
        self._rows.start({name: meta.ids for name, meta in event.sources}, items)
        for name, _ in event.sources:
            self._rows.holds.drop(name)

    def _done(self, event: Done) -> None:
        task = self.board.retire(event.task)
        self._rows.holds.add(event.task, event.meta.nbytes, len(event.meta.ids))
        for part, at, items, nbytes in made_by(task, event):
            self.board.weights.see(part.step.name, len(part.rows), part.read, nbytes)
            self._rows.made(part.step.name, at, items)
            self._rows.settled(part.step, part.rows, good=True)
        self._rows.holds.drop(event.task)

    def _failed(self, event: Failed) -> None:
        task, fault = self.board.retire(event.task), event.fault
        bad = bad_rows(task, fault)
        for place, (category, message) in bad.items():
            self._rows.failed(task.step.name, place, category, message, fault.detail)
        self._rows.settled(task.step, bad, good=False)
        for step, rows in left_of(task, bad):
            self.board.again[step].append(rows)

    def _lose(self, event: Lost) -> None:
        self.board.lose(event.device)
        self._place()

    # decisions

    def _queue(self, step: str) -> Queue[Instance]:
        return self._queues[0].queue(step) if self._queues else Longest()

    def _place(self) -> None:
        """Who may run what, as planned, on the lanes that are left."""
        self._left = {s: self.board.left(p.devices) for s, p in self._plan.placements.items()}
        for lane in self._plan.machine.names:
            found = (s.name for s in self._deepest_first if lane in self._left[s.name])
            self.board.steps_of[lane] = tuple(found)
        self._stranded = [self._steps[s] for s, lanes in self._left.items() if not lanes]

    def _dispatch(self) -> None:
        """Fill the lanes: each with a task before any gets a second."""
        while self._stranded and self._abandon():
            pass
        if not any(map(self.board.has_rows, self._steps)):
            return
        steps_of = self._helped() if self._helpers else self.board.steps_of
        for depth in range(1, QUEUED + 1):
            refused: set[tuple[str, ...]] = set()  # lanes alike are not asked again
            for lane in self.board.with_room():
                steps = steps_of[lane]
                while steps not in refused and self.board.is_free(lane, depth):
                    crew = self._choose(lane, steps, depth)
                    if not crew:
                        refused |= {steps} if not self._sizes else set()
                        break
                    self._submit(crew, lane)
                    refused.clear()

    def _helped(self) -> dict[str, tuple[str, ...]]:
        """Who may run what, where policies open lanes or close them."""
        at: dict[str, set[str]] = {}
        for s in self._deepest_first:
            planned = set(self._plan.placements[s.name].devices)
            said = [set(policy.lanes(s.name, self.board)) for policy in self._helpers]
            wanted = self.board.left(planned.intersection(*said) | set().union(*said) - planned)
            at[s.name] = set(wanted or self.board.left(planned))  # a policy may not know of lost lanes
        return {lane: tuple(s for s in at if lane in at[s]) for lane in self._plan.machine.names}

    def _choose(self, lane: str, steps: tuple[str, ...], depth: int) -> tuple[str, ...]:
        """The steps of the next batch on a lane: the deepest that has enough rows, and who joins it.

        Nobody, to wait. Over the window nobody joins: who runs then is chosen one by one.
        """
        here = others = [s for s in steps if self.board.has_rows(s)]
        if here and self._is_full:
            if self._drains(here[0]):
                return (here[0],)
            here, others = [s for s in here if self.board.weights.is_light(s)], []
        crews = self._merging.crews(here, others, partial(self._size, lane=lane), self.board)
        worth = (c for c in crews if self._is_worth(c, lane))
        best = next(worth, ())
        if depth > 1 and not any(self._is_plenty(c, lane) for c in (best, *worth) if c):
            return ()
        return best

    @property
    def _is_full(self) -> bool:
        """Whether too many bytes wait, or will once the tasks under way are done.

        Then only steps run that lie behind all else, or that make little of what they read. So live bytes
        exceed the window by at most one batch and by what each step behind it makes of it, by an eighth of
        what light steps read, and by batches under way of which nothing was known when they began.
        """
        return self._rows.holds.live_bytes + self.board.promised > self._plan.window

    def _drains(self, step: str) -> bool:
        """Whether a step is the deepest that has rows, on any lane, and lies behind all work in flight."""
        for s in self._deepest_first:
            if s.name == step:
                return not self.board.flying(step)
            if self.board.flying(s.name) or self.board.has_rows(s.name):
                return False
        return False

    def _is_worth(self, crew: tuple[str, ...], lane: str) -> bool:
        """Whether a batch should run now: full, or nothing that could fill it is moving."""
        step = crew[0]
        if self.board.again[step] or self.board.waiting(*crew) >= self._size(step, lane):
            return True
        return not self.board.coming(step) and (self._is_full or not self._merging.near(step, self.board))

    def _is_plenty(self, crew: tuple[str, ...], lane: str) -> bool:
        """Whether a batch may wait behind another: no other lane could take it sooner."""
        lanes = len(self._left[crew[0]])
        return lanes == 1 or self.board.waiting(*crew) > self._size(crew[0], lane) * lanes

    def _size(self, step: str, lane: str) -> int:
        size = self._plan.placements[step].batch
        for policy in self._sizes:
            size = policy.size(step, lane, size, self.board)
        return size

    def _submit(self, crew: tuple[str, ...], lane: str) -> None:
        again, most = self.board.again[crew[0]], self._size(crew[0], lane)
        if again:
            found = [(crew[0], again.pop())]
        else:
            shares = self._merging.shares(crew, most, self.board)
            found = [(s, dict(self._rows.ready[s].take(share, lane))) for s, share in shares]
        task = merged([self._task(s, lane, rows) for s, rows in found])
        self._numbers += 1
        self.board.begin(self._numbers, task)
        self._rows.said.append(submit(self._numbers, task))

    def _task(self, step: str, lane: str, rows: Batch) -> Task:
        promised = self.board.weights.expected(step, len(rows))
        return task_of(self._steps[step], lane, rows, self._own[step], self._rows.holds.weigh, promised)

    def _abandon(self) -> bool:
        """Fail what no lane can run any more; whether there was anything."""
        found = False
        for step in self._stranded:
            batches = [*self.board.again[step.name], dict(self._rows.ready[step.name].take(1 << 60, ""))]
            self.board.again[step.name].clear()
            for rows in (b for b in batches if b):
                found = True
                for place in rows:
                    self._rows.failed(step.name, place, *GONE)
                self._rows.settled(step, rows, good=False)
        return found
