"""Decisions that are no search: a few numbers in, a choice and the sentence that explains it out.

Each gate says when not to do what it is about, and hands on the numbers that made it choose. The numbers
are predictions from profiles, so a decision is as good as the calibration; none of these gates measures.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from pipeline.errors import PlanError
from pipeline.machine import Link
from pipeline.profiles import SATURATED, saturation

MOST_ROWS = 1 << 20
"""No batch is larger; two devices that do not change places up to here never do."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen for `what`, and why, in one sentence with its numbers.

    `numbers`: by name, in SI units; `rejected`: the alternatives, each with its reason.
    """

    what: str
    chosen: str
    why: str
    numbers: Mapping[str, float]
    rejected: tuple[tuple[str, str], ...] = ()


def duration(seconds: float) -> str:
    """Seconds for people: "3.2 s", "3.2 ms", "3.2 us"."""
    unit, scale = (
        ("s", 1.0) if seconds >= 1 or not seconds else ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    )
    return f"{float(f'{seconds * scale:.3g}'):g} {unit}"


def size(nbytes: float) -> str:
    """Bytes for people: "4.5 MiB"."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit}"
    return f"{nbytes:.0f} bytes"


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a batch on a device: straight between `points` (rows, seconds), and on beyond the last.

    A batch below the first takes as long as the first, one of no rows no time.
    """

    device: str
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.points))
        if len(self.points) < 2 or not rising or not all(t > 0 for n, t in self.points if n):
            raise PlanError(
                "a curve needs two points or more, rising in rows and not falling in seconds above 0; "
                f"that of {self.device} has {self.points}"
            )

    @classmethod
    def affine(cls, device: str, fixed: float, per_row: float) -> Curve:
        """`fixed + per_row * rows`."""
        return cls(device, ((0, fixed), (1, fixed + per_row)))

    def seconds(self, rows: int) -> float:
        """Predicted time of a batch."""
        if rows <= self.points[0][0]:
            return self.points[0][1] if rows else 0.0
        at = min(bisect_left(self.points, rows, key=lambda p: p[0]), len(self.points) - 1)
        (n, t), (n2, t2) = self.points[at - 1 : at + 1]
        return t + (t2 - t) * (rows - n) / (n2 - n)


@dataclass(frozen=True, slots=True)
class Offload:
    """A step on a fast device, and a slow one that could do its part that grows with the rows.

    `fixed`: seconds per batch whatever is in it; `items`: seconds per batch of the part that grows (in
    APEX: attention), on the fast device; `fast`, `slow`: rows/s of that part; `queued`: rows that wait for
    the slow device; `window`: seconds of other work (prefill) that the fast device does with each batch.
    """

    step: str
    devices: tuple[str, str]
    fixed: float
    items: float
    fast: float
    slow: float
    queued: int
    window: float = 0.0

    def __post_init__(self) -> None:
        if not self.fast > 0 or min(self.fixed, self.items, self.slow, self.window, self.queued) < 0:
            raise PlanError(f"an offload needs a fast device and nothing below 0, found {self}")

    @property
    def need(self) -> float:
        """The `slow / fast` above which splitting beats the fast device alone: APEX, eq. (6), as

            fast / slow  <  (2 fixed + items) (fixed + items + window) / (fixed items)

        which without a window is 2 fixed/items + 3 + items/fixed. With one the paper was not readable:
        ours, derived for prefill in proportion to the rows, so that neither way puts it off.
        """
        cycle = self.fixed + self.items
        return self.fixed * self.items / ((self.fixed + cycle) * (cycle + self.window))

    def gain(self, cycle: float) -> float:
        """Rows/s against the fast device alone, if it takes `cycle` seconds per batch beside the window.

        Ours: a cycle brings `fast * items` rows, and the slow device works through it and the window. A row
        takes its part of both; the window grows with the rows, so more rows never make it smaller.
        """
        own = self.fast * self.items
        window = self.window / own
        row = cycle * max(0.0, 1 - self.slow * window) / (own + self.slow * cycle) + window
        return (self.fixed + self.items + self.window) / own / row


def offload(on: Offload) -> Decision:
    """The fast device only, the slow one overlapped, or the batch split between them (H1: APEX, 2506.03296).

    Half a batch costs `fixed` again, so a split pays only above `Offload.need`. Else the batch stays whole
    and the slow device's rows join it when they are ready. When not to: with nothing queued for the slow
    device, or nothing that it can do. Overlap takes the handover for hidden, and its rows advance less often.
    """
    fast, slow = on.devices
    if not (on.queued and on.slow and on.items):
        lack = f"nothing waits for {slow}" if not on.queued else f"{slow} has no part that it can do"
        why = f"{on.step} runs on {fast} only: {lack}"
        return Decision(on.step, "device only", why, {}, (("overlap", lack), ("split", lack)))
    share, need, cycle = on.slow / on.fast, on.need, on.fixed + on.items
    overlap, split = on.gain(cycle), on.gain(on.fixed + cycle)
    numbers = {"share": share, "needed": need, "gain of overlap": overlap, "gain of split": split}
    reach = f"{slow} reaches {100 * share:.3g} % of its throughput, and {100 * need:.3g} % "
    if share > need:
        others = (
            ("device only", f"{split:.2f} times slower"),
            ("overlap", f"rows on {slow} would lag behind"),
        )
        return Decision(on.step, "split", f"{on.step} on {fast} is split: {reach}are enough", numbers, others)
    others = (
        ("device only", f"{overlap:.2f} times slower"),
        ("split", f"{split:.2f} times as fast as alone"),
    )
    why = f"{on.step} stays whole on {fast}, {slow} overlapped: {reach}would be needed to split it"
    return Decision(on.step, "overlap", why, numbers, others)


def crossing(a: Curve, b: Curve) -> int | None:
    """The first batch size at which the faster device is not the one that is faster for one row."""
    first = a.seconds(1) <= b.seconds(1)

    def turned(rows: int) -> bool:
        return (a.seconds(rows) <= b.seconds(rows)) != first

    stops = sorted({n for c in (a, b) for n, _ in c.points if 1 < n < MOST_ROWS} | {MOST_ROWS})
    for low, high in pairwise([1, *stops]):  # both are straight in between, so they turn at most once
        if turned(high):
            return bisect_left(range(high + 1), True, lo=low, key=turned)
    return None


def crossover(step: str, a: Curve, b: Curve, rows: int) -> Decision:
    """The faster of two devices at a batch of `rows`, `a` where they are equal (H2: arXiv 2603.29002).

    A memory-side device wins small batches and loses large ones. When not to: where both may run at once.
    """
    fast, slow = (a, b) if a.seconds(rows) <= b.seconds(rows) else (b, a)
    at = crossing(a, b)
    turn = "no batch size changes that" if at is None else f"they change places at batch {at}"
    times = [c.seconds(rows) for c in (fast, slow)]
    why = f"{step} runs on {fast.device} at batch {rows}: {duration(times[0])}, {duration(times[1])} on "
    numbers = {fast.device: times[0], slow.device: times[1]} | ({} if at is None else {"crossover": at})
    lost = (slow.device, f"{duration(times[1] - times[0])} more")
    return Decision(step, fast.device, f"{why}{slow.device}; {turn}", numbers, (lost,))


def recompute_or_transfer(what: str, recompute: float, nbytes: float, link: Link) -> Decision:
    """Whether a consumer makes `what` again, from ids, or has its bytes sent (B18: xFasterTransformer).

    `recompute`: seconds on the consumer. When not to: where the consumer has no time left, or no weights.
    """
    transfer = link.seconds(nbytes)
    flips = nbytes / (recompute - link.latency) if recompute > link.latency else math.inf
    numbers = {"recompute": recompute, "transfer": transfer, "flips at bytes/s": flips}
    chosen, lost = ("recompute", "transfer") if recompute < transfer else ("transfer", "recompute")
    turn = f"sending is faster above {size(flips)}/s" if flips < math.inf else "no link is fast enough"
    why = f"{what}: {chosen}, for making it again takes {duration(recompute)} and sending {size(nbytes)} "
    others = ((lost, f"{duration(abs(recompute - transfer))} more"),)
    return Decision(what, chosen, f"{why}{duration(transfer)}; {turn}", numbers, others)


def equal_split(step: str, a: Curve, b: Curve, rows: int) -> Decision:
    """How many of `rows` two devices take at once, so that the later of them ends as early as can be.

    After L3 (B6: arXiv 2504.17584), whose model was not readable; ours: one curve rises with the rows, the
    other falls, so the best is next to where they meet.
    When not to: where the two share a memory or cores, and so slow each other down.
    """
    meet = bisect_left(range(1, rows), True, key=lambda n: a.seconds(n) >= b.seconds(rows - n))
    n = min((meet, meet + 1), key=lambda n: max(a.seconds(n), b.seconds(rows - n)))
    times, chosen = (a.seconds(n), b.seconds(rows - n)), f"{n} : {rows - n}"
    numbers = {f"rows on {a.device}": n, f"rows on {b.device}": rows - n, "seconds": max(times)}
    why = f"{step}: {chosen} rows on {a.device} and {b.device} take {' and '.join(map(duration, times))}"
    lost = [(f"{c.device} alone", duration(c.seconds(rows))) for c in (a, b) if c.seconds(rows) > max(times)]
    return Decision(step, chosen, why, numbers, tuple(lost))


def knee(device: str, bandwidths: Mapping[int, float], share: float = SATURATED) -> Decision:
    """The fewest threads that reach `share` of the best bandwidth (A6); `bandwidths`: threads to bytes/s.

    When not to: for stages bound by arithmetic, which go on gaining with every core.
    """
    best = max(bandwidths.values())
    threads = saturation(bandwidths, share)
    reach = f"reach {size(bandwidths[threads])}/s of {size(best)}/s"
    why = f"streams on {device} gain from no more than {threads} threads, which {reach}"
    numbers = {"threads": threads, "bytes/s": bandwidths[threads], "best bytes/s": best}
    return Decision(f"threads of {device}", str(threads), why, numbers)
