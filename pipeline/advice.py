"""Why lanes stood still, and what would help: a line for each, from a timeline alone.

All of it describes one run; say nothing about another machine, or other rows, without simulating them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.machine import Device
from pipeline.timeline import Stall, Timeline

WORTH = 0.05
"""Shares of the run below this are noise: no cause is named, and no saving."""

CAUSES = {
    "starved": "starved by {}",
    "filling": "waiting for a full batch of {}",
    "window": "held back until {} drains",
    "link": "waiting for rows of {} on their way",
    "done": "nothing left to do",
}


@dataclass(frozen=True, slots=True)
class Idle:
    """What a lane did: seconds in which it worked, and by reason and step those in which it stood still.

    The largest reason comes first. What nobody saw the reason of is in neither.
    """

    device: str
    busy: float
    by_reason: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The step that holds a run up; its lane that worked longest on it; `share` of the run, per lane."""

    step: str
    device: str
    share: float


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds inside any of the (start, end) pairs: what overlaps counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def loads(timeline: Timeline) -> dict[tuple[str, str], float]:
    """Seconds by (step, device) in which the one worked on the other; batches that overlap count once."""
    found = defaultdict(list)
    for s in timeline.spans:
        found[s.step, s.device].append((s.start, s.end))
    return {key: covered(spans) for key, spans in found.items()}


def idle(timeline: Timeline) -> tuple[Idle, ...]:
    """What each lane of a run did, in the order of their names."""
    spans, waits = defaultdict(list), defaultdict(list)
    for s in timeline.spans:
        spans[s.device].append((s.start, s.end))
    for w in timeline.stalls:
        waits[w.device].append(w)
    return tuple(Idle(d, covered(spans[d]), _reasons(waits[d])) for d in timeline.devices)


def _reasons(stalls: Iterable[Stall]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for s in stalls:
        found[s.reason, s.step] += s.end - s.start
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def bottleneck(timeline: Timeline) -> Bottleneck | None:
    """The step with the most busy time for each lane that it used; None where nothing ran."""
    lanes = _lanes(loads(timeline))
    if not lanes or not timeline.seconds:
        return None
    step, used = max(lanes.items(), key=lambda item: sum(item[1].values()) / len(item[1]))
    device = max(sorted(used), key=lambda d: used[d])
    return Bottleneck(step, device, sum(used.values()) / len(used) / timeline.seconds)


def _lanes(load: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Step to device to seconds."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (step, device), seconds in load.items():
        found[step][device] = seconds
    return dict(found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run as advice looks at it: its seconds, busy seconds of lanes, lanes of steps, pools of lanes."""

    timeline: Timeline
    busy: Mapping[str, float]
    lanes: Mapping[str, Mapping[str, float]]
    pools: Mapping[str, str]

    def share(self, seconds: float) -> str:
        return f"{100 * seconds / self.timeline.seconds:.0f} %"

    def is_worth(self, seconds: float) -> bool:
        return seconds >= WORTH * self.timeline.seconds


def advice(timeline: Timeline, devices: Iterable[Device] = ()) -> tuple[str, ...]:
    """A line for each lane: how long it was idle, the largest cause, and what would help.

    `devices`: those of the machine, so that lanes on which nothing ran are told too.
    """
    if not timeline.seconds:
        return ()
    lanes = {i.device: i for i in idle(timeline)}
    pools = {d.name: d.pool for d in devices}
    busy = {name: i.busy for name, i in lanes.items()}
    seen = _Seen(timeline, busy, _lanes(loads(timeline)), pools)
    names = dict.fromkeys((*pools, *lanes))
    return tuple(_line(lanes.get(name, Idle(name, 0.0, {})), seen) for name in names)


def _line(lane: Idle, seen: _Seen) -> str:
    missed = max(0.0, seen.timeline.seconds - lane.busy)
    if not seen.is_worth(missed):
        return f"{lane.device} busy {seen.share(lane.busy)}"
    said = f"{lane.device} idle {seen.share(missed)}"
    if not lane.busy and not lane.by_reason:
        return f"{said}: no step ran on it"
    (reason, step), seconds = next(iter(lane.by_reason.items()), (("", ""), 0.0))
    if not seen.is_worth(seconds):
        return said
    cause = f"{said}: {CAUSES[reason].format(step or 'the inputs')} ({seen.share(seconds)})"
    tip = _tip(lane.device, reason, step, seen) if step else ""
    return f"{cause}; {tip}" if tip else cause


def _tip(device: str, reason: str, step: str, seen: _Seen) -> str:
    """What would help against the largest cause; "" where nothing is known to."""
    if reason == "starved":
        return _more(device, step, seen)
    if reason == "filling":
        return f"a smaller batch of {step} would start earlier"
    if reason == "window":
        return f"raise the window or speed up {step}"
    return _nearer(device, step, seen) if reason == "link" else ""


def _more(device: str, step: str, seen: _Seen) -> str:
    """A lane that may run the step itself and yet waits for it needs smaller batches, not more lanes."""
    if device in seen.lanes.get(step, {}):
        return f"smaller batches of {step} would keep more lanes busy"
    saved = _saving(step, seen)
    worth = seen.is_worth(saved)
    return f"one more lane for {step} would save about {seen.share(saved)}" if worth else ""


def saving(timeline: Timeline, step: str) -> float:
    """Seconds that a run would be shorter, at best, with one more lane for `step`; 0 if it never ran.

    Ours: derived. The k lanes of the step work T seconds in all, P of them on the step. The new lane takes
    x = min(P, T / (k + 1)), so the others are done x / k seconds earlier; but the run stays as long as
    the busiest lane elsewhere, and as these lanes with what is left. Where the step has its lanes to
    itself and works all the time, that is seconds - max(busiest elsewhere, B k / (k + 1)), B = P / k.
    """
    busy = {i.device: i.busy for i in idle(timeline)}
    return _saving(step, _Seen(timeline, busy, _lanes(loads(timeline)), {}))


def _saving(step: str, seen: _Seen) -> float:
    used = seen.lanes.get(step, {})
    if not used:
        return 0.0
    total, count = sum(seen.busy[d] for d in used), len(used)
    taken = min(sum(used.values()), total / (count + 1))
    elsewhere = max((s for d, s in seen.busy.items() if d not in used), default=0.0)
    left = max(elsewhere, (total - taken) / count)
    return max(0.0, min(taken / count, seen.timeline.seconds - left))


def _nearer(device: str, step: str, seen: _Seen) -> str:
    """Values pass by reference within a pool, so nothing is to be gained where both are in one already."""
    makers = {seen.pools.get(d) for d in seen.lanes.get(step, {})}
    if device in seen.pools and makers == {seen.pools[device]}:
        return ""
    reader = _reader(device, step, seen.timeline)
    other = reader if reader not in ("", step) else "what reads it"
    return f"put {step} and {other} into one pool"


def _reader(device: str, step: str, timeline: Timeline) -> str:
    """The step that most often came next on a lane, by seconds, after waiting for rows of `step`; or ""."""
    spans = sorted((s.start, s.step) for s in timeline.spans if s.device == device)
    found: dict[str, float] = defaultdict(float)
    for w in timeline.stalls:
        if (w.device, w.reason, w.step) == (device, "link", step):
            at = bisect_left(spans, (w.start, ""))
            found[spans[at][1] if at < len(spans) else ""] += w.end - w.start
    return max(sorted(found), key=lambda s: found[s])
