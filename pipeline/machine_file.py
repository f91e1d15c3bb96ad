"""Machines that are declared in files: `configs/machines/*.yaml`, or a file of one's own.

    name: two-gpus
    devices:
      - {name: cpu, threads: 16, lanes: 2, profile: sapphire-rapids-16}
      - {name: cuda, count: 2, profile: rtx-4090, memory_gib: 23, sources: {memory_gib: "measured: ..."}}
    links:
      - {between: [host, cuda], bandwidth_gbs: 25, latency_us: 10, source: "scaled: ..."}

`pipeline.profile_file` says what stands in an entry of `devices` besides `name`, `count`, `lanes` (equal
parts of the threads), `cores` and `share`. Lanes that name the same core never run at once: a wide lane
beside narrow ones is for the policy `modes`. In a link, `cuda` means each of them, and `[cuda, cuda]` each
pair. `by_threads` holds the measured CPU by number of threads; `dump` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.document import Document, escape, parse
from pipeline.document import Path as At
from pipeline.errors import PlanError
from pipeline.lookup import near_miss
from pipeline.machine import HOST, Device, Link, Machine, Profile
from pipeline.profile_file import DEVICES, KEYS, count, entry, listed, mapping, number, profile, read, told
from pipeline.profile_file import tells as says_where
from pipeline.profiles import provenance, scaled

__all__ = ["COLUMNS", "HANDOFF", "card", "describe", "dump", "dumps", "load", "loads", "shipped"]

FOLDER = DEVICES.parent
_DEVICE = ("name", "count", "lanes", "cores", "share")
_LINK = ("between", "bandwidth_gbs", "latency_us", "source")

COLUMNS = ("device", "threads", "memory", "peaks", "reads", "ridge point", "source")
"""What the rows of `describe` hold."""


def shipped() -> tuple[str, ...]:
    """Names of the machines that come with Ridgeway."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml")))


