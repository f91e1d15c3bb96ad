"""Which sequence makes room when the memory for KV caches is full: copied out, or computed again. Pure.

When not: where evicting cached prefixes is enough (`Radix.evict`), which costs nobody who is under way; and
with a single sequence, whose memory the admission check must have reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import PlanError

__all__ = ["Prefill", "Running", "Swap", "Victim", "preempt"]

Key = TypeVar("Key", bound=Hashable)
Prefill = Callable[[int, int], float]
"""Seconds to prefill so many tokens behind a context of so many."""


class Running(NamedTuple, Generic[Key]):
    """A sequence under way. `written`: tokens in its own slots, behind `context` tokens that it shares;
    `held`: tokens that those slots take, and give back."""

    key: Key
    arrived: float
    written: int
    context: int
    held: int


class Victim(NamedTuple, Generic[Key]):
    """A sequence that makes room. `swap`: it is copied out, else computed again; `seconds`: of that."""

    key: Key
    swap: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Swap:
    """A place to copy caches to: `room` bytes are free there, `bandwidth` bytes/s lead there and back.

    Without one (room 0, as where the arena itself is host memory) everything is computed again.
    Raises PlanError for a negative room, or no bandwidth.
    """

    room: int
    bandwidth: float

    def __post_init__(self) -> None:
        if self.room < 0 or self.bandwidth <= 0:
            raise PlanError(f"a swap has room >= 0 and bandwidth > 0, found {self.room} and {self.bandwidth}")


def preempt(
    running: Iterable[Running[Key]], wanted: int, token_bytes: int, swap: Swap, prefill: Prefill
) -> tuple[Victim[Key], ...]:
    """Who makes room for `wanted` tokens: the latest first, never the earliest, which so always gets done.

    vLLM's order (Kwon et al., SOSP 2023, arXiv 2309.06180, section 4.5: all or nothing, the latest first);
    its two ways, weighed as in section 7.3: out and in, 2 * bytes / bandwidth, against a prefill of what is
    written. All but the earliest where that is too little. O(R log R).
    """
    found: list[Victim[Key]] = []
    room = swap.room
    for one in sorted(running, key=lambda r: r.arrived)[:0:-1]:
        if wanted <= 0:
            break
        nbytes = one.written * token_bytes
        copying, again = 2 * nbytes / swap.bandwidth, prefill(one.written, one.context)
        out = nbytes <= room and copying < again
        room -= nbytes * out
        wanted -= one.held
        found.append(Victim(one.key, out, copying if out else again))
    return tuple(found)
