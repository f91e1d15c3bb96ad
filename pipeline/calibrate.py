"""Measuring this machine, once: profiles of its CPU and CUDA devices, and the links between them.

`measured` looks in the cache first; what it finds there holds for one fingerprint of hardware and versions.
The CPU is measured at 1, 2, 4, ... threads, so that lanes of any width have a profile (`Machine.by_threads`).
Power and prices cannot be measured: they stay as they are. When not to: for a machine that is not this one,
declare it (`pipeline.machine_file`); a busy machine is measured as busy as it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from pipeline.bench import Bench, CpuBench, CudaBench, Here
from pipeline.errors import RidgewayError
from pipeline.fingerprint import capabilities, facts, fingerprint
from pipeline.kernels import Effort
from pipeline.machine import HOST, NOMINAL, Device, Link, Machine, Profile
from pipeline.machine_file import HANDOFF, dump, load
from pipeline.models import cache_dir
from pipeline.profiles import saturation

__all__ = ["cache_path", "calibrate", "counts", "known", "measured"]

_HOW = {
    "bandwidth": "sum over a buffer",
    "copy": "copy of a buffer",
    "memory": "as the system says",
    "scalar": "turns of the loop in pipeline.kernels",
    "overhead": "handoff to a thread",
    "load": "file read back",
    "together": "product and sum side by side, against their bound",
}
_LOG = logging.getLogger("ridgeway")


# cached or measured


def known(machine: Machine, cache: Path | None = None) -> Machine | None:
    """`machine` with what was measured on this hardware before; None where nothing was, or not all of it."""
    path = cache_path(machine, cache)
    if not path.is_file():
        return None
    try:
        return fitted(machine, load(path))
    except RidgewayError as error:
        _LOG.warning("measurements in %s cannot be read, so they are made again: %s", path, error)
        return None


def measured(
    machine: Machine,
    cache: Path | None = None,
    log: logging.Logger = _LOG,
    effort: Effort | None = None,
    task_seconds: float = HANDOFF,
    again: bool = False,
) -> Machine:
    """`machine` as it was measured: from the cache, else (or where `again`) now, in about 12 s, and kept."""
    found = None if again else known(machine, cache)
    if found is not None:
        return found
    began = time.monotonic()
    found = calibrate(machine, effort, task_seconds, folder=cache)
    took, path = time.monotonic() - began, cache_path(machine, cache)
    try:
        dump(found, path)
        log.info("measured this machine in %.0f s; kept in %s", took, path)
    except OSError as error:
        log.info("measured this machine in %.0f s; it cannot be kept in %s: %s", took, path, error)
    return found


def fitted(machine: Machine, found: Machine) -> Machine | None:
    """`machine` with the profiles of `found`, by threads or by name; None where a CUDA device is missing."""
    if {d.name for d in machine.devices if d.kind == "cuda"} - set(found.names):
        return None
    pools = {HOST, *(d.pool for d in machine.devices)}
    links = {pair: link for pair, link in found.links.items() if set(pair) <= pools}
    devices = tuple(replace(d, profile=_profile_of(d, machine, found)) for d in machine.devices)
    links = {**machine.links, **links}
    return replace(machine, devices=devices, links=links, by_threads=found.by_threads, handoff=found.handoff)


def _profile_of(device: Device, machine: Machine, found: Machine) -> Profile:
    if device in machine.lanes:
        return found.lane_profile(device.threads)
    return found.device(device.name).profile if device.kind == "cuda" else device.profile


def cache_path(machine: Machine, cache: Path | None = None) -> Path:
    """Where the measurements of this hardware are kept; `cache`: the cache folder."""
    return (cache or cache_dir()) / "machines" / f"{fingerprint(facts(machine))}.yaml"


# measuring


def calibrate(
    machine: Machine,
    effort: Effort | None = None,
    task_seconds: float = HANDOFF,
    bench: Bench | None = None,
    folder: Path | None = None,
) -> Machine:
    """`machine` with its CPU lanes, CUDA devices and links measured; other devices stay as declared.

    `task_seconds`: what the executor takes from batch to batch, see `Machine.handoff`; `bench`: the
    hardware, by default this process's;
    `folder`: where a file is read from, to see how fast weights load.
    """
    here = bench or Here(machine, effort or Effort(), folder or cache_dir())
    able = " ".join(capabilities(here.facts["flags"].split())) or "no vector instructions told"
    told = f"{here.facts['cpu']} ({able}), torch {here.facts['torch']}, {time.strftime('%Y-%m-%d')}"
    host = here.host()
    try:
        common = _common(host)
        curve = _curve(machine, here.cores, host, common, told)
    finally:
        host.close()
    benches = {d.name: here.cuda(int(d.name[5:])) for d in machine.devices if d.kind == "cuda"}
    links = _links(benches, told)
    found = dict(_cuda(machine, benches, links, common, told))
    devices = tuple(replace(d, profile=found.get(d.name, d.profile)) for d in machine.devices)
    links = {**machine.links, **links}
    whole = replace(machine, devices=devices, links=links, by_threads=curve, handoff=_short(task_seconds))
    return fitted(machine, whole) or whole


def counts(most: int) -> tuple[int, ...]:
    """Threads at which a CPU is measured: the powers of two up to `most`, and `most`."""
    powers = [1 << i for i in range(most.bit_length())]
    return tuple(sorted({*powers, most}))


def _common(host: CpuBench) -> dict[str, float]:
    """What is the same for all devices: each is driven by a Python process of this host."""
    found = {"scalar": host.turns(), "overhead": host.handoff()}
    try:
        return found | {"load": host.load()}
    except OSError:
        return found


def _curve(
    machine: Machine, most: int, host: CpuBench, common: Mapping[str, float], told: str
) -> dict[int, Profile]:
    """The CPU's profile by number of threads."""
    at = counts(most)
    peaks = {n: {d: host.product(d, n) for d in host.dtypes} for n in at}
    reads, copies = {n: host.read(n) for n in at}, {n: host.copy(n) for n in at}
    fastest = max(peaks[most], key=lambda d: peaks[most][d])
    rest = {
        **common,
        "together": host.together(fastest, most),
        "memory": float(host.memory or NOMINAL.memory),
    }
    found = {}
    for n in at:
        numbers = {**rest, "bandwidth": reads[n], "copy": copies[n]}
        note = f"{n} of {most} threads, {told}, {host.note}; reading saturates at {saturation(reads)}"
        found[n] = _profile(_kept(machine, n / most), peaks[n], numbers, note)
    return found


