"""Values with tensors of a GPU on a shelf: what a reader finds where it works does not depend on the way."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cuda_edges import Make, Read
from benchmarks.cuda_moves import VALUE
from pipeline import hands
from pipeline.buffers import gpu_values, segment
from pipeline.buffers.cuda_ipc import CudaIpcTransport
from pipeline.buffers.gpu_values import called
from pipeline.buffers.handles import Handle, StaleHandleError
from pipeline.buffers.leases import DATA
from pipeline.buffers.lodging import Lodgings
from pipeline.buffers.staging import Staging
from pipeline.errors import PlanError
from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.handover import ARENA, BYTES, CUDA, CUDA_IPC, PEER, STAGED
from pipeline.machine import Device, Machine
from pipeline.plan import Plan, Way, place
from pipeline.program import Program, flatten
from pipeline.rows import Rows
from pipeline.shelf import Carry, Shelf, token
from pipeline.values import Queries
from tests.test_buffers_cuda import Cuda, FakeIpc, far, pool

BUDGET = 1 << 20
WIDTH = 1024
SIZE = 2 * WIDTH * 4
"""Bytes of the tensor."""


@dataclass(frozen=True, slots=True)
class Cached(Rows):
    """`cache` float32 [B, WIDTH] on a GPU, `lengths_` float32 [B] on the host."""

    cache: Any
    lengths_: Any


def rows(index: int = 0) -> Cached:
    return Cached(
        (("a",), ("b",)),
        far(torch.arange(2 * WIDTH).reshape(2, WIDTH).float(), index),
        np.array([2.0, 1.0], np.float32),
    )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Two GPUs, of which cuda:1 is the current one."""
    made = Cuda(["aaaa", "bbbb"])
    made.install(monkeypatch)
    staging = Staging(pool())
    monkeypatch.setattr(gpu_values, "_staging", lambda: staging)
    roomy = Lodgings(lambda device: (), lambda device: (0, 1))
    monkeypatch.setattr(gpu_values, "_lodgings", lambda: roomy)
    return made


@pytest.fixture
def ipc(monkeypatch: pytest.MonkeyPatch) -> FakeIpc:
    made = FakeIpc()
    ours = CudaIpcTransport(made)
    monkeypatch.setattr(gpu_values, "_ipc", lambda: ours)
    return made


@pytest.fixture
def carry(tmp_path: Path) -> Iterator[Carry]:
    descriptor, place = segment.create(DATA + BUDGET, Path)
    yield Carry(ARENA, "run", (place,), BUDGET, tmp_path, device=True)
    os.close(descriptor)


def shelf(lane: str = "cpu") -> Shelf:
    made = Shelf()
    made.begin(lane, Carry(), ())
    return made


def plain(found: Any) -> Any:
    return found.ids, torch.Tensor.tolist(found.cache), found.lengths_.tolist()


EXPECTED = ((("a",), ("b",)), [[*range(WIDTH)], [*range(WIDTH, 2 * WIDTH)]], [2.0, 1.0])


@pytest.mark.parametrize("way", [CUDA, PEER, STAGED])
def test_within_a_process_nothing_stays_but_what_travels_and_readers_on_the_gpu_get_the_tensor_itself(
    cuda: Cuda, way: str
) -> None:
    made, producer, reader = rows(1), shelf("cuda:1"), shelf("cuda:1")
    here, given = producer.hand(made, Carry(way, device=True))
    assert here is None
    found: Any = reader.take(given)
    assert found.cache is made.cache
    assert ("main1", "waits", "after main1") in cuda.log
    assert (reader.counts.shared, reader.counts.copied) == (SIZE, 0)
    assert token(given) is None, "it goes with its last reference"
    with pytest.raises(PlanError):
        pickle.dumps(given)


def test_a_reader_on_another_gpu_gets_a_copy_there(cuda: Cuda) -> None:
    reader = shelf("cuda:1")
    found: Any = reader.take(shelf("cuda:0").hand(rows(0), Carry(PEER, device=True))[1])
    assert found.cache.device.index == 1
    assert plain(found) == EXPECTED
    assert (reader.counts.shared, reader.counts.copied) == (0, SIZE)


