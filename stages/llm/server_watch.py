"""Runs a server, and ends it and everything it has started when whoever asked for it is gone.

A program of its own, run by path and without any other module of ours, so that the server gets the
environment it was meant to get: `python -I server_watch.py DESCRIPTOR GRACE PROGRAM ARGUMENT...`. The
descriptor is the reading end of a pipe; its other end closes with the process that holds it, however that
ends. (A signal of the kernel at the parent's death would come when the *thread* ends that started us.)

The server is the first of a process group; what it starts stays in it. Its end is SIGTERM, and after
`GRACE` seconds SIGKILL, to the group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from typing import NoReturn

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER of linux/prctl.h
_PAUSE = 0.05
_KILLED_SECONDS = 5.0


def _main(descriptor: int, grace: float, command: list[str]) -> int:
    """The server's exit status, as a shell would give it; 0 where we ended it."""
    signal.signal(signal.SIGTERM, _leave)
    _prctl(_SUBREAPER, 1)  # what loses its parent becomes our child, and can be waited for
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_die_with_us)
    group = started.pid
    try:
        while (status := _ended(group)) is None:
            if select.select([descriptor], [], [], _PAUSE)[0]:
                return 0
        return status
    finally:
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILLED_SECONDS)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
            _wait_for_all(group, seconds)


def _ended(process: int) -> int | None:
    """The exit status of our child, None while it runs."""
    found, status = os.waitpid(process, os.WNOHANG)
    if not found:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _wait_for_all(group: int, seconds: float) -> None:
    """Wait until no child of ours is left in the group, at most `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found, _ = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return
        if not found:
            time.sleep(_PAUSE)


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _die_with_us() -> None:
    # We have one thread, so that this is about the process; it is for a SIGKILL that hits us alone.
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
