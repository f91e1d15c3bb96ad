"""Processes killed at any moment leave nothing behind, and nobody reads anything wrong.

`RIDGEWAY_KILLS` says how many are killed in a run of this file; 40 take a few seconds.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.buffers import segment
from pipeline.buffers.handles import Handle
from pipeline.buffers.leases import DATA
from pipeline.buffers.sweep import sweep
from pipeline.handover import ARENA
from pipeline.shelf import Carry, Shelf, token
from tests.buffer_peers import produce, read

KILLS = int(os.environ.get("RIDGEWAY_KILLS", "40"))
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.buffer_peers", "pytest"])


@dataclass
class Peer:
    """A process and our end of its pipe."""

    process: Any
    pipe: Connection

    def tell(self, name: str, given: object = None) -> None:
        self.pipe.send((name, given))

    def answer(self) -> Any:
        assert self.pipe.poll(30), "no answer"
        return self.pipe.recv()

    def ask(self, name: str, given: object = None) -> Any:
        self.tell(name, given)
        return self.answer()

    def end(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def start(does: Callable[..., None], *given: object) -> Peer:
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=does, args=(theirs, *given))
    process.start()
    theirs.close()
    return Peer(process, ours)


def left() -> tuple[list[str], int]:
    """Our shared memory by name, and how many descriptors we have."""
    return sorted(n for n in os.listdir("/dev/shm") if "ridgeway" in n), len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    start(read).end()  # the server of forks stays
    before = left()
    yield
    assert left() == before
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def pause(rng: random.Random) -> None:
    """So that death comes at any point of what is going on."""
    time.sleep(rng.choice((0, 0, rng.random() * 2e-3)))


def hand_over(producer: Peer, rng: random.Random, values: int) -> list[Handle]:
    return [producer.ask("put", rng.randrange(10**6)) for _ in range(values)]


def test_readers_that_are_killed_hold_nothing(tmp_path: Path) -> None:
    rng = random.Random(1)
    producer = start(produce, tmp_path)
    witness = start(read)
    for _ in range(KILLS // 2):
        reader = start(read)
        handles = hand_over(producer, rng, rng.randrange(1, 8))
        for given in handles:
            reader.tell("get", given)
        for _ in range(rng.randrange(len(handles) + 1)):
            assert reader.answer() == "right"
        pause(rng)
        reader.end()
        assert [witness.ask("get", given) for given in handles] == ["right"] * len(handles)
        used, leased = producer.ask("release")
        assert used == leased
        assert witness.ask("again")
        witness.ask("drop")
        assert producer.ask("release") == (0, 0)
    witness.end()
    producer.end()


def test_what_a_killed_reader_read_is_freed_once_its_death_is_told(tmp_path: Path) -> None:
    descriptor, place = segment.create(DATA + (1 << 20), Path)
    shelf, carry = Shelf(), Carry(ARENA, "run", (place,), 1 << 20, tmp_path)
    values = np.arange(50_000, dtype=np.uint8)
    value: Any = (zlib.crc32(values.tobytes()), values)
    one, other = start(read), start(read)
    for reader in (one, other):
        _, given = shelf.hand(value, carry)
        assert reader.ask("get", given) == "right"
        name = token(given)
        assert name is not None
        shelf.free([name])
    before = shelf.used
    one.end()
    assert shelf.used == before > 0, "nobody has said that it is dead"
    shelf.begin("cpu", Carry(bury=True), ())
    assert shelf.used == before // 2, "one still reads"
    other.end()
    shelf.bury()
    assert shelf.used == 0
    shelf.close()
    os.close(descriptor)


def test_producers_that_are_killed_leave_their_readers_what_they_read(tmp_path: Path) -> None:
    rng = random.Random(2)
    reader = start(read)
    before = reader.ask("drop")
    for _ in range(KILLS - KILLS // 2):
        producer = start(produce, tmp_path)
        handles = hand_over(producer, rng, rng.randrange(1, 5))
        for _ in range(rng.randrange(4)):
            producer.tell("put", rng.randrange(10**6))
        for given in handles:
            reader.tell("get", given)
        pause(rng)
        producer.end()
        assert {reader.answer() for _ in handles} <= {"right", "gone"}
        assert reader.ask("again")
        assert reader.ask("drop") == before
        assert reader.ask("get", handles[0]) == "gone"
    reader.end()


def test_without_memory_that_others_may_open_the_killed_leave_files_that_are_swept(tmp_path: Path) -> None:
    rng = random.Random(3)
    reader = start(read)
    for _ in range(3):
        producer = start(_produce_in_file, tmp_path)
        handles = hand_over(producer, rng, 3)
        assert {h.place.kind for h in handles} == {"file"}
        assert [reader.ask("get", given) for given in handles] == ["right"] * 3
        producer.end()
        assert len(list(tmp_path.iterdir())) == 1
    reader.end()


def _produce_in_file(pipe: Connection, folder: Path) -> None:
    segment.attachable = lambda: False  # type: ignore[assignment]
    produce(pipe, folder)
