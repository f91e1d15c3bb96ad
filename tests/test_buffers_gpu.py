"""The CUDA paths of pipeline.buffers on a CUDA device. Their decisions are tested with fakes elsewhere."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cuda_edges import EDGES
from benchmarks.cuda_moves import Absent, overlapped
from pipeline.buffers.cuda import CudaTransport, PeerTransport
from pipeline.buffers.cuda_ipc import CudaIpcTransport
from pipeline.buffers.device import index_of, pending, refusal, uuid, view
from pipeline.buffers.handles import OwnerGoneError, StaleHandleError
from pipeline.buffers.pinned import Pinned
from pipeline.buffers.staging import Staging

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)
BUSY = 2048
"""Edge of the products that keep a stream busy while a value is handed on."""


def late(value: float, shape: tuple[int, ...] = (1 << 20,)) -> torch.Tensor:
    """A tensor that is filled only after some milliseconds of other work on the current stream."""
    one = torch.ones(BUSY, BUSY, device=CUDA)
    for _ in range(20):
        one = one @ one / BUSY
    return torch.full(shape, value, device=CUDA) * one[0, 0]


def read(pipe: Connection) -> None:
    """A reader: answers (index of the device, sum) for each handle, keeps a view until told to drop it."""
    way, kept = CudaIpcTransport(), list[Any]()
    while (given := pipe.recv()) is not None:
        if given == "drop":
            kept.clear()
            pipe.send("dropped")
            continue
        try:
            got = way.get(given)[0]
        except StaleHandleError as error:
            pipe.send(type(error))
            continue
        kept.append(got[1:])
        pipe.send((view(), got.device.index, float(got.double().sum())))
        del got


@contextmanager
def reader() -> Iterator[tuple[Any, Connection]]:
    """A process that reads, killed at the end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=read, args=(there,), daemon=True)
    process.start()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()


def test_another_process_reads_what_a_busy_stream_has_yet_to_write() -> None:
    way = CudaIpcTransport()
    with reader() as (_, pipe):
        for value in (3.0, 5.0):
            tensor = late(value)
            sent = way.put((tensor, "and more"))
            pipe.send(sent)
            their, _, total = pipe.recv()
            assert refusal(view(), their, uuid(0)) == ""
            assert total == value * tensor.numel()
            del tensor
            way.release(sent)
        assert len(way._kept) == 2
        pipe.send("drop")
        assert pipe.recv() == "dropped"
        way.collect()
        assert not way._kept
        pipe.send(sent)
        assert pipe.recv() is StaleHandleError


def test_two_readers_of_one_export_do_not_end_it_for_each_other() -> None:
    way = CudaIpcTransport()
    tensor = late(2.0)
    sent = way.put((tensor,))
    count = tensor.numel()
    del tensor
    with reader() as (_, first), reader() as (_, second):
        first.send(sent)
        assert first.recv()[2] == 2.0 * count
        first.send("drop")
        assert first.recv() == "dropped"
        second.send(sent)
        assert second.recv()[2] == 2.0 * count
        way.release(sent)
        other = late(7.0)
        second.send(sent)
        assert second.recv()[2] == 2.0 * count
        del other


def test_memory_of_a_killed_reader_comes_back() -> None:
    way = CudaIpcTransport()
    before = torch.cuda.memory_allocated()
    sent = way.put((torch.ones(1 << 22, device=CUDA),))
    with reader() as (process, pipe):
        pipe.send(sent)
        pipe.recv()
        way.release(sent)
        assert torch.cuda.memory_allocated() > before
        process.kill()
        process.join()
        way.collect()
        assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_processes_that_count_their_devices_otherwise_mean_the_same_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "1,0")
    way = CudaIpcTransport()
    with reader() as (_, pipe):
        pipe.send(way.put((torch.ones(8, device=CUDA),)))
        _, index, total = pipe.recv()
    assert (index, total) == (1, 8.0)


