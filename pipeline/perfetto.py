"""A timeline as trace event JSON, for ui.perfetto.dev and chrome://tracing; and back.

The JSON object format of Google's Trace Event Format, as Perfetto's documentation says that it reads
it: batches and stalls are complete events ("X", `ts` and `dur` in microseconds), a run is a process, and a
lane is a thread with one more for its stalls. Events of a thread must nest; batches of a lane that overlap
get threads of their own. Exact seconds stand in `args`. One event a line, written and read one by one.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, count
from pathlib import Path
from typing import Any

from pipeline.errors import RidgewayError
from pipeline.lookup import near_miss
from pipeline.timeline import REASONS, Span, Stall, Timeline

MEASURED, PREDICTED = 1, 2
"""The process ids of the two runs."""

FIRST_THREAD = 10
"""Above the process ids: a thread with the number of its process would be taken for its main thread."""

ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
END = b"]}"

SPAN = {f.name: str(f.type) for f in fields(Span)}
STALL = {f.name: str(f.type) for f in fields(Stall)}
KEYS = {"nbytes": "bytes"}
"""Fields that are called otherwise in the file."""


def write(timeline: Timeline, path: Path, predicted: Timeline | None = None) -> None:
    """Write a measured timeline, and beside it the predicted one. The file appears whole or not at all.

    Raises ValueError for a number that is not finite.
    """
    counts = {"seconds": timeline.seconds, "spans": len(timeline.spans), "stalls": len(timeline.stalls)}
    head = ENCODE({"displayTimeUnit": "ms", "otherData": counts, "traceEvents": []})
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="ascii", newline="\n") as file:
        file.write(head.removesuffix(END.decode()))
        for number, event in enumerate(_events(timeline, predicted)):
            file.write(f"{',' if number else ''}\n{ENCODE(event)}")
        file.write(f"\n{END.decode()}\n")
    os.replace(part, path)


def _events(measured: Timeline, predicted: Timeline | None) -> Iterator[dict[str, Any]]:
    threads = count(FIRST_THREAD)
    yield from _run("measured", MEASURED, measured, threads)
    if predicted is not None:
        yield from _run("predicted", PREDICTED, predicted, threads)


def _run(name: str, pid: int, timeline: Timeline, threads: Iterator[int]) -> Iterator[dict[str, Any]]:
    tracks = [*_tracks(timeline.spans, False), *_tracks(timeline.stalls, True)]
    tids = {track: next(threads) for track in sorted(set(tracks))}
    yield _meta("process_name", pid, 0, {"name": name})
    yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
    for track, tid in tids.items():
        yield _meta("thread_name", pid, tid, {"name": track.name})
        yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})
    items: Iterator[Span | Stall] = chain(timeline.spans, timeline.stalls)
    for item, track in zip(items, tracks, strict=True):
        yield _event(item, pid, tids[track])


def _meta(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


@dataclass(frozen=True, slots=True, order=True)
class _Track:
    """Where an item is drawn: `lane` counts those of a device whose batches overlap."""

    device: str
    waits: bool
    lane: int

    @property
    def name(self) -> str:
        what = f"{self.device} waits" if self.waits else self.device
        return f"{what} ({self.lane + 1})" if self.lane else what


def _tracks(items: Sequence[Span | Stall], waits: bool) -> list[_Track]:
    """For each item the first track of its device that is free when it starts: on one, none overlap."""
    ends: dict[str, list[float]] = defaultdict(list)
    found: list[_Track | None] = [None] * len(items)
    for i in sorted(range(len(items)), key=lambda i: (items[i].start, items[i].end)):
        item = items[i]
        busy = ends[item.device]
        lane = next((n for n, end in enumerate(busy) if end <= _micro(item.start)), len(busy))
        busy[lane : lane + 1] = [_micro(item.end)]
        found[i] = _Track(item.device, waits, lane)
    return [track for track in found if track is not None]


def _micro(seconds: float) -> float:
    """Microseconds to the nanosecond, the resolution of Perfetto: what ends at a time starts the next."""
    return round(seconds * 1e6, 3)


def _event(item: Span | Stall, pid: int, tid: int) -> dict[str, Any]:
    start = _micro(item.start)
    is_span = isinstance(item, Span)
    return {
        "name": item.step if isinstance(item, Span) else f"{item.reason} {item.step}".rstrip(),
        "cat": "batch" if is_span else "stall",
        "ph": "X",
        "ts": start,
        "dur": round(_micro(item.end) - start, 3),
        "pid": pid,
        "tid": tid,
        "args": {KEYS.get(name, name): getattr(item, name) for name in (SPAN if is_span else STALL)},
    }


def read(path: Path) -> Timeline:
    """The measured timeline of a file, exactly as it was given to `write`.

    Raises RidgewayError naming the line that is damaged, and OSError where there is no such file.
    """
    found: dict[str, list[Any]] = {"spans": [], "stalls": []}
    with path.open("rb") as file:
        counts = _checked(_head, file.readline(), f"{path}:1")
        for number, source in enumerate(file, 2):
            if source.strip() == END:
                break
            item = _checked(_item, source, f"{path}:{number}")
            if item is not None:
                found["spans" if isinstance(item, Span) else "stalls"].append(item)
        else:
            raise RidgewayError(f"{path}: the file is cut off, its last line {END.decode()!r} is missing")
    for name, items in found.items():
        if len(items) != counts[name]:
            raise RidgewayError(f"{path}: {len(items)} {name} instead of {counts[name]}: lines were lost")
    return Timeline(counts["seconds"], tuple(found["spans"]), tuple(found["stalls"]))


def _checked(parse: Any, source: bytes, where: str) -> Any:
    """What `parse` makes of a line. Raises RidgewayError saying where and what is wrong."""
    try:
        return parse(source.strip().removesuffix(b","))
    except json.JSONDecodeError as error:
        found = f"{error.msg} at column {error.colno}"
    except RecursionError:
        found = "it is nested too deeply"
    except ValueError as error:
        found = str(error)
    raise RidgewayError(f"{where}: no line of a timeline: {found}")


def _head(source: bytes) -> dict[str, Any]:
    """Seconds and counts, from the first line."""
    data = _mapping(json.loads(source + END))
    counts = _mapping(data.get("otherData"))
    return {
        n: _value(counts, n, "float" if n == "seconds" else "int") for n in ("seconds", "spans", "stalls")
    }


def _item(source: bytes) -> Span | Stall | None:
    """The batch or stall of a line; None for names, and for what is predicted."""
    event = _mapping(json.loads(source))
    if event.get("ph") != "X" or event.get("pid") != MEASURED:
        return None
    args, kind = _mapping(event.get("args")), event.get("cat")
    if kind not in ("batch", "stall"):
        raise ValueError(f"cat is {kind!r}, neither 'batch' nor 'stall'")
    columns = SPAN if kind == "batch" else STALL
    values = {name: _value(args, KEYS.get(name, name), of) for name, of in columns.items()}
    if values["end"] < values["start"]:
        raise ValueError(f"it ends at {values['end']} and starts at {values['start']}")
    if kind == "batch":
        return Span(**values)
    if values["reason"] not in REASONS:
        raise ValueError(f"no reason {values['reason']!r}{near_miss(values['reason'], REASONS)}")
    return Stall(**values)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {str(value)[:40]!r}")
    return value


def _value(values: Mapping[str, Any], name: str, kind: str) -> Any:
    """A field of the type "str", "int" or "float". Raises ValueError where it is not."""
    value = values.get(name)
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:
            return float(value)
    elif (kind == "str" and isinstance(value, str)) or (kind == "int" and type(value) is int):
        return value
    raise ValueError(f"{name} must be of type {kind}, found {str(value)[:40]!r}")
