"""Which blocks leave a memory that is full, and where they go. Pure.

What is needed last goes first: with next uses that are known, no order loads less for blocks of one size
(Belady, 1966). The graph knows them. Before that comes what costs no waiting: LIME (Sun et al., 2025,
arXiv 2512.21835) demotes what reloads hidden in other work; the rank by seconds of stall is ours. Where it
goes is Aqua's order (Vijaya Kumar et al., ASPLOS 2025, arXiv 2407.21255): a peer device with spare room,
pinned host memory, disk; that is, the fastest. For several sizes the best choice is NP-hard, this one greedy.

When not: a block with no use left is freed, not demoted; one that is cheaper to compute again than to
reload should be dropped; and a memory that is always over its high mark wants smaller batches, not a tier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import PlanError

__all__ = ["Resident", "Tier", "Watermarks", "choose", "demote"]

Key = TypeVar("Key", bound=Hashable)


class Resident(NamedTuple, Generic[Key]):
    """A block that is here. `due`: the step of its next use; one whose next use nobody knows has 0.

    `reload_seconds`: how long it takes to bring it back from where it would go.
    """

    key: Key
    nbytes: int
    due: int
    reload_seconds: float = 0.0

    def rank(self, now: int, step_seconds: float) -> tuple[float, int]:
        """Seconds its next use would wait, if its reload began now; then how soon it is. Least leaves."""
        hidden = max(self.due - now, 0) * step_seconds
        return max(0.0, self.reload_seconds - hidden), -self.due


@dataclass(frozen=True, slots=True)
class Tier:
    """A place for blocks: `room` bytes are free there, `bandwidth` bytes/s lead there."""

    name: str
    room: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Above `high` bytes blocks leave until `low` are left; between the two nothing moves.

    The gap is the hysteresis: without it every new block would push one out. Raises PlanError unless
    0 <= low <= high.
    """

    high: int
    low: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise PlanError(f"watermarks are 0 <= low <= high, found low {self.low} and high {self.high}")

    def excess(self, used: int) -> int:
        """Bytes that must leave now."""
        return used - self.low if used > self.high else 0


def demote(
    blocks: Sequence[Resident[Key]], need: int, now: int, step_seconds: float = 1.0
) -> tuple[Key, ...]:
    """The blocks that leave, so that at least `need` bytes become free; all of them where that is too little.

    Least stall first, then latest next use; of equal ones the smallest that covers what is still needed,
    else the largest. None of them could stay: what later ones made superfluous is kept. `now` is the step
    that runs, and a step takes `step_seconds`. O(N log N) for N blocks.
    """
    chosen: list[Resident[Key]] = []
    missing = need
    ranked = sorted((*block.rank(now, step_seconds), block.nbytes, i) for i, block in enumerate(blocks))
    for _, equals in groupby(ranked, key=lambda entry: entry[:2]):
        for block in _fitting([blocks[i] for *_, i in equals], missing):
            chosen.append(block)
            missing -= block.nbytes
    return tuple(block.key for block in _needed(chosen, need))


def choose(tiers: Sequence[Tier], nbytes: int) -> Tier:
    """The fastest tier that has room for a block, the first of equals.

    Raises MemoryError that says how much room each has.
    """
    fitting = [tier for tier in tiers if tier.room >= nbytes]
    if fitting:
        return max(fitting, key=lambda tier: tier.bandwidth)
    rooms = ", ".join(f"{max(tier.room, 0)} bytes on {tier.name}" for tier in tiers) or "none at all"
    raise MemoryError(
        f"a value of {nbytes} bytes has to leave a memory that is full, and there is no room for it: "
        f"{rooms}; free some, or use smaller batches"
    )


def _fitting(equals: list[Resident[Key]], need: int) -> Iterable[Resident[Key]]:
    """Blocks of equal rank, sorted by size, until `need` bytes are there."""
    while need > 0 and equals:
        place = bisect_left(equals, need, key=lambda block: block.nbytes)
        block = equals.pop(min(place, len(equals) - 1))
        need -= block.nbytes
        yield block


def _needed(chosen: Sequence[Resident[Key]], need: int) -> Sequence[Resident[Key]]:
    """Without those that are not needed; the one that was chosen last is the first to stay."""
    spare = sum(block.nbytes for block in chosen) - need
    left = []
    for block in reversed(chosen):
        if block.nbytes <= spare:
            spare -= block.nbytes
        else:
            left.append(block)
    return left[::-1]
