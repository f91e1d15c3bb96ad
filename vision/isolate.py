"""Native parsers in child processes that may be killed.

A parser of foreign files can loop for ever, take all memory, or crash; no exception helps against that,
only a process of its own. `Isolated` keeps a few children; each call goes to one of them with a deadline.
A child that overruns or dies is replaced, and only its call fails.

Children are started as programs (`python -m vision.isolate`), never forked and never through
multiprocessing's spawn: the former copies locks that threads hold, the latter runs the user's script
again where it has no main guard. They import what they are asked to call and nothing else. A child ends
when its pipe closes, or by a timer of the kernel when its parent is gone while it is stuck.

Deliberately not here: retries (the scheduler's), shared memory (a page takes a few ms through the pipe).
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from pipeline.errors import RowError
from pipeline.lookup import load

MEMORY = 4 << 30
"""Bytes of address space for each child."""

_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0


@dataclass(slots=True)
class _Child:
    """A running child: its process and our end of its pipe."""

    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]

    def kill(self) -> int:
        """End it now; its exit status as `subprocess` gives it."""
        self.pipe.close()
        self.process.kill()
        return self.process.wait()

    def reap(self) -> str:
        """How it ended by itself, in words."""
        self.pipe.close()
        try:
            status = self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


class Isolated:
    """`count` child processes, started on first use, that call functions with a deadline.

    Threads may share it. It closes when it is collected or when the program ends.
    """

    def __init__(self, count: int = 1, memory: int = MEMORY) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count!r}")
        self.count = count
        self._memory = memory
        self._slots: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(count):
            self._slots.put(None)
        weakref.finalize(self, _close, self._slots, os.getpid())

    def call(self, target: str, *args: Any, seconds: float) -> Any:
        """What the function at `target` ("module:function") returns for `args`, within `seconds`.

        Raises the function's RowError as it was, and RowError "timeout", "memory", "worker died", or
        "bug" for any other exception.
        """
        child = self._slots.get()
        healthy = False
        try:
            child = child or _start(self._memory)
            answer = _ask(child, target, args, seconds)
            healthy = True
        finally:
            if not healthy and child is not None:
                child.kill()
            self._slots.put(child if healthy else None)
        if isinstance(answer, RowError):
            raise answer
        return answer[0]

    def map(self, target: str, calls: Sequence[tuple[Any, ...]], seconds: float) -> list[Any]:
        """`call` for each tuple of arguments, all children at work; a RowError stands in for a result."""

        def one(args: tuple[Any, ...]) -> Any:
            try:
                return self.call(target, *args, seconds=seconds)
            except RowError as error:
                return error

        if self.count == 1 or len(calls) < 2:
            return [one(args) for args in calls]
        with ThreadPoolExecutor(min(self.count, len(calls)), "isolated") as threads:
            return list(threads.map(one, calls))

    def close(self) -> None:
        """End the idle children. A later call starts new ones."""
        _close(self._slots, os.getpid())


def _ask(child: _Child, target: str, args: tuple[Any, ...], seconds: float) -> Any:
    """The child's answer: a one-tuple with the result, or the RowError. Raises RowError where none comes."""
    try:
        child.pipe.send((target, args, seconds + _GRACE_SECONDS))
        if child.pipe.poll(seconds):
            return child.pipe.recv()
    except (EOFError, OSError) as error:
        ending = child.reap()
        raise RowError(
            "worker died", f"the parser crashed ({ending}); the file is damaged or needs too much memory"
        ) from error
    raise RowError(
        "timeout", f"not read within {seconds:g} seconds; raise the stage's `seconds` or remove the file"
    )


def _close(slots: queue.LifoQueue[_Child | None], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the parent does not own the children
        return
    ended = 0
    while True:
        try:
            child = slots.get_nowait()
        except queue.Empty:
            break
        ended += 1
        if child is not None:
            child.kill()
    for _ in range(ended):
        slots.put(None)


def _start(memory: int) -> _Child:
    """A child that is ready to be asked. Raises RuntimeError where Python cannot start."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vision.isolate", str(theirs.fileno()), str(memory)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(),
        )
    child = _Child(process, ours)
    try:
        if ours.poll(_START_SECONDS) and ours.recv() == "ready":
            return child
    except (EOFError, OSError):
        pass
    except BaseException:
        child.kill()
        raise
    raise RuntimeError(f"a parser process did not start (exit status {child.kill()}); see its message above")


def _environment() -> dict[str, str]:
    """Ours, with our import path, and one thread to each child: the children are the parallelism."""
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _serve(pipe: Connection[Any, Any]) -> None:
    """Answer until the pipe closes."""
    pipe.send("ready")
    while True:
        try:
            target, args, seconds = pipe.recv()
        except (EOFError, OSError):
            return
        # The default action of this signal ends the process, even inside native code: nobody may be
        # left to kill a child that is stuck.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            _reply(pipe, _answer(target, args))
        except OSError:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(target: str, args: tuple[Any, ...]) -> Any:
    try:
        return (load(target)(*args),)
    except RowError as error:
        return error
    except MemoryError:
        return RowError("memory", "needs more memory than a parser may take; split the file or lower `dpi`")
    except Exception as error:
        bug = RowError("bug", f"{type(error).__name__}: {error}")
        bug.add_note(traceback.format_exc())
        return bug


def _reply(pipe: Connection[Any, Any], answer: Any) -> None:
    try:
        pipe.send(answer)
    except OSError:
        raise
    except Exception as error:
        pipe.send(RowError("bug", f"the result cannot be sent back: {error}"))


def _main(descriptor: str, memory: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = int(memory) if hard == resource.RLIM_INFINITY else min(int(memory), hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with open(os.devnull, "w") as silence:  # what native libraries say about damaged files
        os.dup2(silence.fileno(), 2)
    with Connection(int(descriptor)) as pipe:
        _serve(pipe)


if __name__ == "__main__":
    _main(*sys.argv[1:])
