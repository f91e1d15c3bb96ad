"""What this hardware and its software are, as text: measurements hold as long as none of it changes.

Where it is looked up is an argument, so that machines can be made up. torch is imported only where there
are CUDA devices; its version is read without.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.machine import Machine

__all__ = [
    "cache_bytes",
    "cuda_facts",
    "facts",
    "fingerprint",
    "flags",
    "free_bytes",
    "host_facts",
    "memory_bytes",
]

FORMAT = "1"
"""Changes when what is measured, or how, changes."""

_MULTIPLY = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "sve", "i8mm", "bf16")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPUINFO, _MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
_DRIVER = Path("/proc/driver/nvidia/version")


def facts(machine: Machine) -> dict[str, str]:
    """All that the speed of this machine depends on. Imports torch where `machine` has CUDA devices."""
    count = sum(d.kind == "cuda" for d in machine.devices)
    found = host_facts(sorted(os.sched_getaffinity(0)))
    if not count:
        return found
    import torch

    return found | cuda_facts(torch, count, os.environ)


def host_facts(cores: Iterable[int], cpuinfo: Path = _CPUINFO, meminfo: Path = _MEMINFO) -> dict[str, str]:
    """The CPU, its instructions, the cores that may be used, the memory, and the versions of software."""
    text = _read(cpuinfo)
    return {
        "format": FORMAT,
        "cpu": _field("model name|CPU part|Model", text) or platform.machine(),
        "model": f"{_field('cpu family', text)}/{_field('model', text)}/{_field('stepping', text)}",
        "flags": " ".join(sorted(flags(cpuinfo))),
        "cores": ",".join(map(str, cores)),
        "memory": str(memory_bytes(meminfo)),
        "python": platform.python_version(),
        "torch": _version("torch"),
    }


def cuda_facts(torch: Any, count: int, environ: Mapping[str, str], driver: Path = _DRIVER) -> dict[str, str]:
    """Name, UUID and memory of each CUDA device; a MIG slice has a UUID of its own."""
    found = {"driver": _read(driver).partition("\n")[0], "visible": environ.get("CUDA_VISIBLE_DEVICES", "")}
    for i in range(count):
        p = torch.cuda.get_device_properties(i)
        uuid = getattr(p, "uuid", "")
        found[f"cuda:{i}"] = f"{p.name} {uuid} {p.total_memory} {p.multi_processor_count}"
    return found


def fingerprint(found: Mapping[str, str]) -> str:
    """16 hex digits that change with any of the facts."""
    text = "\0".join(f"{key}={found[key]}" for key in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """The CPU's capabilities by their names in Linux: `avx512f`, `amx_bf16`, `sve`; read, never assumed."""
    return frozenset(_field("flags|Features", _read(cpuinfo)).split())


def capabilities(names: Collection[str]) -> tuple[str, ...]:
    """Those flags that decide how fast a CPU multiplies."""
    return tuple(flag for flag in _MULTIPLY if flag in names)


def memory_bytes(meminfo: Path = _MEMINFO, limits: Iterable[Path] = _LIMITS) -> int:
    """Bytes of main memory, or the container's limit if that is less; 0 where the system does not say."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read(meminfo), re.MULTILINE)
    known = [int(text) for text in map(_read, limits) if text.strip().isdecimal()]
    return min([int(total[1]) * 1024 if total else 0, *known])


def free_bytes(meminfo: Path = _MEMINFO) -> int:
    """Bytes of main memory that are free, with what the system would give back; 0 where it does not say."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(meminfo), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def cache_bytes(folder: Path = _CACHES) -> int:
    """Bytes of the last-level cache of the first core; 0 where the system does not say."""
    sizes = [_read(path).strip() for path in folder.glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return max(
        (int(s[:-1]) * units[s[-1]] for s in sizes if s[:-1].isdecimal() and s[-1] in units), default=0
    )


def _field(names: str, text: str) -> str:
    """The value of the first line of /proc/cpuinfo that has one of the names."""
    match = re.search(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
