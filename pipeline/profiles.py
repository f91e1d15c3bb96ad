"""What one device delivers, each number with its source; scaled to a share of it, and between two.

A number is never silently changed: what is worked out from others is marked "scaled", so that measured
numbers are compared with measured ones only (after Koilia and Kachris, arXiv 2409.03384, who bring
accelerators to one process node before they compare them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pipeline.errors import PlanError
from pipeline.lookup import near_miss

__all__ = [
    "BYTES", "NOMINAL", "PROVENANCE", "SATURATED", "Profile", "between", "provenance", "saturation", "scaled",
    "source",
]  # fmt: skip

PROVENANCE = ("measured", "data sheet", "scaled", "assumed")
"""How a source begins, the surest first."""

BYTES = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1})
"""Bytes of an element of each dtype that has a peak."""


SATURATED = 0.9
"""Share of the best bandwidth at which more threads bring nothing worth having."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one lane delivers with the kernels that stages use.

    `peaks`: dtype to FLOP/s of its matrix product; `bandwidth`: bytes/s read in a stream from its memory;
    `copy`: bytes/s copied; `memory`: bytes; `scalar`: interpreted operations/s of one thread (0: it cannot
    run such code); `overhead`: seconds per batch, whatever is in it; `load`: bytes/s of weights from
    storage; `together`: share of the shared-device bound (see `pipeline.roofline`) that two lanes reach;
    `joules_per_flop`, `joules_per_byte`, `idle_watts`; `price` in US dollars per hour; 0 where unknown.
    `sources`: number to where it comes from: "measured ...", "data sheet ...", "scaled ...", "assumed".
    """

    peaks: Mapping[str, float]
    bandwidth: float
    copy: float
    memory: float
    scalar: float = 2e7
    overhead: float = 1e-3
    load: float = 1e9
    together: float = 1.0
    joules_per_flop: float = 0.0
    joules_per_byte: float = 0.0
    idle_watts: float = 0.0
    price: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.peaks or set(self.peaks) - set(BYTES):
            raise PlanError(f"peaks must name dtypes among {', '.join(BYTES)}; found {dict(self.peaks)}")
        positive = {"bandwidth": self.bandwidth, "copy": self.copy, "memory": self.memory, **self.peaks}
        for name, value in positive.items():
            if not value > 0:
                raise PlanError(f"{name} of a device must be above 0, found {value!r}")
        if not 0 < self.together <= 1:
            raise PlanError(f"together is a share above 0 and at most 1, found {self.together!r}")

    def peak(self, dtype: str) -> float:
        """FLOP/s in `dtype`. Raises PlanError where the device does not compute in it."""
        if dtype not in self.peaks:
            raise PlanError(f"the device does not compute in {dtype!r}{near_miss(dtype, self.peaks)}")
        return self.peaks[dtype]

    def auto(self) -> str:
        """The dtype that "auto" means: bfloat16 where it is clearly faster than float32, else float32.

        A device that has only others computes in its fastest.
        """
        half, full = self.peaks.get("bfloat16", 0.0), self.peaks.get("float32", 0.0)
        if half or full:
            return "bfloat16" if half > 1.2 * full else "float32"
        return max(self.peaks, key=lambda d: self.peaks[d])

    def ridge(self, dtype: str) -> float:
        """FLOP per byte above which a product is bound by arithmetic (Williams et al., 2009)."""
        return self.peak(dtype) / self.bandwidth


NOMINAL = Profile(
    peaks={"float32": 5e10, "bfloat16": 5e10},
    bandwidth=1e10,
    copy=5e9,
    memory=8 * 2**30,
    sources={"*": "assumed: nobody has measured this lane; run `ridgeway calibrate`"},
)
"""What a lane is taken for before it is measured."""


def scaled(profile: Profile, factor: float, why: str, fixed: Iterable[str] = ()) -> Profile:
    """The profile of a device `factor` times as large, or on another process node: all that grows with it.

    Those are peaks, bandwidth, copy, memory, idle watts and price, but for the `fixed` ones. What is scaled
    says so in its source, and `why`.
    """
    if not factor > 0:
        raise PlanError(f"a profile is scaled by a number above 0, found {factor!r}")
    keys = [k for k in (*profile.peaks, *_GROWS) if k not in set(fixed)]
    told = {k: f"scaled: by {factor:.4g} ({why}) from {source(profile, k)}" for k in keys}
    return _revised(profile, {k: _number(profile, k) * factor for k in keys}, told)


def between(low: Profile, high: Profile, share: float, why: str) -> Profile:
    """The profile that lies at `share` of the way from `low` to `high`; both compute in the same dtypes."""
    keys = [k for k in (*low.peaks, *_GROWS) if k not in BYTES or k in high.peaks]
    numbers = {k: _number(low, k) + share * (_number(high, k) - _number(low, k)) for k in keys}
    return _revised(low, numbers, dict.fromkeys(keys, f"scaled: {why}"))


def saturation(rates: Mapping[int, float], share: float = SATURATED) -> int:
    """The fewest threads that reach `share` of the best rate (A6); `rates`: threads to bytes/s."""
    return min(n for n, rate in rates.items() if rate >= share * max(rates.values()))


def provenance(profile: Profile) -> str:
    """The least sure kind of source among the numbers that decide its speed."""
    found = {_kind(source(profile, k)) for k in (*profile.peaks, "bandwidth")}
    return max(found, key=PROVENANCE.index)


def _kind(source: str) -> str:
    return next((kind for kind in PROVENANCE if source.startswith(kind)), "assumed")


def source(profile: Profile, key: str) -> str:
    """Where the number of a dtype or field comes from."""
    return profile.sources.get(key) or profile.sources.get(
        "*", "assumed: nobody has said where it comes from"
    )


def _number(profile: Profile, key: str) -> float:
    return float(profile.peaks[key] if key in BYTES else getattr(profile, key))


def _revised(profile: Profile, numbers: Mapping[str, float], told: Mapping[str, str]) -> Profile:
    """With other numbers, to twelve digits, so that they survive a file that has them in other units."""
    short = {k: float(f"{v:.12g}") for k, v in numbers.items()}
    rest = {k: v for k, v in short.items() if k not in BYTES}
    peaks = {**profile.peaks, **{k: v for k, v in short.items() if k in BYTES}}
    return replace(profile, peaks=peaks, sources={**profile.sources, **told}, **rest)


_GROWS = ("bandwidth", "copy", "memory", "idle_watts", "price")