def _kept(machine: Machine, share: float) -> Profile:
    """The declared power and price of the whole CPU, of which a lane has a share."""
    lanes = machine.lanes
    base = lanes[0].profile if lanes else NOMINAL
    watts, price = (sum(getattr(d.profile, k) for d in lanes) for k in ("idle_watts", "price"))
    return replace(base, idle_watts=_short(watts * share), price=_short(price * share))


def _cuda(
    machine: Machine,
    benches: Mapping[str, CudaBench],
    links: Mapping[tuple[str, str], Link],
    common: Mapping[str, float],
    told: str,
) -> list[tuple[str, Profile]]:
    found = []
    for name, one in benches.items():
        peaks = {d: one.product(d) for d in one.dtypes}
        load_ = min(common.get("load", NOMINAL.load), links[HOST, name].bandwidth)
        numbers = {"bandwidth": one.read(), "copy": one.copy(), "memory": float(one.memory), **common}
        numbers |= {"together": one.together(max(peaks, key=lambda d: peaks[d])), "load": load_}
        numbers["overhead"] += one.handoff()
        found.append((name, _profile(machine.device(name).profile, peaks, numbers, f"{one.note}; {told}")))
    return found


def _links(benches: Mapping[str, CudaBench], told: str) -> dict[tuple[str, str], Link]:
    """Each device with the host, and each pair of devices."""
    found = {(HOST, name): one.to_host() for name, one in benches.items()}
    found |= {(a, b): benches[a].to(benches[b]) for a, b in combinations(benches, 2)}
    text = f"measured: {told}, the slower way between pinned buffers"
    return {pair: Link(_short(k.bandwidth), _short(k.latency), text) for pair, k in found.items()}


def _profile(base: Profile, peaks: Mapping[str, float], numbers: Mapping[str, float], told: str) -> Profile:
    """`base` with what was measured, to four digits, and where it comes from."""
    short = {k: v if k == "memory" else _short(v) for k, v in numbers.items()}
    sources = {k: v for k, v in base.sources.items() if k != "*"}
    unknown = [
        k for k in ("joules_per_flop", "joules_per_byte", "idle_watts", "price") if not getattr(base, k)
    ]
    sources |= dict.fromkeys(unknown, "assumed: unknown, and counted as 0")
    sources |= {k: f"measured: {_HOW.get(k, 'matrix product')}, {told}" for k in (*peaks, *short)}
    return replace(base, peaks={d: _short(v) for d, v in peaks.items()}, sources=sources, **short)


def _short(value: float) -> float:
    """Four digits: a measurement has no more, and a file keeps them as they are."""
    return float(f"{value:.4g}")