def test_a_reader_without_a_gpu_gets_the_values_on_the_host_once_they_are_there(cuda: Cuda) -> None:
    reader = shelf()
    found: Any = reader.take(shelf("cuda:0").hand(rows(0), Carry(STAGED, device=True))[1])
    assert not found.cache.is_cuda
    assert plain(found) == EXPECTED
    assert ("host waits", "after side0") in cuda.log
    assert (reader.counts.shared, reader.counts.copied) == (0, SIZE)


@pytest.mark.parametrize("way", [ARENA, BYTES])
@pytest.mark.parametrize("lane", ["cpu", "cuda:1"])
def test_by_way_of_the_host_the_values_come_to_where_the_reader_works(
    cuda: Cuda, carry: Carry, way: str, lane: str
) -> None:
    producer, reader = shelf("cuda:0"), shelf(lane)
    here, given = producer.hand(rows(0), carry if way == ARENA else Carry(BYTES, device=True))
    assert isinstance(given, Handle) == (here is None) == (way == ARENA)
    found: Any = reader.take(pickle.loads(pickle.dumps(given)))
    assert plain(found) == EXPECTED
    assert bool(getattr(found.cache, "is_cuda", False)) == (lane != "cpu")
    assert producer.counts.copied >= 2 * SIZE, "down, and into what travels"
    del found
    producer.close()


def test_what_others_map_is_kept_until_it_is_freed(cuda: Cuda, ipc: FakeIpc) -> None:
    producer = shelf("cuda:0")
    here, given = producer.hand(rows(0), Carry(CUDA_IPC, "run", device=True))
    name = token(given)
    assert here is None
    assert name is not None
    assert name == called(given)
    assert name[0] < 0, "no slot of an arena"
    assert plain(producer.take(given)) == EXPECTED
    producer.free([name, name, (-5, 5)])
    assert ("settled", 0) in ipc.log
    with pytest.raises(StaleHandleError):
        producer.take(given)


def test_names_of_processes_that_count_alike_differ(cuda: Cuda, ipc: FakeIpc) -> None:
    _, given = shelf("cuda:0").hand(rows(0), Carry(CUDA_IPC, "run", device=True))
    assert token(given) != token(replace(given, owner="another"))


def test_at_the_end_of_a_run_its_values_are_freed_and_those_of_others_stay(cuda: Cuda, ipc: FakeIpc) -> None:
    producer = shelf("cuda:0")
    one, two = (producer.hand(rows(0), Carry(CUDA_IPC, run, device=True))[1] for run in ("one", "two"))
    producer.close("one", ())
    with pytest.raises(StaleHandleError):
        producer.take(one)
    assert plain(producer.take(two)) == EXPECTED
    producer.close()
    with pytest.raises(StaleHandleError):
        producer.take(two)


def test_values_of_the_host_are_not_looked_through(carry: Carry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_values, "_staging", lambda: 1 / 0)
    producer = shelf()
    _, given = producer.hand(Cached((("a",),), torch.ones(1, 2), np.ones(1)), Carry(BYTES))
    assert torch.equal(producer.take(given).cache, torch.ones(1, 2))  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", [CUDA, STAGED])
def test_a_run_hands_such_values_on_to_steps_and_to_its_caller(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of the host stand for those of a GPU: the parts of a value travel just the same."""

    def all_by_it(program: Program, plan: Plan, *given: Any) -> Plan:
        return replace(plan, ways={s.name: Way(way, device=True) for s in program.steps})

    monkeypatch.setattr(hands, "settled", all_by_it)
    asked = Queries((("q0",), ("q1",)), ("?", "?"), ("", ""))
    nodes = (node("make", Make(7), queries="q"), node("read", Read(), caches="make"))
    graph = Graph({"q": Queries}, nodes, {"made": "make", "seen": "read"})
    results: list[Any] = list(
        run(graph, {"q": asked}, plan=place(flatten(graph), Machine((Device("cpu:0"),))))
    )
    seen = [r.rows.right for r in results if r.output == "seen"]
    made = [r.rows.cache.tolist() for r in results if r.output == "made"]
    assert seen == [(True,)] * 2
    assert made == [[[VALUE] * 7]] * 2
