"""How long the KV of a question stays while it is out for retrieval, and who goes first then. Pure.

CacheTTL, first called Continuum (Li et al. 2025, arXiv 2511.02230): the time to live is

    argmax over τ in {0} ∪ seen times of   P(time <= τ) * (T * η + reload seconds) - τ        (section 4.2)

P: the empirical distribution of the times that questions were away; T: the mean delay in the queue of those
whose KV was gone; η = -Corr(requests done, requests left), which is 1 where all questions take as many rounds
and 0 where the rounds done say nothing. Both sides are seconds for others who wait, divided by the share of
memory that the question holds, so the size of its KV does not matter.

When few times were seen those of all kinds are taken, and when these are few too, an exponential distribution
with a mean of a second and η = 1 (the same section): τ = ln(T + reload seconds), or 0.

When not: τ = 0 says so (a reload is cheaper than waiting); where nobody queues for memory, plain eviction
(`Radix.evict`) keeps as much without a clock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Generic, TypeVar

import numpy as np

__all__ = ["ENOUGH", "Pins", "Returns", "Turns", "first_come", "live_seconds"]

ENOUGH = 100
"""More than so many times of a kind are trusted (the paper's K)."""
_WINDOW = 1000
"""Only the last so many count: loads drift (ours)."""

Who = TypeVar("Who", bound=Hashable)
What = TypeVar("What")


def live_seconds(times: Sequence[float], benefit: float) -> float:
    """The τ that is best for these times away, seconds, and `benefit` = T * η + reload seconds.

    The objective rises only where a time was seen, so these and 0 are the candidates; the least of equals.
    O(N log N).
    """
    seen = np.sort(np.asarray(times, dtype=np.float64))
    gains = np.arange(1, len(seen) + 1) / max(len(seen), 1) * benefit - seen
    best = int(gains.argmax()) if len(seen) else -1
    return float(seen[best]) if best >= 0 and gains[best] > 0 else 0.0


def first_come(preempted: bool, pinned: bool, arrived: float) -> tuple[bool, bool, float]:
    """The key to sort requests by (section 4.3): preempted ones, pinned ones, then as questions arrived.

    `arrived` is that of the whole question, not of its round, so that what began first ends first.
    """
    return not preempted, not pinned, arrived


class Turns:
    """η from the questions that are done, each with N requests: over all pairs k, N - k for k = 1 .. N.

    The paper does not say which k count; with these a geometric N gives 0 and a fixed one 1, as it demands.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sums = np.zeros(5)

    def done(self, requests: int) -> None:
        """One more question is done, after so many requests. O(N)."""
        k = np.arange(1.0, requests + 1)
        left = requests - k
        self._count += requests
        self._sums += [k.sum(), left.sum(), k @ k, left @ left, k @ left]

    @property
    def memory(self) -> float:
        """η, -1 to 1; 0 where it is not defined: no question yet, or none with a second request."""
        if not self._count:
            return 0.0
        k, left, kk, ll, kl = (float(s) / self._count for s in self._sums)
        spread = sqrt(max(kk - k * k, 0.0) * max(ll - left * left, 0.0))
        return -(kl - k * left) / spread if spread > 1e-12 else 0.0


class Returns:
    """What was seen of questions that go and come back, and the time to live that follows."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._all: deque[float] = deque(maxlen=_WINDOW)
        self._kinds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))
        self._delays: deque[float] = deque(maxlen=ENOUGH)

    def away(self, kind: str, seconds: float) -> None:
        """A question was away so long, for something of this kind: "search", "rerank"."""
        self._all.append(seconds)
        self._kinds[kind].append(seconds)

    def queued(self, seconds: float) -> None:
        """A question whose KV was gone waited so long until it ran again."""
        self._delays.append(seconds)

    def live_seconds(self, kind: str, reload_seconds: float) -> float:
        """τ for a question that goes away now and whose KV takes so long to make again."""
        delay = sum(self._delays) / max(len(self._delays), 1)
        times = self._kinds.get(kind, ())
        if len(times) <= ENOUGH:
            times = self._all
        if len(times) <= ENOUGH:
            return log(max(delay + reload_seconds, 1.0))
        return live_seconds(times, delay * self.turns.memory + reload_seconds)


@dataclass(frozen=True, slots=True)
class _Pin(Generic[What]):
    what: What
    arrived: float
    until: float


@dataclass(frozen=True, slots=True)
class _Away:
    kind: str
    since: float


class Pins(Generic[Who, What]):
    """Questions that are out, and what is pinned for them. Times come as arguments, in seconds.

    Whoever gets a `What` from here unpins it: `Radix.unpin`.
    """

    def __init__(self, returns: Returns) -> None:
        self._returns = returns
        self._pins: dict[Who, _Pin[What]] = {}
        self._away: dict[Who, _Away] = {}
        self._requests: dict[Who, int] = defaultdict(int)

    def __contains__(self, who: object) -> bool:
        return who in self._pins

    def is_away(self, who: Who) -> bool:
        """Whether a question is out, and not back yet."""
        return who in self._away

    def leave(
        self, who: Who, what: What, kind: str, arrived: float, now: float, reload_seconds: float
    ) -> float:
        """A request is done and the question goes away: pin `what` for so many seconds; 0: do not.

        `arrived`: when the question came first. Raises ValueError for one that is away already.
        """
        if who in self._away:
            raise ValueError(f"{who!r} is away already: say `back` first")
        self._away[who] = _Away(kind, now)
        self._requests[who] += 1
        seconds = self._returns.live_seconds(kind, reload_seconds)
        if seconds > 0:
            self._pins[who] = _Pin(what, arrived, now + seconds)
        return seconds

    def back(self, who: Who, now: float) -> None:
        """The question is back and waits; its pin stays until `start`. Its time away is learned."""
        left = self._away.pop(who, None)
        if left is not None:
            self._returns.away(left.kind, now - left.since)

    def start(self, who: Who) -> What | None:
        """The question's next request is admitted: what was pinned for it, or None."""
        pin = self._pins.pop(who, None)
        return pin.what if pin else None

    def done(self, who: Who) -> What | None:
        """The question is over, by its last request or while away, and with it its pin, if there is one.

        How many requests it took is learned.
        """
        last = self._away.pop(who, None) is None
        self._returns.turns.done(self._requests.pop(who, 0) + last)
        return self.start(who)

    def expired(self, now: float) -> list[What]:
        """What is pinned no longer: its time is over, and the question is not back. O(pins)."""
        late = [who for who, pin in self._pins.items() if now > pin.until and who in self._away]
        return [self._pins.pop(who).what for who in late]

    def give_up(self) -> What | None:
        """Memory is needed: the pin of the question that arrived last, or None where there is none."""
        if not self._pins:
            return None
        return self._pins.pop(max(self._pins, key=lambda who: self._pins[who].arrived)).what