def load(name: str | Path) -> Machine:
    """The machine in a file, or the shipped one of that name.

    Raises PlanError for what is neither, and ConfigError, which begins with `file:line`, for what is wrong.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return loads(read(path), str(path))
    if str(name) in shipped():
        return loads(read(FOLDER / f"{name}.yaml"), f"machines/{name}.yaml")
    known = ", ".join(shipped())
    hint = near_miss(str(name), shipped()).partition("; known")[0]
    raise PlanError(f"no machine {str(name)!r}, and no such file{hint}; give a file, or one of: {known}")


_MACHINE = ("name", "devices", "links", "by_threads", "handoff_ms")
HANDOFF = 6e-3
"""Seconds of `Machine.handoff` where a file does not say: Dask in one process (2-core VM, 2026-11)."""


def card(name: str) -> Profile:
    """The shipped profile of a device. Raises RidgewayError with the near miss."""
    return loads(f"devices: [{{name: cuda, profile: {name}}}]", name).devices[0].profile


def loads(text: str, name: str) -> Machine:
    """The machine in `text`; `name` stands for the file in errors. See `load`."""
    document = parse(text, name, {})
    data = mapping(document, document.data, (), _MACHINE, ("devices",))
    taken: dict[str, int] = {}
    devices: list[Device] = []
    for i, item in enumerate(listed(document, data["devices"], ("devices",))):
        devices += _devices(document, item, ("devices", str(i)), taken)
    curve = dict(_curve(document, data.get("by_threads", {})))
    try:
        called = str(data.get("name") or Path(name).stem)
        machine = Machine(tuple(devices), {}, called, curve, _handoff(document, data))
    except PlanError as error:
        raise document.error(("devices",), str(error)) from None
    return replace(machine, links=dict(_links(document, data.get("links", []), machine)))


def _handoff(document: Document, data: Any) -> float:
    found = data.get("handoff_ms", HANDOFF * 1e3)
    if not isinstance(found, int | float) or isinstance(found, bool) or not found >= 0:
        raise document.error(("handoff_ms",), f"expected milliseconds of 0 or more, found {found!r}")
    return found / 1e3


def _curve(document: Document, data: Any) -> Iterator[tuple[int, Profile]]:
    for key, item in mapping(document, data, ("by_threads",), None).items():
        at = ("by_threads", key)
        if not key.isdecimal() or int(key) < 1:
            raise document.error(at, f"expected a number of threads, found {key!r}")
        yield int(key), profile(document, item, at)[0]


def _devices(document: Document, item: Any, at: At, taken: dict[str, int]) -> Iterator[Device]:
    """The devices of one entry; `taken` counts those of each kind, to number those without a number."""
    data = mapping(document, item, at, (*_DEVICE, *KEYS), ("name",))
    found, threads = profile(document, {k: v for k, v in data.items() if k in KEYS}, at)
    lanes = count(document, data, at, "lanes")
    if threads % lanes:
        raise document.error((*at, "lanes"), f"{threads} threads cannot be divided into {lanes} equal lanes")
    wide = threads // lanes
    if lanes > 1:
        found = scaled(found, 1 / lanes, f"{wide} of {threads} threads", ("memory",))
    cores = _cores(document, data, at, threads)
    kind, _, own = str(data["name"]).partition(":")
    for i in range(lanes * count(document, data, at, "count")):
        number_ = taken.get(kind, 0)
        taken[kind] = number_ + 1
        name = f"{kind}:{own}" if own else f"{kind}:{number_}"
        yield Device(name, wide, found, cores[i * wide : (i + 1) * wide], str(data.get("share", "")))


def _cores(document: Document, data: Mapping[str, Any], at: At, threads: int) -> tuple[int, ...]:
    place = (*at, "cores")
    cores = tuple(int(number(document, c, place)) for c in listed(document, data.get("cores", []), place))
    if cores and len(set(cores)) != threads:
        raise document.error(place, f"expected {threads} cores, one for each thread, found {list(cores)}")
    return cores


def _links(document: Document, data: Any, machine: Machine) -> Iterator[tuple[tuple[str, str], Link]]:
    for i, item in enumerate(listed(document, data, ("links",))):
        at = ("links", str(i))
        given = mapping(document, item, at, _LINK, _LINK)
        bandwidth = float(f"{number(document, given['bandwidth_gbs'], (*at, 'bandwidth_gbs')) * 1e9:.12g}")
        latency = float(f"{number(document, given['latency_us'], (*at, 'latency_us')) * 1e-6:.12g}")
        if not bandwidth:
            raise document.error((*at, "bandwidth_gbs"), "expected a number above 0, found 0")
        if not says_where(given["source"]):
            raise document.error((*at, "source"), f"expected where it comes from, found {given['source']!r}")
        for pair in _pairs(document, given["between"], (*at, "between"), machine):
            yield pair, Link(bandwidth, latency, given["source"])


def _pairs(document: Document, data: Any, at: At, machine: Machine) -> list[tuple[str, str]]:
    """The pairs of pools that `[a, b]` means, each once."""
    ends = listed(document, data, at)
    if len(ends) != 2:
        raise document.error(at, f"expected two ends, such as [host, cuda], found {data!r}")
    pools = {HOST: HOST, **{d.pool: d.kind for d in machine.devices}}
    a, b = ([p for p, kind in pools.items() if str(end) in (p, kind)] for end in ends)
    for end, found in zip(ends, (a, b), strict=True):
        if not found:
            raise document.error(at, f"no device has {end!r}{near_miss(str(end), [*pools, *pools.values()])}")
    return list({tuple(sorted(pair)): pair for pair in product(a, b) if pair[0] != pair[1]}.values())


# the way back


def dumps(machine: Machine) -> str:
    """The file of a machine: `loads(dumps(machine), ...)` is equal, in its profiles to twelve digits."""
    from ruamel.yaml import YAML

    out = StringIO()
    yaml = YAML()
    yaml.width = 110
    data: dict[str, Any] = {"name": escape(machine.name), "devices": [_device(d) for d in machine.devices]}
    if machine.links:
        data["links"] = [_link(pair, link) for pair, link in machine.links.items()]
    data["handoff_ms"] = float(f"{machine.handoff * 1e3:.6g}")
    if machine.by_threads:
        data["by_threads"] = {str(n): entry(p) for n, p in sorted(machine.by_threads.items())}
    yaml.dump(data, out)
    return out.getvalue()


def dump(machine: Machine, path: Path) -> None:
    """Write the file of a machine: whole or not at all, so that a reader never sees half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(dumps(machine), encoding="utf-8")
    half.replace(path)


def _device(device: Device) -> dict[str, Any]:
    found: dict[str, Any] = {"name": device.name, "threads": device.threads}
    found |= {"cores": list(device.cores)} if device.cores else {}
    found |= {"share": device.share} if device.share else {}
    return found | entry(device.profile)


def _link(pair: tuple[str, str], link: Link) -> dict[str, Any]:
    numbers = {"bandwidth_gbs": link.bandwidth / 1e9, "latency_us": link.latency * 1e6}
    short = {k: float(f"{v:.15g}") for k, v in numbers.items()}
    return {"between": list(pair), **short, "source": told(link.source)}


# for people


def describe(machine: Machine) -> list[tuple[str, ...]]:
    """A row for each device, under `COLUMNS`; what is measured comes first, apart from what is not."""
    return [_row(d) for d in sorted(machine.devices, key=lambda d: provenance(d.profile) != "measured")]


def _row(device: Device) -> tuple[str, ...]:
    p = device.profile
    peaks = ", ".join(f"{dtype} {_flops(value)}" for dtype, value in p.peaks.items())
    ridge = f"{p.ridge(p.auto()):.0f} FLOP/B in {p.auto()}"
    reads = f"{p.bandwidth / 1e9:.4g} GB/s"
    return device.name, str(device.threads), f"{p.memory / 2**30:.4g} GiB", peaks, reads, ridge, provenance(p)


def _flops(value: float) -> str:
    return f"{value / 1e12:.4g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.4g} GFLOP/s"
