"""Calls of several steps in one: who may share a batch, and what of it is whose.

Steps hold equal stages where branches, loops or jobs (see `pipeline.beside`) ask the same model. Where a
policy says so, a task carries waiting rows of several of them: its rows lie one step after another, and
what comes of it is theirs by position, since branches share ids. Such a task counts as one of each step
that came to its end at the same time; one that fails is taken apart by step, so that nobody pays for
another's bad row.

Only one-to-one stages merge whose rows are all their own (a shared index may differ from step to step),
at the same depth of ids, on the same lanes. Ours; for the idea see `pipeline.policies.coalesce`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from pipeline.board import Board
from pipeline.errors import RowId
from pipeline.events import Meta, Submit
from pipeline.plan import Plan
from pipeline.policy import Merges, Policy
from pipeline.program import Program
from pipeline.stage import expands, gathers
from pipeline.timeline import Counts, Span
from pipeline.wiring import owned

# who


class Merging:
    """Who shares a batch with whom. Without a policy that merges, nobody does."""

    def __init__(self, program: Program, plan: Plan, policies: Iterable[Policy]) -> None:
        self._policy = next((p for p in policies if isinstance(p, Merges)), None)
        self._kin = kin(program, plan) if self._policy else {}
        order = {s.name: i for i, s in enumerate(program.steps)}
        feeds = {s.name: [e.producer for e in s.edges if e.producer in order] for s in program.steps}
        self._near = {
            step: [(f, order[f] < order[step]) for other in others for f in feeds[other]]
            for step, others in self._kin.items()
        }

    def crews(
        self, steps: Sequence[str], here: Sequence[str], size: Callable[[str], int], board: Board
    ) -> Iterator[tuple[str, ...]]:
        """Each of the steps, with who of those that are `here` may join its next batch."""
        if not self._kin:
            return zip(steps)
        return (self._crew(step, here, size, board) for step in steps)

    def _crew(
        self, step: str, here: Sequence[str], size: Callable[[str], int], board: Board
    ) -> tuple[str, ...]:
        """Nobody's own limit is passed, and a batch that must run once more goes alone."""
        others = self._kin.get(step)
        if not others or board.again[step]:
            return (step,)
        most = size(step)
        return (step, *(o for o in others if o in here and board.waiting(o) and size(o) >= most))

    def near(self, step: str, board: Board) -> bool:
        """Whether rows that could join the step's are one step away.

        Of steps that only wait, the earlier ones count: else two might wait for each other. So it is never
        waited for longer than a batch takes, or than it takes to fill one.
        """
        return any(
            board.flying(feeder) or (earlier and board.has_rows(feeder))
            for feeder, earlier in self._near.get(step, ())
        )

    def shares(self, crew: tuple[str, ...], most: int, board: Board) -> list[tuple[str, int]]:
        """Who has rows in a batch of at most `most`, and how many."""
        if self._policy is None or len(crew) == 1:
            return [(crew[0], most)]
        rows = self._policy.shares([board.waiting(step) for step in crew], most)
        return [(step, share) for step, share in zip(crew, rows, strict=True) if share]


def kin(program: Program, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Of each step that may share its calls, the others; the deepest first."""
    alike: dict[object, list[str]] = defaultdict(list)
    for s in reversed(program.steps):
        single = s.depth == 0  # the one row of the corpus keeps its own type, as in any batch of one
        if (
            not (single or expands(s.stage))
            and gathers(s.stage) is None
            and all(owned(s, e) for e in s.edges)
        ):
            alike[s.stage, s.depth, plan.placements[s.name].devices].append(s.name)
    return {
        name: tuple(n for n in names if n != name)
        for names in alike.values()
        if len(names) > 1
        for name in names
    }


# in a report


def shares(task: Submit) -> list[tuple[str, slice]]:
    """The steps of a task, each with its part of what came of it."""
    if not task.shares:
        return [(task.step, slice(None))]
    ends = [sum(rows for _, rows in task.shares[: i + 1]) for i in range(len(task.shares))]
    return [(step, slice(end - rows, end)) for (step, rows), end in zip(task.shares, ends, strict=True)]


def alone(task: Submit) -> list[Submit]:
    """A merged task as each of its steps would have asked for it, with the ports of all."""
    return [replace(task, step=step, owed=task.owed[at], shares=()) for step, at in shares(task)]


def together(made: Sequence[Meta]) -> Meta:
    """What several steps made, as one value. A row of a step that says nothing of it weighs 0 and stays."""
    if len(made) == 1:
        return made[0]
    ids: tuple[RowId, ...] = tuple(i for m in made for i in m.ids)
    lengths = tuple(x for m in made for x in m.lengths or (0,) * len(m.ids))
    done = tuple(x for m in made for x in m.done or (False,) * len(m.ids))
    return Meta(ids, sum(m.nbytes for m in made), lengths, done)


def spans(task: Submit, span: Span) -> list[Span]:
    """The span of a task, shared out among its steps by rows, one after another; the first has opened it."""
    if not task.shares:
        return [span]
    found, start, work = [], span.start, span.seconds
    for i, (step, rows) in enumerate(task.shares):
        part, opening = rows / span.rows, 0.0 if i else span.opening
        end = start + opening + work * part
        found.append(
            replace(
                span,
                step=step,
                start=start,
                end=end,
                rows=rows,
                length=span.length * part,
                made=min(rows, span.made),
                nbytes=span.nbytes * part,
                opening=opening,
                preparing=span.preparing * part,
                handing=span.handing * part,
            )
        )
        start = end
    return found


def moved(task: Submit, counts: Counts) -> list[tuple[str, Counts]]:
    """The bytes that a task moved, shared out among its steps by rows; a float holds of each."""
    if not task.shares:
        return [(task.step, counts)]
    found = []
    for step, at in shares(task):
        part = {
            name: total * at.stop // len(task.owed) - total * at.start // len(task.owed)
            for name, total in asdict(counts).items()
            if isinstance(total, int)
        }
        found.append((step, replace(counts, **part)))
    return found