def test_a_reader_on_another_stream_sees_what_was_written_before() -> None:
    way, found = CudaTransport(), []
    sent = way.put((late(3.0),))

    def there() -> None:
        torch.cuda.set_device(CUDA)
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            found.append(float(way.get(sent)[0].double().sum()))

    thread = Thread(target=there)
    thread.start()
    thread.join()
    way.release(sent)
    assert found == [3.0 * (1 << 20)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_tensor_of_another_device_is_copied_after_it_is_written() -> None:
    way = PeerTransport(Staging(Pinned(1 << 24)))
    sent = way.put((late(3.0),))
    with torch.cuda.device(1):
        got = way.get(sent)[0]
        assert got.device.index == 1
        assert float(got.double().sum()) == 3.0 * (1 << 20)
    way.release(sent)


@pytest.mark.parametrize("limit", [1 << 24, 0], ids=["pinned", "pageable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool])
def test_what_goes_up_comes_down_the_same(dtype: torch.dtype, limit: int) -> None:
    staging = Staging(Pinned(limit))
    for shape in ((33, 65), (0, 4), ()):
        tensor = torch.randint(0, 2, shape).to(dtype)
        back = staging.fetch(pending(staging.upload(tensor, "cuda:0").take()))
        assert torch.equal(back.float(), tensor.float())
    assert staging.pool.held <= limit


def test_a_download_waits_for_a_busy_stream() -> None:
    found = Staging(Pinned(1 << 24)).download(pending(late(3.0)))
    assert found.shape == (1 << 20,)
    assert (found == 3.0).all()


def test_shared_memory_is_uploaded_from_where_it_is() -> None:
    staging = Staging(Pinned(1 << 24))
    fd = os.memfd_create("test")
    os.ftruncate(fd, 1 << 22)
    memory = mmap.mmap(fd, 1 << 22)
    os.close(fd)
    np.frombuffer(memory, np.uint8)[:] = 7
    assert staging.register(memory)
    up = staging.upload(np.frombuffer(memory, np.uint8), "cuda:0")
    assert staging.pool.held == 0
    assert int(up.take().sum()) == 7 << 22
    staging.unregister(memory)
    memory.close()


def test_memory_that_cannot_be_registered_leaves_no_error_behind() -> None:
    staging = Staging(Pinned(1 << 24))
    memory = mmap.mmap(-1, 1 << 20)
    assert staging.register(memory)
    assert not staging.register(memory)
    assert int(torch.ones(3, device=CUDA).sum()) == 3
    staging.unregister(memory)


def test_upload_run_and_download_overlap_and_keep_their_order() -> None:
    staging = Staging(Pinned(1 << 26))
    arrays = [np.full(1 << 16, float(i), np.float32) for i in range(20)]

    def double(given: Any) -> Any:
        torch.cuda.set_device(CUDA)
        with torch.cuda.stream(staging.stream(CUDA)):
            return pending(given.take() * 2)

    found = overlapped(
        arrays, lambda a: staging.upload(a, "cuda:0"), double, lambda p: float(staging.download(p)[-1])
    )
    assert found == [2.0 * i for i in range(20)]


def test_a_device_is_found_by_its_uuid() -> None:
    count = torch.cuda.device_count()
    assert [index_of(uuid(i)) for i in range(count)] == list(range(count))


@pytest.mark.parametrize("name", EDGES)
def test_a_pipeline_hands_over_by_each_way(name: str) -> None:
    try:
        EDGES[name](1 << 20)
    except Absent as why:
        pytest.skip(str(why))


def test_the_value_of_a_dead_process_is_told_as_such() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=produce, args=(there,), daemon=True)
    process.start()
    sent = here.recv()
    process.kill()
    process.join()
    with pytest.raises(OwnerGoneError):
        CudaIpcTransport().get(sent)


def produce(pipe: Connection) -> None:
    """A producer that waits to be killed."""
    way = CudaIpcTransport()
    pipe.send(way.put((torch.ones(8, device=CUDA),)))
    pipe.recv()
