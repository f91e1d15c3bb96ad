"""Device profiles as they stand in YAML: numbers in the units of data sheets, each with its source.

    peak_tflops: {float32: 19.5, bfloat16: 312}
    bandwidth_gbs: 2039
    sources: {float32: "data sheet: ...", bfloat16: "data sheet: ...", bandwidth_gbs: "data sheet: ..."}

An entry gives numbers, or names a shipped device (`profile: h100`), or both: its own go before the named
ones. `threads` says for how many the numbers are; a named profile is scaled to as many, with its memory.
`scale: {by: 0.25, because: ...}` takes a share of it, such as a MIG slice. What is left out is Ridgeway's
default, and its source says so. Numbers are read to twelve digits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.document import Document, escape, parse
from pipeline.document import Path as At
from pipeline.errors import PlanError, RidgewayError
from pipeline.lookup import near_miss
from pipeline.profiles import BYTES, PROVENANCE, Profile, scaled, source

__all__ = [
    "DEVICES",
    "KEYS",
    "UNITS",
    "count",
    "entry",
    "listed",
    "mapping",
    "number",
    "profile",
    "read",
    "told",
]

DEVICES = Path(__file__).parents[1] / "configs" / "machines" / "devices"
"""The shipped device profiles: beside the package `pipeline`, in a clone as where it is installed."""

PEAKS = "peak_tflops"
UNITS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "bandwidth_gbs": ("bandwidth", 1e9),
        "copy_gbs": ("copy", 1e9),
        "memory_gib": ("memory", 2.0**30),
        "scalar_mops": ("scalar", 1e6),
        "overhead_ms": ("overhead", 1e-3),
        "load_gbs": ("load", 1e9),
        "together": ("together", 1.0),
        "pj_per_flop": ("joules_per_flop", 1e-12),
        "pj_per_byte": ("joules_per_byte", 1e-12),
        "idle_watts": ("idle_watts", 1.0),
        "price_per_hour": ("price", 1.0),
    }
)
"""Key of a number in a file: the field of a Profile, and how much of it one is."""

KEYS = (PEAKS, *UNITS, "sources", "profile", "scale", "threads")
_NEEDED = (PEAKS, "bandwidth_gbs", "copy_gbs", "memory_gib")
_DEFAULTS = {f.name: f.default for f in fields(Profile) if isinstance(f.default, float)}
_SAY_MORE = 8
"""Characters that a source has at least, after the word that says its kind."""


def profile(document: Document, data: Any, at: At, above: tuple[str, ...] = ()) -> tuple[Profile, int]:
    """The profile of an entry, and for how many threads it is. Raises ConfigError.

    `above`: the shipped profiles that led here, so that none can name itself.
    """
    given = mapping(document, data, at, KEYS)
    numbers = _numbers(document, given, at)
    sources = _sources(document, given, at, numbers)
    if "profile" not in given:
        _refuse_gaps(document, given, at)
        sources = {**dict.fromkeys(_DEFAULTS, "assumed: Ridgeway's default"), **sources}
        return _checked(document, at, _made, numbers, sources), count(document, given, at, "threads")
    base, whole = _named(document, given, at, above)
    threads = count(document, given, at, "threads", whole)
    if threads != whole:
        base = scaled(base, threads / whole, f"from {whole} to {threads} threads")
    made = {**base.peaks, **{f: getattr(base, f) for f, _ in UNITS.values()}, **numbers}
    return _checked(document, at, _made, made, {**base.sources, **sources}), threads


def _named(
    document: Document, given: Mapping[str, Any], at: At, above: tuple[str, ...]
) -> tuple[Profile, int]:
    name = given["profile"]
    known = sorted(p.stem for p in DEVICES.glob("*.yaml"))
    here = (*at, "profile")
    if name not in known:
        raise document.error(here, f"no device profile {name!r}{near_miss(str(name), known)}")
    if name in above:
        raise document.error(here, f"{name!r} names itself, by way of {', '.join(above)}")
    file = DEVICES / f"{name}.yaml"
    other = parse(read(file), f"devices/{file.name}", {})
    base, whole = profile(other, other.data, (), (*above, name))
    if "scale" not in given:
        return base, whole
    place = (*at, "scale")
    share = mapping(document, given["scale"], place, ("by", "because"), ("by", "because"))
    by = number(document, share["by"], (*place, "by"))
    return _checked(document, place, scaled, base, by, str(share["because"])), whole


def read(path: Path) -> str:
    """The text of a machine or device file. Raises RidgewayError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RidgewayError(f"cannot read machine file {str(path)!r}: {error}") from None


# the parts of an entry


