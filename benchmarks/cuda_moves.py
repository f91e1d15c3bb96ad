"""The ways of `pipeline.buffers` onto a CUDA device, between its users and off again, each timed and checked.

Times are wall clock, the best of five, until the device has done its work. Never run on a GPU so far.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import numpy as np

from pipeline.buffers.cuda import CudaTransport, PeerTransport
from pipeline.buffers.cuda_ipc import CudaIpcTransport
from pipeline.buffers.device import pending, refusal, view
from pipeline.buffers.pinned import Pinned
from pipeline.buffers.staging import Staging
from pipeline.buffers.stations import Stations

REPEAT, ITEMS, VALUE = 5, 12, 3.0
"""Runs of which the best counts; values that go up, through a run and down; what the values hold."""
DEVICE = "cuda:0"


class Absent(Exception):
    """What a path needs is not here."""


Measured = tuple[float, float]
"""Bytes and seconds."""


def best(run: Callable[[], Any]) -> float:
    """The least seconds of a run that ends when the device does, after one that warms up."""
    import torch

    def once() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    return min(once() for _ in range(REPEAT))


def same(tensor: Any, value: float = VALUE) -> None:
    """Raises where a tensor holds anything else."""
    if not bool((tensor == value).all()):
        raise ValueError(f"other values than {value} came out")


def on_device(nbytes: int) -> Any:
    import torch

    return torch.full((nbytes // 4,), VALUE, device=DEVICE)


def array(nbytes: int) -> Any:
    return np.full(nbytes // 4, VALUE, np.float32)


# handing on


def by_event(nbytes: int) -> Measured:
    """To a thread with a stream of its own."""
    import torch

    way, found = CudaTransport(), list[float]()
    given = way.put(on_device(nbytes))

    def there() -> None:
        torch.cuda.set_device(DEVICE)
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            same(way.get(given))
            found.append(best(lambda: way.get(way.put(given.tensors[0].tensor))))

    thread = Thread(target=there)
    thread.start()
    thread.join()
    way.release(given)
    return nbytes, found[0]


def read(pipe: Connection) -> None:
    """The other process: what it sees, then for each handle the seconds until its first element was there."""
    way = CudaIpcTransport()
    pipe.send(view())
    while (given := pipe.recv()) is not None:
        start = time.perf_counter()
        value = way.get(given)
        value[:1].item()
        seconds = time.perf_counter() - start
        pipe.send((seconds, bool((value == VALUE).all())))
        del value


@contextmanager
def reader() -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=read, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield here
        here.send(None)
        process.join(30)
    finally:
        process.kill()
        process.join()


def by_ipc(nbytes: int) -> Measured:
    way, times = CudaIpcTransport(), []
    with reader() as pipe:
        here = view()
        if told := refusal(here, pipe.recv(), here.gpus[0].uuid):
            raise Absent(told)
        for _ in range(REPEAT + 1):
            given = way.put(on_device(nbytes))
            pipe.send(given)
            seconds, right = pipe.recv()
            way.release(given)
            if not right:
                raise ValueError("other values came out")
            times.append(seconds)
    way.collect()
    return nbytes, min(times)


def by_peer(nbytes: int) -> Measured:
    import torch

    if torch.cuda.device_count() < 2:
        raise Absent("one device")
    way = PeerTransport(Staging(Pinned(4 * nbytes)))
    given = way.put(on_device(nbytes))
    with torch.cuda.device(1):
        same(way.get(given))
        seconds = best(lambda: way.get(given))
    way.release(given)
    return nbytes, seconds


# up and down


def up(limit: int) -> Callable[[int], Measured]:
    """By pinned buffers; by pageable memory with a limit of 0."""

    def run(nbytes: int) -> Measured:
        staging, source = Staging(Pinned(limit * nbytes)), array(nbytes)
        same(staging.upload(source, DEVICE).take())
        return nbytes, best(lambda: staging.upload(source, DEVICE))

    return run


def up_registered(nbytes: int) -> Measured:
    staging, fd = Staging(Pinned(0)), os.memfd_create("cuda-paths")
    os.ftruncate(fd, nbytes)
    memory = mmap.mmap(fd, nbytes)
    os.close(fd)
    np.frombuffer(memory, np.float32)[:] = VALUE
    if not staging.register(memory):
        raise ValueError("CUDA would not register the mapping of a memfd")
    same(staging.upload(np.frombuffer(memory, np.float32), DEVICE).take())
    seconds = best(lambda: staging.upload(np.frombuffer(memory, np.float32), DEVICE))
    staging.unregister(memory)
    memory.close()
    return nbytes, seconds


def down(limit: int) -> Callable[[int], Measured]:
    def run(nbytes: int) -> Measured:
        staging, source = Staging(Pinned(limit * nbytes)), pending(on_device(nbytes))
        same(staging.download(source))
        return nbytes, best(lambda: staging.download(source))

    return run


def steps(staging: Staging) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """Upload, a run that takes the device some milliseconds, download."""
    import torch

    def run(given: Any) -> Any:
        torch.cuda.set_device(DEVICE)
        with torch.cuda.stream(staging.stream(DEVICE)):
            tensor = given.take()
            for _ in range(40):
                tensor = tensor * 1.0
            return pending(tensor)

    return lambda a: staging.upload(a, DEVICE), run, lambda given: same(staging.download(given)[-8:])


def in_turn(nbytes: int) -> Measured:
    source = array(nbytes)
    first, run, last = steps(Staging(Pinned(16 * nbytes)))
    return 2 * ITEMS * nbytes, best(lambda: [last(run(first(source))) for _ in range(ITEMS)])


def overlapped(
    items: Sequence[Any],
    upload: Callable[[Any], Any],
    run: Callable[[Any], Any],
    download: Callable[[Any], Any],
) -> list[Any]:
    """Each item through three stations, as on a lane of a run, by three threads with streams of their own."""
    line = Stations(3)

    def through(item: Any) -> Any:
        with line.through() as onward:
            given = upload(item)
            onward()
            made = run(given)
            onward()
            return download(made)

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(through, items))


def at_once(nbytes: int) -> Measured:
    source = array(nbytes)
    first, run, last = steps(Staging(Pinned(16 * nbytes)))
    seconds = best(lambda: overlapped([source] * ITEMS, first, run, last))
    serial = in_turn(nbytes)[1]
    if seconds >= serial:
        raise ValueError(f"{seconds * 1e3:.0f} ms, though one after the other took {serial * 1e3:.0f}")
    return 2 * ITEMS * nbytes, seconds
