"""Two timelines side by side: what was predicted, and what was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.advice import Bottleneck, bottleneck, loads
from pipeline.timeline import Timeline, Total, totals

HEAD = ("step", "batches", "rows", "predicted s", "measured s", "ratio")
"""The columns of `Comparison.rows`."""


def error(predicted: float, measured: float) -> float:
    """Relative error |p - m| / m; infinite where something was predicted and nothing measured."""
    if not measured:
        return math.inf if predicted else 0.0
    return abs(predicted - measured) / measured


@dataclass(frozen=True, slots=True)
class Pair:
    """A step in both timelines; None in the one that does not have it. Their seconds are busy time."""

    step: str
    predicted: Total | None
    measured: Total | None

    @property
    def ratio(self) -> float | None:
        """Predicted by measured seconds; None where one of them is missing or nothing was measured."""
        if self.predicted is None or self.measured is None or not self.measured.seconds:
            return None
        return self.predicted.seconds / self.measured.seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Steps in the order of the prediction, then those only measured; the whole runs; what held them up."""

    pairs: tuple[Pair, ...]
    predicted_seconds: float
    measured_seconds: float
    predicted_bottleneck: Bottleneck | None
    measured_bottleneck: Bottleneck | None

    @property
    def error(self) -> float:
        """Relative error of the predicted length of the run."""
        return error(self.predicted_seconds, self.measured_seconds)

    @property
    def is_bottleneck_right(self) -> bool:
        """Whether the same step holds up both runs, on whatever lane."""
        steps = [b and b.step for b in (self.predicted_bottleneck, self.measured_bottleneck)]
        return steps[0] == steps[1]

    def rows(self) -> list[tuple[str, ...]]:
        """A table under `HEAD`, plain text: each step, then the run. "7 / 9" is predicted / measured."""
        p, m = self.predicted_seconds, self.measured_seconds
        run = ("the run", "", "", _seconds(p), _seconds(m), _ratio(p / m if m else None))
        return [*(_row(pair) for pair in self.pairs), run]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `ratio` and `error` are null where there is nothing to divide by."""
        return {
            "steps": [_record(pair) for pair in self.pairs],
            "predicted_seconds": self.predicted_seconds,
            "measured_seconds": self.measured_seconds,
            "error": self.error if math.isfinite(self.error) else None,
            "predicted_bottleneck": self.predicted_bottleneck and asdict(self.predicted_bottleneck),
            "measured_bottleneck": self.measured_bottleneck and asdict(self.measured_bottleneck),
            "is_bottleneck_right": self.is_bottleneck_right,
        }


def compare(predicted: Timeline, measured: Timeline) -> Comparison:
    """What was predicted of each step and of the whole, beside what was measured."""
    p, m = _totals(predicted), _totals(measured)
    pairs = tuple(Pair(step, p.get(step), m.get(step)) for step in dict.fromkeys((*p, *m)))
    return Comparison(pairs, predicted.seconds, measured.seconds, bottleneck(predicted), bottleneck(measured))


def _totals(timeline: Timeline) -> dict[str, Total]:
    """The sums by step; batches that overlap on a lane count once, as they do for the bottleneck."""
    busy: dict[str, float] = defaultdict(float)
    for (step, _), seconds in loads(timeline).items():
        busy[step] += seconds
    return {t.step: Total(t.step, t.batches, t.rows, busy[t.step]) for t in totals(timeline.spans)}


def _row(pair: Pair) -> tuple[str, ...]:
    p, m = pair.predicted, pair.measured
    seconds = (_seconds(p.seconds) if p else "-", _seconds(m.seconds) if m else "-")
    return (pair.step, _counts(pair, "batches"), _counts(pair, "rows"), *seconds, _ratio(pair.ratio))


def _counts(pair: Pair, key: str) -> str:
    counts = ["-" if t is None else str(getattr(t, key)) for t in (pair.predicted, pair.measured)]
    return " / ".join(dict.fromkeys(counts))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.3g}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _record(pair: Pair) -> dict[str, Any]:
    found: dict[str, Any] = {"step": pair.step, "ratio": pair.ratio}
    for name, total in (("predicted", pair.predicted), ("measured", pair.measured)):
        for key in ("batches", "rows", "seconds"):
            found[f"{name}_{key}"] = getattr(total, key) if total else None
    return found
