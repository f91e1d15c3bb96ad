"""Processes that hand values to each other, made to be killed. Each does what it is told through a pipe."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.buffers.arena import Arena
from pipeline.buffers.handles import Handle, OwnerGoneError
from pipeline.buffers.transports import ArenaTransport

BUDGET = 8 << 20


def produce(pipe: Connection, folder: Path) -> None:
    """Puts values; all are kept until `release`."""
    transport = ArenaTransport(Arena(BUDGET, folder))
    arena = transport.arena
    assert arena is not None
    kept: list[Handle] = []

    def put(seed: int) -> Handle:
        given: Handle = transport.put(_value(seed))
        kept.append(given)
        if seed % 5 == 0:
            arena.demote(given.slot, given.generation)
        return given

    def release(_: object) -> tuple[int, int]:
        while kept:
            transport.release(kept.pop())
        arena.collect()
        return arena.used, arena.leased

    _serve(pipe, {"put": put, "release": release})


def read(pipe: Connection) -> None:
    """Gets values, and keeps a part of every other one."""
    transport = ArenaTransport()
    kept: list[tuple[int, Any]] = []

    def get(given: Handle) -> str:
        try:
            check, values = transport.get(given)
        except OwnerGoneError:
            return "gone"
        if check % 2:
            kept.append((zlib.crc32(values[100:]), values[100:]))
        return "right" if zlib.crc32(values) == check else "wrong"

    def again(_: object) -> bool:
        return all(zlib.crc32(values) == check for check, values in kept)

    def drop(_: object) -> tuple[int, int]:
        kept.clear()
        transport.reader.forget()
        maps = Path("/proc/self/maps").read_text("utf-8").count("memfd:ridgeway")
        return maps, len(os.listdir("/proc/self/fd"))

    _serve(pipe, {"get": get, "again": again, "drop": drop})


def _value(seed: int) -> tuple[int, Any]:
    """Bytes, and what they must add up to."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 255, rng.integers(20_000, 200_000), np.uint8)
    return zlib.crc32(values.data), values


def _serve(pipe: Connection, does: dict[str, Callable[[Any], Any]]) -> None:
    while True:
        try:
            name, given = pipe.recv()
        except EOFError:
            return
        pipe.send(does[name](given))
