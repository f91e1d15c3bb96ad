"""What this process and its children really take: proportional memory, and what their cgroup has counted.

RSS counts a shared page in every process that maps it, so that three readers of one arena seem to hold it
three times, and a scheduler that goes by RSS pauses and kills for nothing. PSS gives each a part of the page
(Linux, Documentation/filesystems/proc.rst); the parts add up to the page. Functions that read text are pure.

When not: in a tight loop. The kernel walks all pages of a process for its PSS: 10 ms for each GiB. The
cgroup is one file, but counts the page cache too, and whoever else is in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Usage", "counters", "family", "groups", "limit_in", "parent_in", "usage"]

_NONE = 1 << 60
"""Where there is no limit, version 1 says 2**63 less a page."""
_V1 = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes")
_V2 = ("memory.current", "memory.peak", "memory.max")


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a process and its descendants, and of their cgroup; None where the system does not say.

    `rss` counts a page once for each process, `pss` once for all that share it. `cgroup`: what is counted
    now; `peak`: the most so far; `limit`: the tightest of the cgroup and those above it. `said`: what could
    not be read, and what was taken instead.
    """

    pss: int
    rss: int
    cgroup: int | None = None
    limit: int | None = None
    peak: int | None = None
    said: tuple[str, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """What RSS counts too much: pages that others, in this family or outside, have too."""
        return self.rss - self.pss


def counters(text: str) -> dict[str, int]:
    """Bytes by name, of /proc/<pid>/smaps_rollup (`Pss`, `Rss`...) or status (`VmRSS`, `RssShmem`...)."""
    lines = (line.split() for line in text.splitlines())
    return {line[0][:-1]: int(line[1]) * 1024 for line in lines if len(line) == 3 and line[2] == "kB"}


def parent_in(stat: str) -> int:
    """The parent's number, of /proc/<pid>/stat. The name before it may hold blanks and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def family(pid: int, parents: Mapping[int, int]) -> tuple[int, ...]:
    """A process and its descendants, itself first, of the parent of each process."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:
        found += children.get(member, ())
    return tuple(found)


def groups(text: str) -> tuple[bool, str]:
    """Whether memory is counted by cgroup version 2, and the path of the group, of /proc/<pid>/cgroup.

    Where both versions are mounted, memory belongs to version 1 if that names it.
    """
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return False, path
    return True, next((path for number, _, path in lines if number == "0"), "/")


def limit_in(text: str) -> int | None:
    """Bytes of a limit file; None for `max`, and for the number that means it in version 1."""
    number = text.strip()
    return int(number) if number.isdigit() and int(number) < _NONE else None


def usage(pid: int | None = None, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> Usage:
    """What a process (None: this one) and its descendants take now. Those that end meanwhile count nothing.

    Where PSS is not to be had (another user's process, an old kernel), RSS less its shared memory is taken.
    """
    pid = os.getpid() if pid is None else pid
    members = family(pid, _parents(proc))
    taken = [_member(proc / str(member)) for member in members]
    cgroup, peak, limit = _cgroup(proc / str(pid), mount)
    said = [
        f"no PSS of process {m}: RSS without shared memory"
        for m, t in zip(members, taken, strict=True)
        if t[2]
    ]
    if cgroup is None:
        said.append("no memory cgroup: only processes are counted")
    return Usage(sum(t[0] for t in taken), sum(t[1] for t in taken), cgroup, limit, peak, tuple(said))


def _member(folder: Path) -> tuple[int, int, bool]:
    """PSS, RSS, and whether PSS was only estimated."""
    rollup = counters(_read(folder / "smaps_rollup"))
    if "Pss" in rollup:
        return rollup["Pss"], rollup["Rss"], False
    status = counters(_read(folder / "status"))
    rss = status.get("VmRSS", 0)
    return rss - status.get("RssShmem", 0), rss, rss > 0


def _parents(proc: Path) -> dict[int, int]:
    stats = {int(folder.name): _read(folder / "stat") for folder in proc.iterdir() if folder.name.isdigit()}
    return {pid: parent_in(stat) for pid, stat in stats.items() if stat}


def _cgroup(process: Path, mount: Path) -> tuple[int | None, int | None, int | None]:
    """Bytes now, at most so far, and the limit. In a container the group's own folder may be the mount."""
    second, path = groups(_read(process / "cgroup"))
    root = mount if second else mount / "memory"
    names = _V2 if second else _V1
    inner = root / path.lstrip("/")
    inner = inner if inner.is_dir() else root
    now, peak = (limit_in(_read(inner / name)) for name in names[:2])
    return (
        now,
        peak,
        _tightest(limit_in(_read(f / names[2])) for f in (inner, *inner.parents) if f.is_relative_to(root)),
    )


def _tightest(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _read(path: Path) -> str:
    """The text of a file of the kernel; empty where it, or its process, is gone or not ours to read."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
