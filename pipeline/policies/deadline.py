"""Admission by deadline, before a run: may it start if it must be done in time (RTGPU, arXiv 2101.10463)?

A job is a chain of segments. On lanes of its own a segment takes its worst case; on a lane or link that it
shares with more urgent recurring work, the least R = B + C + sum of ceil(R / T_j) * C_j (Joseph and
Pandya, 1986; blocking B: Audsley et al., 1993). Their sum is the response time.

When not: worst cases are not known, but means; the other work has no shortest period; work on several
lanes that is shared (a shared resource counts as one lane); or segments may overlap (then it is too strict).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.errors import PlanError

STEPS = 1000
"""Iterations after which a bound will do."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Work on one resource. `seconds`: its worst case on 1, 2, ... lanes of that resource.

    `blocking`: the longest piece of less urgent work there that cannot be interrupted, such as a batch.
    """

    name: str
    resource: str
    seconds: tuple[float, ...]
    blocking: float = 0.0

    def __post_init__(self) -> None:
        if not self.seconds or not all(s >= 0 for s in (*self.seconds, self.blocking)):
            raise PlanError(
                f"segment {self.name!r} needs seconds of 0 or more for 1, 2, ... lanes, found {self}"
            )


@dataclass(frozen=True, slots=True)
class Recurring:
    """More urgent work: at most `seconds` of it each `period`, and no two starts closer than that."""

    resource: str
    seconds: float
    period: float

    def __post_init__(self) -> None:
        if not (self.period > 0 and self.seconds >= 0):
            raise PlanError(f"recurring work needs a period above 0 and seconds of 0 or more, found {self}")


@dataclass(frozen=True, slots=True)
class Admission:
    """`ok`: it is done in time if nothing exceeds its worst case. `seconds`: response time on `lanes`.

    `binding`: the segment that takes the largest part of it; `why`: for people, with what would help.
    """

    ok: bool
    seconds: float
    binding: str
    why: str
    lanes: Mapping[str, int] = field(default_factory=dict)


def response(seconds: float, others: Iterable[Recurring], blocking: float = 0.0) -> float:
    """The response time of `seconds` of work below `others` on one lane, by iteration from B + C upwards.

    Infinite where the others leave nothing over. Where it has not settled after `STEPS`, the bound
    (B + C + sum of C_j) / (1 - sum of C_j / T_j), which follows from ceil(x) < x + 1.
    """
    urgent = [o for o in others if o.seconds > 0]
    spare = 1 - sum(o.seconds / o.period for o in urgent)
    if spare <= 0:
        return math.inf if seconds + blocking > 0 else 0.0
    found = seconds + blocking
    for _ in range(STEPS):
        last, found = found, _next(seconds + blocking, urgent, found)
        if found <= last:
            return found
    return (seconds + blocking + sum(o.seconds for o in urgent)) / spare


def _next(own: float, urgent: Iterable[Recurring], last: float) -> float:
    return own + sum(math.ceil(last / o.period) * o.seconds for o in urgent)


def fewest(deadline: float, options: Mapping[str, Sequence[float]]) -> tuple[float, dict[str, int]]:
    """Seconds, and lanes of each resource: the fewest in all whose sum of seconds meets the deadline.

    `options`: seconds on 1, 2, ... lanes. The shortest sum of equals, and where none meets it, the shortest
    of all. Same as a search of the grid, but by dynamic programming over the number of lanes (ours).
    """
    best: dict[int, tuple[float, dict[str, int]]] = {0: (0.0, {})}
    for resource, seconds in options.items():
        found: dict[int, tuple[float, dict[str, int]]] = {}
        for total, (sofar, lanes) in best.items():
            for n, more in enumerate(seconds, 1):
                if total + n not in found or sofar + more < found[total + n][0]:
                    found[total + n] = (sofar + more, {**lanes, resource: n})
        best = found
    meets = [total for total, (seconds_, _) in best.items() if seconds_ <= deadline]
    return best[min(meets) if meets else min(best, key=lambda total: (best[total][0], total))]


def admit(
    deadline: float,
    segments: Sequence[Segment],
    others: Iterable[Recurring] = (),
    free: Mapping[str, int] | None = None,
) -> Admission:
    """Whether `segments`, one after the other, are done within `deadline` seconds, and on how many lanes.

    `free`: lanes of each resource that may be granted (1 where it is not named); the fewest that do are.
    Raises PlanError for a job without segments, and for deadlines and lanes that are none.
    """
    urgent, free = list(others), free or {}
    _check(deadline, segments, free)
    total, lanes = fewest(deadline, _options(segments, urgent, free))
    parts = [_part(s, urgent, lanes[s.resource]) for s in segments]
    worst = segments[parts.index(max(parts))]
    ok = total <= deadline
    why = (
        f"needs {total:.4g} s at worst, has {deadline:.4g} s; segment {worst.name!r} takes {max(parts):.4g} s"
    )
    if math.isinf(total):
        why = f"segment {worst.name!r} may never end: more urgent work takes all of {worst.resource!r}"
    if not ok:
        why += f"; {_help(deadline, segments, urgent, free, worst, total)}"
    return Admission(ok, total, worst.name, why, lanes)


def _check(deadline: float, segments: Sequence[Segment], free: Mapping[str, int]) -> None:
    if not segments:
        raise PlanError("a job without segments cannot be admitted: name its steps")
    if not 0 < deadline < math.inf:
        raise PlanError(f"a deadline is above 0 s and finite, found {deadline!r}")
    for s in segments:
        if free.get(s.resource, 1) < 1:
            raise PlanError(f"segment {s.name!r} needs a lane of {s.resource!r}, and none is free")


def _part(segment: Segment, urgent: Sequence[Recurring], lanes: int) -> float:
    """The response time of a segment on so many lanes, or on as many as it can use."""
    own = segment.seconds[min(lanes, len(segment.seconds)) - 1]
    return response(own, [o for o in urgent if o.resource == segment.resource], segment.blocking)


def _options(
    segments: Sequence[Segment], urgent: Sequence[Recurring], free: Mapping[str, int] | None
) -> dict[str, list[float]]:
    """By resource the seconds of all its segments on 1, 2, ... lanes; `free` None: on all they could use."""
    shared = {o.resource for o in urgent}
    found: dict[str, list[float]] = {}
    for resource in dict.fromkeys(s.resource for s in segments):
        mine = [s for s in segments if s.resource == resource]
        known = 1 if resource in shared else max(len(s.seconds) for s in mine)
        most = known if free is None else min(known, free.get(resource, 1))
        found[resource] = [sum(_part(s, urgent, n) for s in mine) for n in range(1, most + 1)]
    return found


def _help(
    deadline: float,
    segments: Sequence[Segment],
    urgent: Sequence[Recurring],
    free: Mapping[str, int],
    worst: Segment,
    total: float,
) -> str:
    """What would do: a later deadline, the binding segment on a resource of its own, or more lanes."""
    ways = [] if math.isinf(total) else [f"a deadline of {total:.4g} s"]
    alone = [o for o in urgent if o.resource != worst.resource]
    if len(alone) < len(urgent) and fewest(deadline, _options(segments, alone, free))[0] <= deadline:
        ways.append(f"{worst.resource!r} without more urgent work")
    needs, lanes = fewest(deadline, _options(segments, urgent, None))
    if needs <= deadline:
        extra = {r: n - free.get(r, 1) for r, n in lanes.items()}
        ways.append(" and ".join(f"{n} more of {r!r}" for r, n in extra.items() if n > 0))
    return f"would do: {', or '.join(ways)}" if ways else "nothing known here would do"
