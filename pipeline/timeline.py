"""What happened, predicted or measured: spans of work, and why lanes stood still between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.errors import RowId


@dataclass(slots=True)
class Counts:
    """Bytes that readers were given without a copy, and those that were written or read anew.

    `saved`: bytes that did not travel since vectors went as int8; `error`: the most that an element of them
    is off, as a part of the largest of its row.
    """

    shared: int = 0
    copied: int = 0
    saved: int = 0
    error: float = 0.0

    def add(self, other: Counts) -> None:
        """Count more."""
        self.shared += other.shared
        self.copied += other.copied
        self.saved += other.saved
        self.error = max(self.error, other.error)


@dataclass(frozen=True, slots=True)
class Times:
    """A batch in monotonic seconds of its worker, from `start` to `end` on the lane.

    `opening`: those between that opened the stage; `length`: see `stage.length_of`; `preparing`,
    `handing`: seconds for its inputs and for handing on its value, while other batches may have the lane;
    `moved`: the bytes of both.
    """

    start: float
    end: float
    opening: float = 0.0
    length: float = 0.0
    preparing: float = 0.0
    handing: float = 0.0
    moved: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class Span:
    """One batch of one step on one device; times in seconds from the start of the run.

    `length`: sum of the rows' cost hints; `made`: rows that came of it; `nbytes`: what they weigh;
    `opening`: seconds of the span that went into opening the stage. `preparing`, `handing`: seconds before
    and after the span in which its inputs were put together and its value was handed on; the lane may have
    run other batches meanwhile.
    """

    step: str
    device: str
    start: float
    end: float
    rows: int
    length: float = 0.0
    made: int = 0
    nbytes: float = 0.0
    opening: float = 0.0
    preparing: float = 0.0
    handing: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the batch itself took."""
        return self.end - self.start - self.opening


REASONS = ("starved", "filling", "window", "link", "done")


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which a lane did nothing, and why.

    `reason`: "starved" (no rows for it; `step` is the step they come from), "filling" (`step` has rows,
    but waits for a full batch), "window" (rows wait, but too many bytes do already: `step` must drain
    first), "link" (rows of `step` are on their way), "done" (nothing is left for it).
    """

    device: str
    start: float
    end: float
    reason: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run. `seconds`: from its start to its last result; spans in the order in which they ended."""

    seconds: float
    spans: tuple[Span, ...]
    stalls: tuple[Stall, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Every lane that appears, sorted."""
        return tuple(sorted({s.device for s in self.spans} | {s.device for s in self.stalls}))

    def busy(self, device: str) -> float:
        """Seconds in which a lane worked."""
        return sum(s.end - s.start for s in self.spans if s.device == device)


@dataclass(frozen=True, slots=True)
class Total:
    """All spans of a step: batches, rows, busy seconds, and those beside them."""

    step: str
    batches: int
    rows: int
    seconds: float
    preparing: float = 0.0
    handing: float = 0.0


def totals(spans: Iterable[Span]) -> tuple[Total, ...]:
    """The sums by step, in order of first appearance."""
    found: dict[str, Total] = {}
    for s in spans:
        t = found.get(s.step, Total(s.step, 0, 0, 0.0))
        seconds = (t.seconds + s.end - s.start, t.preparing + s.preparing, t.handing + s.handing)
        found[s.step] = Total(s.step, t.batches + 1, t.rows + s.rows, *seconds)
    return tuple(found.values())


@dataclass(slots=True)
class Tally:
    """What a step has made so far: rows, rows that had any children, and the distinct inputs behind them."""

    rows: int = 0
    parents: int = 0
    roots: set[RowId] = field(default_factory=set)
    counted: Counter[str] = field(default_factory=Counter)
    """The sums of `Rows.counted`."""

    def add(self, ids: tuple[RowId, ...], counted: Iterable[Mapping[str, int]] = ()) -> None:
        """Count a value of an expanding step, whose parents come in one batch each."""
        for row in counted:
            self.counted.update(row)
        self.rows += len(ids)
        self.parents += len({i[:-1] for i in ids})
        self.roots |= {i[:1] for i in ids}
