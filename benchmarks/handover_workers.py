"""The part of `benchmarks.handover` between workers of a cluster: by Dask's own way, and by shared memory."""

from __future__ import annotations

import logging
import math
import os
import secrets
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client, Future, LocalCluster, get_worker
from distributed.protocol import serialize

from pipeline.buffers import segment
from pipeline.buffers.leases import DATA
from pipeline.buffers.sweep import claim
from pipeline.cluster import STATES, StatesPlugin
from pipeline.handover import ARENA
from pipeline.shelf import Carry, Shelf, Token, token
from pipeline.timeline import Times
from pipeline.values import Embeddings
from pipeline.worker import Made

MIB = 1 << 20
LARGE = 64 * MIB
KINDS = ("float32", "bfloat16")
"""The last is one that Dask tries for ever, so that its workers are good for nothing afterwards."""
SMALL, TURNS = 1024, 12
"""Bytes of a small value, and how often the two ways take turns with it: they differ by little."""


@dataclass(frozen=True, slots=True)
class Found:
    """Medians in seconds. `get`, `page`: ours, until nothing and until a page was touched."""

    name: str
    nbytes: int
    dask: float | None
    why: str
    get: float
    page: float
    message: float


def between_workers(repeats: int) -> tuple[list[Found], int]:
    """Medians of both ways, and the bytes that are copied for one producer and three readers."""
    with workers(2) as plain, workers(4) as client:
        client.register_plugin(StatesPlugin())
        ours = [by_arena(client, kind, LARGE, repeats) for kind in KINDS]
        little = small(plain, client, repeats)
        copied = fan_out(client)
        dask = [by_dask(plain, vector, kind, LARGE, repeats) for kind in KINDS]
    found = [Found(k, LARGE, *d, *o) for k, d, o in zip(KINDS, dask, ours, strict=True)] + [little]
    return found, copied


@contextmanager
def workers(count: int) -> Iterator[Client]:
    """A cluster as Dask makes it by default, without its watch over memory."""
    options = {"processes": True, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options["silence_logs"] = logging.CRITICAL
        with LocalCluster(n_workers=count, **options) as made, Client(made, set_as_default=False) as client:
            yield client


def small(plain: Client, client: Client, repeats: int) -> Found:
    """Rows of a small array, by both ways in turns."""
    dask, ours = [], []
    for _ in range(TURNS):
        dask.append(by_dask(plain, rows_of, "float32", SMALL, repeats)[0] or math.inf)
        ours.append(by_arena(client, "float32", SMALL, repeats))
    get, page, message = (statistics.median(turn) for turn in zip(*ours, strict=True))
    return Found("float32", SMALL, statistics.median(dask), "", get, page, message)


def by_dask(
    client: Client, makes: Callable[..., Any], kind: str, nbytes: int, repeats: int
) -> tuple[float | None, str]:
    """Median seconds of a transfer, or why there is none. Without our serialisers, which would mend it."""
    maker, reader = _addresses(client)[:2]
    seconds = []
    try:
        for number in range(repeats + 1):
            value = client.submit(makes, kind, nbytes, number, workers=maker, pure=False)
            right = client.submit(check, value, kind, nbytes, number, workers=reader, pure=False)
            assert right.result(timeout=10), "the value came over wrong"
            seconds.append(client.run(last_transfer, workers=[reader])[reader])
            del value, right
    except TimeoutError:
        return None, _refused(vector(kind, 1024, 0))
    return statistics.median(seconds[1:]), ""


def _refused(value: Any) -> str:
    """Why Dask does not send a value."""
    try:
        serialize(value, serializers=["dask"], on_error="raise")
    except TypeError as error:
        return f"{error.args[0]} ({error.__cause__})"
    return "no answer in 10 s"


def by_arena(client: Client, kind: str, nbytes: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds to the rows, to one page of them, and of the message that brings the handle."""
    maker, reader = _addresses(client)[:2]
    budget = 4 * LARGE
    descriptor, place = segment.create(DATA + budget, claim)
    carry = Carry(ARENA, secrets.token_hex(8), (place,), budget)
    found: list[tuple[float, float, float]] = []
    freed: tuple[Token, ...] = ()
    for number in range(repeats + 1):
        value = client.submit(hand, kind, nbytes, number, carry, freed, workers=maker, pure=False)
        given = client.submit(take, value, kind, nbytes, number, workers=reader, pure=False).result(
            timeout=20
        )
        assert given[0], "the value came over wrong"
        found.append((*given[1:3], client.run(last_transfer, workers=[reader])[reader]))
        freed = (given[3],) if given[3] else ()
        del value
    os.close(descriptor)
    gets, pages, messages = zip(*found[1:], strict=True)
    return statistics.median(gets), statistics.median(pages), statistics.median(messages)


def _addresses(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def vector(kind: str, nbytes: int, number: int) -> Any:
    """Of a kind that numpy knows, or of bfloat16."""
    if kind != "bfloat16":
        return (np.arange(nbytes // 4) + number).astype(kind)
    import torch

    return (torch.arange(nbytes // 2) + number).to(torch.bfloat16)


def rows_of(kind: str, nbytes: int, number: int) -> Embeddings:
    """A row of it."""
    return Embeddings(((number,),), vector(kind, nbytes, number)[None])


def check(value: Any, kind: str, nbytes: int, number: int) -> bool:
    expected = vector(kind, nbytes, number)
    value = value.vectors[0] if isinstance(value, Embeddings) else value
    return bool((value == expected).all()) and value.dtype == expected.dtype


def last_transfer(dask_worker: Any) -> float:
    """Seconds of the last transfer that came in, as Dask counts them."""
    return float(dask_worker.transfer_incoming_log[-1]["duration"])


def shelf() -> Shelf:
    found: Shelf = get_worker().plugins[STATES].states.shelf
    return found


def hand(kind: str, nbytes: int, number: int, carry: Carry, freed: tuple[Token, ...]) -> Made:
    shelf().free(freed)
    here, given = shelf().hand(rows_of(kind, nbytes, number), carry)
    return Made(here, None, None, Times(0, 0), given)


def take(made: Made, kind: str, nbytes: int, number: int) -> tuple[bool, float, float, Token | None]:
    """Whether it is right, and the seconds to the rows, and to a page of them."""
    began = time.perf_counter()
    rows: Any = shelf().take(made.given)
    got = time.perf_counter()
    float(rows.vectors[0, :1024].sum())
    read = time.perf_counter()
    return check(rows.vectors[0], kind, nbytes, number), got - began, read - began, token(made.given)


# one producer, three readers


def fan_out(client: Client) -> int:
    """Bytes that are copied in all when three workers read what one made."""
    descriptor, place = segment.create(DATA + 2 * LARGE, claim)
    carry = Carry(ARENA, "fan out", (place,), 2 * LARGE)
    before = sum(client.run(copied).values())
    maker, *readers = _addresses(client)
    value = client.submit(hand, "float32", LARGE, 1, carry, (), workers=maker, pure=False)
    found: list[Future] = [
        client.submit(take, value, "float32", LARGE, 1, workers=r, pure=False) for r in readers[:3]
    ]
    assert all(f.result()[0] for f in found), "the value came over wrong"
    os.close(descriptor)
    after = sum(client.run(copied).values())
    return int(after - before)


def copied(dask_worker: Any) -> int:
    return int(dask_worker.plugins[STATES].states.shelf.counts.copied)
