"""Who a process is, so that nobody mistakes another one for it after its death.

An identity is `boot:namespace:pid:ticks`: the kernel's boot id, the inode of the pid namespace, the process
id in it, and when the process started, in clock ticks since the boot (field 22 of /proc/<pid>/stat). Process
ids come round again; the four together do not.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def own() -> str:
    """The identity of this process."""
    return _own(os.getpid())


def same_host(identity: str) -> bool:
    """Whether the process shares our kernel and pid namespace, so that its /proc entries are ours too."""
    return identity.split(":")[:2] == own().split(":")[:2]


def is_alive(identity: str) -> bool:
    """Whether the process still runs. One that another namespace hides from us counts as alive."""
    parts = identity.split(":")
    if len(parts) != 4 or parts[0] != _boot():
        return False
    return not same_host(identity) or _ticks(parts[2]) == parts[3]


@cache
def _own(pid: int) -> str:
    return f"{_boot()}:{os.stat('/proc/self/ns/pid').st_ino}:{pid}:{_ticks(str(pid))}"


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _ticks(pid: str) -> str | None:
    """When a process started; None where it is dead, also where its parent has not taken note of it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # a program's name, in front of it, may hold anything
    return None if state in "ZX" else rest[18]