def _numbers(document: Document, given: Mapping[str, Any], at: At) -> dict[str, float]:
    """Dtypes and fields of Profile to SI numbers."""
    found = {}
    for dtype, value in mapping(document, given.get(PEAKS, {}), (*at, PEAKS), tuple(BYTES)).items():
        found[dtype] = _si(number(document, value, (*at, PEAKS, dtype)), 1e12)
    for key in given:
        if key in UNITS:
            name, unit = UNITS[key]
            found[name] = _si(number(document, given[key], (*at, key)), unit)
    return found


def _si(value: float, unit: float) -> float:
    return float(f"{value * unit:.12g}")


def _sources(
    document: Document, given: Mapping[str, Any], at: At, numbers: Mapping[str, float]
) -> dict[str, str]:
    """Dtypes and fields to the sources of their numbers: one for each number that the entry gives."""
    keys = {field: key for key, (field, _) in UNITS.items()}
    wanted = {keys.get(name, name): name for name in numbers}
    place = (*at, "sources")
    texts = mapping(document, given.get("sources", {}), place, tuple(wanted))
    for key in wanted:
        if key not in texts:
            here = (*at, PEAKS, key) if key in BYTES else (*at, key)
            raise document.error(here, "it has no source: say under `sources` where the number comes from")
        if not tells(texts[key]):
            message = f"a source begins with one of {PROVENANCE} and says more; found {texts[key]!r}"
            raise document.error((*place, key), message)
    return {wanted[key]: str(text) for key, text in texts.items()}


def tells(text: Any) -> bool:
    """Whether a source says of which kind it is, and more."""
    kind = next((k for k in PROVENANCE if isinstance(text, str) and text.startswith(k)), "")
    return bool(kind) and len(text[len(kind) :].strip(" :,;")) >= _SAY_MORE


def _refuse_gaps(document: Document, given: Mapping[str, Any], at: At) -> None:
    lost = [key for key in _NEEDED if key not in given]
    if lost:
        raise document.error(
            at, f"a device needs {', '.join(lost)}, or `profile:` with the name of a shipped one"
        )


def _made(numbers: Mapping[str, float], sources: Mapping[str, str]) -> Profile:
    peaks = {k: v for k, v in numbers.items() if k in BYTES}
    rest = {k: v for k, v in numbers.items() if k not in BYTES}
    return Profile(peaks=peaks, sources=sources, **rest)


def _checked(document: Document, at: At, make: Any, *args: Any) -> Profile:
    """What `make` gives, its PlanError told with the place."""
    try:
        found: Profile = make(*args)
    except PlanError as error:
        raise document.error(at, str(error)) from None
    return found


# plain values


def mapping(
    document: Document, data: Any, at: At, allowed: Collection[str] | None, needed: Collection[str] = ()
) -> dict[str, Any]:
    """`data`, which must hold only `allowed` keys (None: any), and all that are `needed`."""
    if not isinstance(data, dict):
        raise document.error(at, f"expected keys and values, found {data!r}")
    for key in data:
        if allowed is not None and key not in allowed:
            raise document.error(
                (*at, key), f"unknown key{near_miss(key, allowed) or '; none may stand here'}"
            )
    lost = [key for key in needed if key not in data]
    if lost:
        raise document.error(at, f"the key {lost[0]!r} is missing")
    return data


def listed(document: Document, data: Any, at: At) -> list[Any]:
    """`data`, which must be a list."""
    if not isinstance(data, list):
        raise document.error(at, f"expected a list, found {data!r}")
    return data


def number(document: Document, value: Any, at: At) -> float:
    """`value`, which must be a number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise document.error(at, f"expected a number of 0 or more, found {value!r}")
    return float(value)


def count(document: Document, data: Mapping[str, Any], at: At, key: str, default: int = 1) -> int:
    """The whole number above 0 under `key`."""
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise document.error((*at, key), f"expected a whole number above 0, found {value!r}")
    return value


# the way back


def entry(profile: Profile) -> dict[str, Any]:
    """The keys of an entry that `profile` reads back equal, if its numbers have at most twelve digits."""
    sources = {d: told(source(profile, d)) for d in profile.peaks}
    sources |= {key: told(source(profile, field)) for key, (field, _) in UNITS.items()}
    peaks = {d: _written(v, 1e12) for d, v in profile.peaks.items()}
    rest = {key: _written(getattr(profile, field), unit) for key, (field, unit) in UNITS.items()}
    return {PEAKS: peaks, **rest, "sources": sources}


def _written(value: float, unit: float) -> float:
    return float(f"{value / unit:.15g}")


def told(text: str) -> Any:
    """A source as it is written: one that says too little is an assumption."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if not tells(text):
        text = f"assumed: told as {text!r}" if text else "assumed: nobody has said where it comes from"
    full = escape(text)
    return full if full.isprintable() else DoubleQuotedScalarString(full)
