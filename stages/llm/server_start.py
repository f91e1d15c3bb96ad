"""Starts a server on a device, waits until it is healthy, and stops it.

What it says goes into a file beside the cache, whose end is quoted when it does not come up. It ends with
the process that started it, however that ends (see `server_watch`).

When not: where a server runs already, give its address; a second one would need the memory twice.
Deliberately not here: several GPUs for one server, several servers for one stage, restarts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.machine import Device
from pipeline.models import cache_dir
from stages.llm import server_watch
from stages.llm.server_command import KINDS, Launch, command, executable
from stages.llm.server_http import DROPPED, address, opened

__all__ = ["Running", "start"]

START_SECONDS = 900.0
"""Until a server is healthy. vLLM compiles for minutes; weights of 100 GB take as long to read."""

STOP_SECONDS = 10.0
"""From the request to end until it is killed."""

_ANSWER_SECONDS = 5.0
_LINES = 12


class Running:
    """A server that was started, and its `url`. It stops when this is collected, or when the program ends."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, url: str, log: Path) -> None:
        self.url = url
        self.process = process
        """What watches over it; both end together."""
        self._log = log
        self.stop = weakref.finalize(self, _stop, process, pipe, log, os.getpid())
        """End it and all that it started. A second call does nothing."""

    def check(self) -> None:
        """Raise ModelError, which quotes the last that it said, where it has ended."""
        status = self.process.poll()
        if status is not None:
            raise ModelError(
                f"the server has ended (exit status {status}); {self._log} says why, its last lines:"
                f"{self._last()}"
            )

    def wait(self, seconds: float) -> None:
        """Until it is healthy. Raises ModelError where it ends before, or takes longer than `seconds`."""
        end, pause = time.monotonic() + seconds, 0.05
        while not _healthy(self.url):
            self.check()
            if time.monotonic() >= end:
                late = f"the server was not healthy within {seconds:g} seconds"
                raise ModelError(f"{late}; its last lines:{self._last()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(pause)
            pause = min(2 * pause, 1.0)
        self.check()  # else it is another that answers at its port

    def _last(self) -> str:
        lines = self._log.read_bytes()[-8192:].decode("utf-8", "replace").splitlines()
        return "".join(f"\n  {line.rstrip()}" for line in lines[-_LINES:] if line.strip()) or " none"


def start(
    launch: Launch,
    device: Device,
    seconds: float = START_SECONDS,
    environ: Mapping[str, str] = os.environ,
) -> Running:
    """A healthy server on `device`. Raises ModelError where there is no program, or it does not come up."""
    program, port = _program(launch.kind, environ), _free_port()
    argv, env = command(launch, program, device, port, environ)
    log = cache_dir() / "servers" / f"{KINDS[launch.kind].program}-{port}.log"
    running = _launched(argv, env, f"http://127.0.0.1:{port}", log)
    try:
        running.wait(seconds)
    except BaseException:
        running.stop()
        raise
    return running


def _program(kind: str, environ: Mapping[str, str]) -> str:
    found = executable(kind, environ)
    if found is None:
        variable, name = KINDS[kind]
        given = environ.get(variable)
        why = f"{variable} names {given!r}, which is no program" if given else f"no {name!r} on the path"
        raise ModelError(
            f"cannot start {kind}: {why}; install it in an environment of its own, and set {variable} to its "
            f"program"
        )
    return found


def _launched(argv: Sequence[str], env: Mapping[str, str], url: str, log: Path) -> Running:
    """A server that begins to start, watched over."""
    log.parent.mkdir(parents=True, exist_ok=True)
    theirs, ours = os.pipe()
    try:
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", server_watch.__file__, str(theirs), str(STOP_SECONDS), *argv],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # Ctrl-C is for us: we decide when it ends
            )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return Running(process, ours, url, log)


def _healthy(url: str) -> bool:
    """Whether the server answers: at /health, or where it has none, at /v1/models."""
    end = time.monotonic() + _ANSWER_SECONDS

    def left() -> float:
        return max(end - time.monotonic(), 0.001)

    try:
        with opened(address(url), "/health", left) as reply:
            status = reply.status
        if status == 404:
            with opened(address(url), "/v1/models", left) as reply:
                status = reply.status
    except DROPPED:
        return False
    return status == 200


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _stop(process: subprocess.Popen[bytes], pipe: int, log: Path, owner: int) -> None:
    """Close the pipe, and wait. What a server said stays only where it ended by itself."""
    if os.getpid() != owner:  # a forked copy of the process that started it
        return
    ended = process.poll() is not None
    os.close(pipe)
    try:
        process.wait(2 * STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # and the kernel kills the server
        process.wait()
    if not ended:
        log.unlink(missing_ok=True)
