"""What a policy may decide, and what it may know: the joints of the Scheduler.

A policy is a small class in `pipeline/policies/` with any of four methods, constructed once per run from
the lanes and what each step costs on them; several are combined with "+". All are pure state machines:
the same calls give the same answers, and none reads a clock, a random number or a file.

    queue(step) -> Queue              how the rows of a step wait, and which of them share a batch
    size(step, lane, batch, view)     how many rows the next batch takes, at most `batch`
    lanes(step, view) -> names        lanes beyond the planned ones that may run a step now; or fewer
    shares(waiting, batch) -> rows    steps of equal stages may share a batch: so many rows of each
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from pipeline.errors import PlanError, RowId
from pipeline.lookup import Table, find
from pipeline.machine import Device

What = TypeVar("What")


class Waiting(NamedTuple, Generic[What]):
    """A row that can run. `length`: its cost hint (0: none); `root`: the input it belongs to, which a fair
    policy serves in turn; `key`: what it would like to share a lane with (a document, a prefix), or None.
    """

    what: What
    length: int = 0
    root: RowId = ()
    key: Hashable = None


class Queue(Protocol[What]):
    """The rows of one step that can run. What is added is taken once, by some lane."""

    def __len__(self) -> int:
        """Rows waiting."""

    def add(self, row: Waiting[What]) -> None:
        """One more row."""

    def take(self, most: int, lane: str) -> list[What]:
        """A batch of 1 to `most` rows for `lane`; none only where none wait. They wait no more."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What a policy knows of a lane and a step on it.

    `seconds(rows)` is predicted as `fixed + (per_row + link) * rows` (0, 0, 0 where nothing is known), after
    `opening` seconds once. `per_row` is work; `link`: seconds in which the lane waits for a row's inputs to
    come over links. `bound` is that of a full batch ("compute", "memory", "scalar", "overhead"; "" unknown).
    `bend`: the share of `per_row` that grows with the square of a row's length, as attention does, where the
    rows of a batch are padded to the longest; the rest grows with the length.
    """

    device: Device
    fixed: float = 0.0
    per_row: float = 0.0
    bound: str = ""
    opening: float = 0.0
    link: float = 0.0
    bend: float = 0.0

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    def seconds(self, rows: int) -> float:
        """Predicted time of a batch, its inputs' way to the lane included."""
        return self.fixed + (self.per_row + self.link) * rows


@dataclass(frozen=True, slots=True)
class Job:
    """A step as policies know it: where it is planned, in what batches, and what it costs on every lane.

    `lanes` has all lanes that could run it, planned or not; `transfer`: seconds to move a row from one
    planned lane to another: the bytes of what the step reads of it alone (its own ports, not what rows share)
    over the slowest link between them, a full batch at a time; 0 where they work in one memory, and where
    nobody estimated it. What a lane must open before its first batch is `Lane.opening`. `loops`: how many
    loops it is in.
    """

    name: str
    batch: int
    planned: tuple[str, ...]
    lanes: Mapping[str, Lane]
    transfer: float = 0.0
    loops: int = 0


class View(Protocol):
    """What the Scheduler shows of a run under way."""

    def waiting(self, step: str) -> int:
        """Rows of a step that can run now."""

    def coming(self, step: str) -> bool:
        """Whether anything moves that could bring it more rows."""

    def flying(self, step: str) -> int:
        """Batches of the step under way."""

    def busy(self, lane: str) -> int:
        """Batches under way or queued on a lane."""

    def idle(self, lane: str) -> bool:
        """Whether a lane has nothing under way and nothing of its own that it could run now."""

    def opened(self, step: str, lane: str) -> bool:
        """Whether the lane has run the step's stage, so that weights and index are there."""


@runtime_checkable
class Queues(Protocol):
    """A policy that says how rows wait."""

    def queue(self, step: str) -> Queue[Any]:
        """The queue of a step, empty."""


@runtime_checkable
class Sizes(Protocol):
    """A policy that says how large batches are."""

    def size(self, step: str, lane: str, batch: int, view: View) -> int:
        """Rows of the next batch of `step` on `lane`, 1 to `batch`."""


@runtime_checkable
class Lanes(Protocol):
    """A policy that says which lanes may run a step now."""

    def lanes(self, step: str, view: View) -> Sequence[str]:
        """Names of lanes, the planned ones among them as it wishes; never none for ever."""


@runtime_checkable
class Merges(Protocol):
    """A policy that lets steps of equal stages share batches (see `pipeline.merging`)."""

    def shares(self, waiting: Sequence[int], most: int) -> Sequence[int]:
        """Rows that each step gets of a batch of at most `most`; the first has some."""


Policy = Queues | Sizes | Lanes | Merges


def build(names: Iterable[str], table: Table, jobs: Sequence[Job]) -> tuple[Policy, ...]:
    """The policies called so, each made with `Class(jobs)`.

    Raises PlanError for a name that is not in the table, and for two that both say how rows wait.
    """
    made: list[Policy] = []
    queued = ""
    for name in names:
        try:
            policy = find(name, table, "policy")(jobs)
        except LookupError as error:
            raise PlanError(str(error)) from None
        if isinstance(policy, Queues):
            if queued:
                raise PlanError(f"policies {queued!r} and {name!r} both say how rows wait: name one")
            queued = name
        made.append(policy)
    return tuple(made)
