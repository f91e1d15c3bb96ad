"""Who still reads what, where the values themselves lie beyond shared memory: one locked byte per value.

The producer has a memfd in which each value has a byte of its own. A reader opens it through the producer's
descriptors and takes a shared lock on that byte (an open file description lock, Linux 3.15); the producer
ends a value only when it gets the exclusive lock. The kernel drops the locks of whoever closes or dies, so
there is nothing to sweep. Numbers are never used twice, so a late reader finds an end and never another
value. When not: for blocks of an arena, whose readers count in the arena itself; a lease here costs a
descriptor.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref

from pipeline.buffers.handles import OwnerGoneError, StaleHandleError
from pipeline.buffers.identity import is_alive, own, same_host

__all__ = ["Claims", "Lease"]

_LIVE, _ENDED = b"\1", b"\0"


class Claims:
    """The values of this process that others may read. `path`: where those open it; `owner`: who we are.

    Not for several threads at once: the owner locks.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("ridgeway-claims")
        self._next = 0
        self.owner = own()
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        weakref.finalize(self, os.close, self._fd)

    def begin(self) -> int:
        """The number of a new value."""
        number = self._next
        os.pwrite(self._fd, _LIVE, number)
        self._next += 1
        return number

    def end(self, number: int) -> bool:
        """Whether nobody reads the value, and from now on nobody can."""
        if not _lock(self._fd, fcntl.F_WRLCK, number):
            return False
        os.pwrite(self._fd, _ENDED, number)
        _lock(self._fd, fcntl.F_UNLCK, number)
        return True


class Lease:
    """This process reads a value until the lease is gone.

    Raises OwnerGoneError where the producer is dead, or not to be reached from here, and StaleHandleError
    where it has ended the value.
    """

    def __init__(self, path: str, owner: str, number: int) -> None:
        if not same_host(owner):
            raise OwnerGoneError(f"process {owner} is not on this host, or in another container")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise OwnerGoneError(
                f"process {owner} is gone, or its descriptors are not ours: {error}"
            ) from error
        self._close = weakref.finalize(self, os.close, fd)
        try:
            self._take(fd, owner, number)
        except BaseException:
            self._close()
            raise

    @staticmethod
    def _take(fd: int, owner: str, number: int) -> None:
        locked = _lock(fd, fcntl.F_RDLCK, number)
        if not is_alive(owner):  # after opening: by then the number of the process was not somebody else's
            raise OwnerGoneError(f"process {owner} is gone, and the value with it")
        if not locked or os.pread(fd, 1, number) != _LIVE:
            raise StaleHandleError(f"value {number} of process {owner} was released before it was read")


def _lock(fd: int, kind: int, number: int) -> bool:
    """Lock a byte, or unlock it, without waiting. `kind`: F_RDLCK, F_WRLCK or F_UNLCK."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0))
    except BlockingIOError:
        return False
    return True
