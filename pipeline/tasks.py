"""A batch under way: what it reads, whose its rows are, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.apply import Fault
from pipeline.events import Done, Part, Submit
from pipeline.holds import Item, items_of, parts_of
from pipeline.program import Step
from pipeline.quiet import Place
from pipeline.stage import expands

Batch = dict[Place, dict[str, tuple[Item, ...]]]
"""Instances of a step: place to port to the rows it reads."""


@dataclass(frozen=True, slots=True)
class Task:
    """A batch under way. `read`: bytes of the rows that are its own; `promised`: bytes it may become.

    `ports`: what it reads; `joined`: batches of other steps that share the call (see `pipeline.merging`),
    whose rows lie behind its own.
    """

    step: Step
    device: str
    rows: Batch
    read: int = 0
    promised: int = 0
    ports: tuple[tuple[str, tuple[Part, ...]], ...] = ()
    joined: tuple[Task, ...] = ()

    @property
    def by_step(self) -> tuple[Task, ...]:
        """The batch of each step in it."""
        return (self, *self.joined)


def task_of(
    step: Step, lane: str, rows: Batch, own: Container[str], weigh: Callable[[Part], int], promised: int
) -> Task:
    """A batch of one step, with what it reads. `own`: ports of which it shares no rows."""
    ports = tuple((e.port, _parts(rows, e.port, e.port in own)) for e in step.edges)
    read = sum(weigh(part) for port, found in ports if port in own for part in found)
    return Task(step, lane, rows, read, promised, ports)


def _parts(rows: Batch, port: str, own: bool) -> tuple[Part, ...]:
    """What a batch reads at a port; rows that its instances share come once."""
    items = [i for row in rows.values() for i in row[port]]
    return parts_of(items if own else dict.fromkeys(items))


def merged(tasks: Sequence[Task]) -> Task:
    """Tasks of several steps as one."""
    return tasks[0] if len(tasks) == 1 else replace(tasks[0], joined=tuple(tasks[1:]))


def submit(number: int, task: Task) -> Submit:
    """The instruction to run a task: at each port the rows of one step after those of another."""
    first = Submit(number, task.step.name, task.device, task.ports, tuple(p[1] for p in task.rows))
    if not task.joined:
        return first
    joined = [dict(t.ports) for t in task.joined]
    ports = tuple((port, (*parts, *(p for j in joined for p in j[port]))) for port, parts in task.ports)
    owed = tuple(place[1] for t in task.by_step for place in t.rows)
    return replace(
        first, ports=ports, owed=owed, shares=tuple((t.step.name, len(t.rows)) for t in task.by_step)
    )


def made_by(task: Task, event: Done) -> list[tuple[Task, list[Place], list[Item], int]]:
    """What each step of a task has made: where, which rows, and how many bytes, all rows alike."""
    items, nbytes = items_of(event.task, event.meta), event.meta.nbytes
    if expands(task.step.stage):
        rounds = {row: at for at, row in task.rows}
        return [(task, [(rounds[i[:-1]], i) for i in event.meta.ids], items, nbytes)]
    found, start = [], 0
    for part in task.by_step:
        end = start + len(part.rows)
        weight = nbytes * len(part.rows) // len(items) if task.joined else nbytes
        found.append((part, list(part.rows), items[start:end] if task.joined else items, weight))
        start = end
    return found


def bad_rows(task: Task, fault: Fault) -> dict[Place, tuple[str, str]]:
    """The rows of a batch that a fault condemns, with category and message: those it names, or the only one.

    Where steps share the call nobody can tell yet whose row it was.
    """
    if task.joined:
        return {}
    named = fault.rows or {}
    bad = {place: named[place[1]] for place in task.rows if place[1] in named}
    return bad or (dict.fromkeys(task.rows, (fault.category, fault.message)) if len(task.rows) == 1 else {})


def left_of(task: Task, bad: Container[Place]) -> Iterator[tuple[str, Batch]]:
    """What is left of a batch that failed, by step, so that the next try finds out more.

    Each step's rows on their own; else all but the bad ones; else either half.
    """
    if task.joined:
        yield from ((part.step.name, part.rows) for part in task.by_step)
        return
    left = [p for p in task.rows if p not in bad]
    cut = len(left) if len(left) < len(task.rows) else len(left) // 2
    for places in (left[:cut], left[cut:]):
        if places:
            yield task.step.name, {p: task.rows[p] for p in places}
