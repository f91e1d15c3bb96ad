"""What earlier runs have shown: how long batches took, what came out of them, and what opening costs.

Formulas bound what a device can do; measurements say what it does. A run adds its spans here, by stage
with its parameters and by kind of lane, and the next plan starts from them. Kept in the cache, a file for
each machine; nothing in it is needed, all of it can be deleted.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

from pipeline.machine import Device
from pipeline.program import Program, Turn
from pipeline.timeline import Span, Tally
from pipeline.yields import Yield, summed

KEPT = 64
"""Batches remembered for a stage and a kind of lane: the latest."""
WARM = 3
"""Batches beside the first from which one can tell what is special about the first."""


@dataclass(frozen=True, slots=True)
class Point:
    """One batch: rows, sum of their lengths, seconds."""

    rows: int
    length: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Learned:
    """`points` and `openings` (seconds) by `lane_key`; `yields` by `stage_key`; `rounds` by loop.

    `sampled`: stages, by `stage_key`, that were tried on a few rows only (see `pipeline.trial`); never kept.
    """

    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    openings: Mapping[str, float] = field(default_factory=dict)
    yields: Mapping[str, Yield] = field(default_factory=dict)
    rounds: Mapping[str, float] = field(default_factory=dict)
    sampled: frozenset[str] = frozenset()

    def of(self, stage: Any, device: Device) -> tuple[Point, ...]:
        """The batches of a stage on lanes like `device`."""
        return self.points.get(lane_key(stage, device), ())

    def nearest(self, stage: Any, device: Device) -> tuple[int, tuple[Point, ...]]:
        """The batches on the lanes of the same kind that are most like `device`, and their threads."""
        found = {_threads(k): v for k, v in self.points.items() if k.startswith(kind_key(stage, device))}
        if not found:
            return 0, ()
        near = min(found, key=lambda n: (abs(n - device.threads), n))
        return near, found[near]

    def opening(self, stage: Any, device: Device) -> float | None:
        """Seconds that opening it took, on such a lane or on one of its kind; None where nobody knows."""
        kind = kind_key(stage, device)
        others = [seconds for key, seconds in self.openings.items() if key.startswith(kind)]
        return self.openings.get(lane_key(stage, device), max(others, default=None))

    def yielded(self, stage: Any) -> Yield | None:
        """What came of its rows; None where nobody knows."""
        return self.yields.get(stage_key(stage))

    def with_run(
        self,
        stages: Mapping[str, Any],
        devices: Mapping[str, Device],
        spans: Sequence[Span],
        lengths: Mapping[str, float],
        rounds: Mapping[str, float],
    ) -> Learned:
        """This and a run. `lengths`: of each step, the mean cost hint of the rows that it made."""
        points, yields = dict(self.points), dict(self.yields)
        opened: dict[str, float] = {}
        apart: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for s in spans:
            apart[s.step, s.device].append(s)
        for (step, device), own in apart.items():
            stage, lane = stages[step], devices[device]
            found, opening = _shown(own, hasattr(stage, "open"))
            key = lane_key(stage, lane)
            points[key] = (*points.get(key, ()), *found)[-KEPT:]
            if opening:
                opened[key] = max(opening, opened.get(key, 0.0))
        for key, told in _yields(stages, spans, lengths).items():
            yields[key] = yields.get(key, Yield()).plus(told)
        return Learned(points, {**self.openings, **opened}, yields, {**self.rounds, **rounds})


def _yields(
    stages: Mapping[str, Any], spans: Sequence[Span], lengths: Mapping[str, float]
) -> dict[str, Yield]:
    """What each stage has made in a run, and how well rows and lengths tell its batches apart."""
    found: dict[str, list[Yield]] = defaultdict(list)
    for s in spans:
        length = s.made * lengths.get(s.step, 0.0)
        found[stage_key(stages[s.step])].append(Yield(s.rows, s.made, s.nbytes, length, s.length))
    return {key: summed(batches) for key, batches in found.items()}


def rounds_of(program: Program, tallies: Mapping[str, Tally]) -> dict[str, float]:
    """Mean rounds of the rows of each loop over inputs: rows of the step that ends it, by input."""
    found = {}
    for turn in (n for n in program.nodes if isinstance(n, Turn) and n.depth == 1):
        tally = tallies.get(turn.until)
        if tally is not None and tally.roots:
            found[turn.name] = tally.rows / len(tally.roots)
    return found


def _shown(spans: Sequence[Span], opens: bool) -> tuple[list[Point], float]:
    """The batches of a step on a lane, and the seconds of its opening.

    What the first batch took beyond what the others say it should have (imports, kernels that are made on
    first use) counts as opening: later runs pay for it once too, not with every row.
    """
    found = [Point(s.rows, s.length, s.seconds) for s in spans]
    opening = sum(s.opening for s in spans)
    if len(found) > WARM and (opening or not opens):
        first, curve = found[0], fit(found[1:])
        usual = curve[0] + curve[1] * first.rows + curve[2] * first.length
        if usual < first.seconds:
            opening += first.seconds - usual
            found[0] = replace(first, seconds=usual)
    return found, opening


def stage_key(stage: Any) -> str:
    """A stage with its parameters, as a short text that is the same in every process.

    Of a path only its name counts: the folder of a run is another each time.
    """
    kind = type(stage)
    told = [(f.name, _told(getattr(stage, f.name))) for f in fields(stage)] if is_dataclass(stage) else ""
    return f"{kind.__module__}.{kind.__qualname__}-{_short(told)}"


def _told(value: Any) -> Any:
    return value.name if isinstance(value, PurePath) else value


def _short(value: Any) -> str:
    return blake2b((repr(value) if value else "").encode(), digest_size=6).hexdigest()


def kind_key(stage: Any, device: Device) -> str:
    """A stage on any lane of a kind: what its `lane_key` begins with."""
    return f"{stage_key(stage)}@{device.kind}/"


def lane_key(stage: Any, device: Device) -> str:
    """A stage on lanes of a kind and width."""
    return f"{kind_key(stage, device)}{device.threads}"


def _threads(key: str) -> int:
    return int(key.rpartition("/")[2])


def read(path: Path) -> Learned:
    """What a file holds; nothing where there is none, or where it is damaged or of another version."""
    try:
        found = json.loads(path.read_text("utf-8"))
        return Learned(
            {k: tuple(_point(*p) for p in v) for k, v in found["points"].items()},
            _numbers(found["openings"]),
            {k: Yield(**_numbers(v)) for k, v in found["yields"].items()},
            _numbers(found["rounds"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Learned()  # it is a cache: the next run fills it again


def _point(rows: Any, length: Any, seconds: Any) -> Point:
    return Point(int(rows), float(length), float(seconds))


def _numbers(found: Any) -> dict[str, float]:
    return {k: float(v) for k, v in found.items()}


def write(learned: Learned, path: Path) -> None:
    """Keep it; whole or not at all."""
    told = {
        "points": {k: [[p.rows, p.length, p.seconds] for p in v] for k, v in learned.points.items()},
        "openings": dict(learned.openings),
        "yields": {k: asdict(v) for k, v in learned.yields.items()},
        "rounds": dict(learned.rounds),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(told), encoding="utf-8")
    part.replace(path)


def fit(points: Iterable[Point]) -> tuple[float, float, float]:
    """`fixed + per_row * rows + per_length * length`, none below 0, of the batches' seconds.

    Non-negative least squares on relative errors, so that small batches count as much as large ones; then
    scaled, so that all batches together take as long as they did. Batches that are alike cannot tell what is
    fixed: all that they took is put down to their lengths, or else to their rows.

    Ours; the linear form is that of LoongServe (arXiv 2404.09526) without its square, which our batches of
    like length do not show apart from the slope.
    """
    import numpy as np
    from scipy.optimize import nnls

    known = [p for p in points if p.seconds > 0 and p.rows > 0]
    if not known:
        return 0.0, 0.0, 0.0
    seconds = np.array([p.seconds for p in known])
    sizes = np.array([[1.0, p.rows, p.length if p.length > 1e-9 else 0.0] for p in known])
    if not differ(known):
        sizes[:, :2] *= (0.0, 0.0 if sizes[:, 2].all() else 1.0)
    shape = sizes / seconds[:, None]
    scale = np.maximum(shape.max(axis=0), 1e-300)
    found, _ = nnls(shape / scale, np.ones(len(known)))
    told = float((shape / scale @ found) @ seconds)
    fixed, per_row, per_length = found / scale * (seconds.sum() / told)
    return float(fixed), float(per_row), float(per_length)


def differ(points: Sequence[Point]) -> bool:
    """Whether batches are unlike enough to tell what is fixed from what grows: one is twice another."""
    rows, lengths = [p.rows for p in points], [p.length for p in points]
    return bool(points) and (max(rows) >= 2 * min(rows) or max(lengths) >= max(2 * min(lengths), 1e-9))
