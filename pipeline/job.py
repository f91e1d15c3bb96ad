"""A batch job: documents and questions in, answers with citations out, in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline import stored
from pipeline.errors import RidgewayError
from pipeline.run_folder import RunFolder, Summary, Task, Work
from pipeline.values import Answers, Documents, Queries, Rows

if TYPE_CHECKING:
    from pipeline.executor import Run
    from pipeline.planner import Planned

__all__ = ["Listen", "Summary", "Task", "Wishes", "run_job"]

Listen = Callable[["Run"], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a job is to run. `policies`: what the Scheduler follows, else what the graph says; `deadline`:
    seconds in which it must be done in the worst case, else it does not begin; `apart`: each lane in a
    process of its own; `lossy`: vectors may travel as int8 between hosts; `machine`: a name
    or file that declares the lanes, see `pipeline.declared`.
    """

    policies: tuple[str, ...] = ()
    deadline: float | None = None
    apart: bool = False
    lossy: bool = False
    machine: str = ""


PLAIN = Wishes()


def run_job(
    task: Task, listen: Listen = lambda _: None, client: Any = None, wishes: Wishes = PLAIN
) -> Summary:
    """Do the job; writes the run folder as it goes. Raises RidgewayError before any work."""
    work = _prepare(task)
    planned = _plan(work, client, wishes)  # what cannot run ends here, before earlier results go
    for folder in (task.out, task.index):
        folder.mkdir(parents=True, exist_ok=True)
    writer = RunFolder(task, work)
    again = work.known.failures if work.known and task.documents is not None else ()
    with writer.answers, writer.errors:
        for failure in (*task.failures, *again, *(task.questions.failures if task.questions else ())):
            writer.fail(failure)
        if work.inputs:
            writer.follow(listen, client, planned)
    return writer.finish()


def _plan(work: Work, client: Any, wishes: Wishes) -> Planned | None:
    from pipeline.buffers.device import seen
    from pipeline.declared import lanes
    from pipeline.handover import settled
    from pipeline.planning import plan_for
    from pipeline.what_if import check_deadline

    if not work.inputs:
        return None
    machine = lanes(client, wishes.machine)
    chunks = float(work.known.counts["chunks"]) if work.known else 0.0
    planned = plan_for(work.graph, work.inputs, machine, wishes.policies, chunks=chunks)
    if wishes.deadline is not None:
        check_deadline(planned, wishes.deadline)
    plan = replace(planned.plan, lossy=wishes.lossy)
    gpus, apart = (seen(plan.machine.names), wishes.apart) if client is None else (None, True)
    return replace(planned, plan=settled(planned.estimates.program, plan, apart, gpus))


def _prepare(task: Task) -> Work:
    graph = task.graph if task.questions is not None else stored.indexing(task.graph)
    if task.questions is not None and Answers not in {graph.type_of(ref) for ref in graph.outputs.values()}:
        raise RidgewayError("this pipeline has no output of type Answers, so it answers no questions")
    known = None if task.reindex else stored.load(task.index)
    hashes = stored.content(task.documents) if task.documents is not None else {}
    if known is None and task.documents is None:
        raise RidgewayError(f"no finished index in {str(task.index)!r}: give the documents with --documents")
    given: dict[str, Rows] = {}
    if known is not None:
        known.check(task.index, task.graph, hashes if task.documents is not None else None)
        if task.questions is None:
            return Work(graph, {}, known, hashes)
        graph, given = stored.without_indexing(graph)
    return Work(
        graph, {name: _input(task, name, kind, given) for name, kind in graph.inputs.items()}, known, hashes
    )


def _input(task: Task, name: str, kind: type[Rows], given: Mapping[str, Rows]) -> Rows:
    rows = given.get(name)
    if kind is Documents:
        rows = task.documents
    elif kind is Queries and task.questions is not None:
        rows = task.questions.queries()
    if rows is None:
        raise RidgewayError(
            f"the pipeline's input {name!r} takes {kind.__name__}, which this job does not have"
        )
    return rows
