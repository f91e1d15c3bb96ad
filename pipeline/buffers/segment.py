"""Memory that several processes map: made by its owner, opened by readers, and files of single blocks."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.buffers.handles import OwnerGoneError, Place
from pipeline.buffers.identity import own
from pipeline.buffers.leases import locked
from pipeline.buffers.sweep import remove

_OPEN = """
import fcntl, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
sys.exit(mmap.mmap(fd, 4096)[:4] != b"here")
"""

_POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE`, Linux 5.14."""
_STEP = 16 << 20
_TAKEN = 40
"""Where a segment says that somebody has it: among its first words, of which `leases` uses others."""


def create(nbytes: int, folder: Callable[[], Path]) -> tuple[int, Place]:
    """A segment of zeros, as a descriptor of this process, and where others find it.

    A memfd where they may open our descriptors, else a file in `folder()`. The file gets its disk or memory
    now (raising OSError), since a lack of it later would kill whoever writes; a memfd takes it page by page.
    """
    if attachable():
        fd = _memfd(nbytes)
        return fd, Place("memory", f"/proc/{os.getpid()}/fd/{fd}", own())
    path = folder() / "arena"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError:
        os.close(fd)
        path.unlink()
        raise
    return fd, Place("file", str(path), own())


def open_or_create(backing: Place | None, nbytes: int, folder: Callable[[], Path]) -> tuple[int, Place]:
    """A new segment, or that of another process as ours alone. Raises ValueError where it is in use."""
    if backing is None:
        return create(nbytes, folder)
    fd = attach(backing)
    with locked(fd):  # two may come at once
        ours = os.fstat(fd).st_size == nbytes and not any(os.pread(fd, 64, 0))
        if ours:
            os.pwrite(fd, b"taken", _TAKEN)
    if not ours:
        os.close(fd)
        raise ValueError(f"{backing.path} is in use, or not of {nbytes} bytes")
    return fd, backing


def attach(place: Place) -> int:
    """A descriptor of somebody's segment. Raises OwnerGoneError where it went with its owner."""
    try:
        return os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise OwnerGoneError(f"{place.path} is gone, and {place.owner} with it: compute it again") from error


@cache
def attachable() -> bool:
    """Whether other processes of ours may map a memfd of ours: tried once, by a child that really does.

    Another user, a process that may not be traced and a hidden /proc forbid it.
    """
    fd = _memfd(4096)
    try:
        os.pwrite(fd, b"here", 0)
        command = [sys.executable, "-ISc", _OPEN, f"/proc/{os.getpid()}/fd/{fd}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    finally:
        os.close(fd)


def block_file(folder: str | Path, slot: int, generation: int) -> Path:
    """Where a block is that was moved to disk."""
    return Path(folder) / f"{slot}-{generation}.block"


def write(path: Path, pieces: Sequence[tuple[int, Any]]) -> None:
    """A new file of `pieces` at their offsets. On OSError (no room) nothing is left of it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for start, piece in pieces:
            _write_all(fd, memoryview(piece), start)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def read(path: Path, owner: str) -> memoryview:
    """A file's bytes, mapped. Private: writing them, as torch can, changes nobody else's.

    Raises OwnerGoneError where the file is gone.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise OwnerGoneError(f"{path} is gone, released or swept after {owner} died") from error
    try:
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)


def populate(memory: mmap.mmap, start: int, end: int, wanted: Callable[[], bool] = lambda: True) -> None:
    """Fault pages in for writing, without changing them; nothing on a kernel that cannot.

    `wanted`: asked again and again, whether to go on. By the C library, since `mmap.madvise` has all of
    Python stand still meanwhile.
    """
    address = np.frombuffer(memory, np.uint8).ctypes.data
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for at in range(start, end, _STEP):
        if not wanted() or call(address + at, min(_STEP, end - at), _POPULATE_WRITE):
            return


def give_up(fd: int, folders: Sequence[Path]) -> None:
    """What is left to do for a segment that its owner closed or forgot."""
    os.close(fd)
    for folder in folders:
        remove(folder)


def _memfd(nbytes: int) -> int:
    """Sealed in its size, so that no reader is ever left with pages that are no more."""
    fd = os.memfd_create("ridgeway", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _write_all(fd: int, piece: memoryview, start: int) -> None:
    while piece.nbytes:
        done = os.pwrite(fd, piece, start)
        piece, start = piece[done:], start + done
