"""The CUDA paths of pipeline.buffers: what they decide, with fakes; and the real thing where there is a GPU.

The fakes: tensors that say they are on a device and lie on the host, streams and events that write a log.
"""

from __future__ import annotations

import inspect
import mmap
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import cuda_edges, cuda_moves, cuda_paths
from pipeline.buffers import TRANSPORTS, cuda_ipc, device
from pipeline.buffers.claims import Claims, Lease
from pipeline.buffers.cuda import CudaTransport, PeerTransport, join, on_device, split
from pipeline.buffers.cuda_ipc import CudaIpcTransport, Ipc
from pipeline.buffers.device import Gpu, View, pending
from pipeline.buffers.handles import OwnerGoneError, StaleHandleError
from pipeline.buffers.pinned import LEAST, Pinned, rounded
from pipeline.buffers.staging import Staging
from pipeline.errors import PlanError
from pipeline.handover import ON_GPU
from pipeline.lookup import load
from pipeline.machine import Device


@dataclass(frozen=True)
class Held:
    name: str
    cache: tuple[Any, ...]
    lengths: Any


class Far0(torch.Tensor):
    """A tensor that says it is on a device, and is not."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def record_stream(self, stream: Any) -> None:
        stream.log.append(("record", stream.name))


class Far1(Far0):
    device = torch.device("cuda", 1)


FAR = {0: Far0, 1: Far1}


def far(values: Any, index: int = 0) -> Any:
    return torch.as_tensor(values).as_subclass(FAR[index])


@dataclass
class Event:
    log: list[Any]
    name: str = ""
    passed: bool = False

    def record(self, stream: Any) -> None:
        self.name = f"after {stream.name}"

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.log.append(("host waits", self.name))
        self.passed = True

    def ipc_handle(self) -> bytes:
        return self.name.encode()


@dataclass
class Events:
    """`torch.cuda.Event`."""

    log: list[Any]

    def __call__(self, interprocess: bool = False) -> Event:
        return Event(self.log)

    def from_ipc_handle(self, where: Any, handle: bytes) -> Event:
        return Event(self.log, f"{handle.decode()} on {where}")


@dataclass(eq=False)
class Stream:
    log: list[Any]
    name: str
    device: Any

    def wait_event(self, event: Any) -> None:
        self.log.append((self.name, "waits", event.name))

    def wait_stream(self, other: Any) -> None:
        self.log.append((self.name, "waits for", other.name))

    def synchronize(self) -> None:
        self.log.append(("host waits for", self.name))


@dataclass
class Cuda:
    """As much of `torch.cuda` as is used. `uuids`: of the devices, by index."""

    uuids: list[str]
    reach: bool = True
    refuses: int = 0
    log: list[Any] = field(default_factory=list)
    now: dict[int, Stream] = field(default_factory=dict)

    def current_stream(self, where: Any) -> Stream:
        where = torch.device(where)
        return self.now.setdefault(where.index, Stream(self.log, f"main{where.index}", where))

    def make_stream(self, where: Any = "cuda:1") -> Stream:
        where = torch.device(where)
        return Stream(self.log, f"side{where.index}", where)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream(stream.device)
        self.now[stream.device.index] = stream
        yield
        self.now[stream.device.index] = before

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(uuid=self.uuids[index], name="NVIDIA Test")

    def cudart(self) -> Any:
        def note(what: str) -> Any:
            def call(address: int, *rest: int) -> int:
                self.log.append((what, *rest))
                return self.refuses

            return call

        return SimpleNamespace(cudaHostRegister=note("register"), cudaHostUnregister=note("unregister"))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("current_stream", "stream", "get_device_properties", "cudart"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Stream", self.make_stream)
        patch.setattr(torch.cuda, "Event", Events(self.log))
        patch.setattr(torch.cuda, "device_count", lambda: len(self.uuids))
        patch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: self.reach)
        patch.setattr(torch.cuda, "current_device", lambda: 1)
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr(torch.cuda, "set_device", lambda where: None)
        patch.setattr(torch.cuda, "device", lambda where: nullcontext())
        empty, full = torch.empty, torch.full

        def placed(*args: Any, device: Any = None, **rest: Any) -> Any:
            made = empty(*args, **rest)
            return made if device is None else far(made, torch.device(device).index)

        def failing(*args: Any, **rest: Any) -> Any:
            raise RuntimeError("CUDA error: part or all of the requested memory range is already mapped")

        patch.setattr(torch, "empty", placed)
        patch.setattr(torch, "zeros", failing)
        patch.setattr(torch, "full", lambda *args, device: far(full(*args), torch.device(device).index))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda(["aaaa", "bbbb"])
    made.install(monkeypatch)
    return made


def pool(limit: int = 1 << 20) -> Pinned:
    return Pinned(limit, lambda n: torch.empty(n, dtype=torch.uint8), lambda: None)


# devices


WHOLE = View("host", (Gpu("aaaa"), Gpu("bbbb")))


def test_a_device_is_found_by_its_uuid_whatever_its_index(cuda: Cuda) -> None:
    assert [device.uuid(device.index_of(u)) for u in ("bbbb", "aaaa")] == ["bbbb", "aaaa"]
    cuda.uuids.reverse()
    assert device.index_of("aaaa") == 1


def test_a_device_that_is_not_visible_is_an_error_that_says_what_to_set(cuda: Cuda) -> None:
    with pytest.raises(PlanError, match=r"cccc.*aaaa, bbbb.*CUDA_VISIBLE_DEVICES"):
        device.index_of("cccc")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ""),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:8, expandable_segments : true"}, None),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True,expandable_segments:False"}, ""),
        ({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2]"}, ""),
    ],
)
def test_expandable_segments_are_read_from_both_settings(environ: dict[str, str], found: str | None) -> None:
    told = device.expandable(environ)
    assert told == found if found is not None else told.startswith("PYTORCH_CUDA_ALLOC_CONF=")
    assert bool(device.no_segments(told)) == bool(told)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (WHOLE, ""),
        (View("host", (Gpu("bbbb"), Gpu("aaaa"))), ""),
        (View("elsewhere", WHOLE.gpus), "--ipc=host"),
        (View("host", (Gpu("bbbb"),)), "CUDA_VISIBLE_DEVICES"),
        (View("host", (Gpu("aaaa", device.UNKNOWN),)), "MIG"),
        (View("host", (Gpu("aaaa", "MIG-1"),)), "does not cross"),
        (
            View("host", WHOLE.gpus, "PYTORCH_ALLOC_CONF=expandable_segments:True"),
            "take expandable_segments out",
        ),
    ],
)
def test_what_forbids_cuda_ipc_is_told_with_the_remedy(other: View, says: str) -> None:
    for told in (device.refusal(WHOLE, other, "aaaa"), device.refusal(other, WHOLE, "aaaa")):
        assert says in told
        assert bool(told) == bool(says)


def test_two_processes_in_one_mig_instance_may_share_it() -> None:
    part = View("host", (Gpu("aaaa", "MIG-1"),))
    assert device.refusal(part, part, "aaaa") == ""


def test_a_part_of_a_gpu_is_known_by_its_entry_among_the_visible(cuda: Cuda, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [g.mig for g in device.view({"CUDA_VISIBLE_DEVICES": "MIG-7,1"}).gpus] == ["MIG-7", ""]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_a_process_sees_no_gpus() -> None:
    assert device.view({}).gpus == ()


# claims


def test_a_value_ends_only_when_no_lease_is_left_and_then_for_good() -> None:
    claims = Claims()
    number = claims.begin()
    leases = [Lease(claims.path, claims.owner, number) for _ in range(2)]
    assert not claims.end(number)
    leases.pop()
    assert not claims.end(number)
    leases.pop()
    assert claims.end(number)
    with pytest.raises(StaleHandleError, match="released"):
        Lease(claims.path, claims.owner, number)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["begin", "lease", "drop", "end"]), st.integers(0, 5)), max_size=40)
)
def test_leases_agree_with_a_count_of_them(steps: list[tuple[str, int]]) -> None:
    claims, leases, ended = Claims(), dict[int, list[Lease]](), set[int]()
    for what, pick in steps:
        number = pick % len(leases) if leases else None
        if what == "begin":
            leases[claims.begin()] = []
        elif number is None or number in ended:
            continue
        elif what == "lease":
            leases[number].append(Lease(claims.path, claims.owner, number))
        elif what == "drop" and leases[number]:
            leases[number].pop()
        elif what == "end":
            assert claims.end(number) == (not leases[number])
            ended.update({number} - {n for n in leases if leases[n]})


READER = """
import sys, time
from pipeline.buffers.claims import Lease
lease = Lease(sys.argv[1], sys.argv[2], int(sys.argv[3]))
print("reads", flush=True)
time.sleep(60)
"""
PRODUCER = """
from pipeline.buffers.claims import Claims
claims = Claims()
print(claims.path, claims.owner, claims.begin(), flush=True)
input()
"""


def test_the_lease_of_a_killed_reader_is_gone_with_it() -> None:
    claims = Claims()
    number = claims.begin()
    command = [sys.executable, "-c", READER, claims.path, claims.owner, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        assert not claims.end(number)
        reader.kill()
        reader.wait()
        assert claims.end(number)


def test_a_dead_producer_is_told_as_such() -> None:
    command = [sys.executable, "-c", PRODUCER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as producer:  # type: ignore[call-overload]
        path, owner, number = producer.stdout.readline().split()
        held = Lease(path, owner, int(number))
        producer.kill()
        producer.wait()
        with pytest.raises(OwnerGoneError, match="gone"):
            Lease(path, owner, int(number))
        del held


def test_a_producer_on_another_host_is_not_reached() -> None:
    with pytest.raises(OwnerGoneError, match="not on this host"):
        Lease("/proc/1/fd/0", "boot:1:1:1", 0)


# pinned buffers


@given(st.integers(1, 1 << 40))
def test_a_buffer_is_a_power_of_two_that_fits(nbytes: int) -> None:
    size = rounded(nbytes)
    assert nbytes <= size
    assert size == LEAST or size < 2 * nbytes
    assert size & (size - 1) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "give", "pass"]), st.integers(0, 5)), max_size=50))
def test_the_pool_keeps_its_bound_and_hands_nothing_out_twice(steps: list[tuple[str, int]]) -> None:
    trimmed: list[int] = []
    buffers = Pinned(
        16 * LEAST, lambda n: torch.empty(n, dtype=torch.uint8), lambda: trimmed.append(buffers.held)
    )
    out: list[Any] = []
    events: dict[int, Event] = {}
    for what, pick in steps:
        if what == "take":
            memory = buffers.take(LEAST << pick)
            if memory is None:
                assert buffers.held + (LEAST << pick) > buffers.limit
            else:
                assert memory.numel() == LEAST << pick
                assert all(memory is not other for other in out)
                assert events.pop(id(memory), Event([], passed=True)).passed
                out.append(memory)
        elif what == "give" and out:
            memory = out.pop(pick % len(out))
            events[id(memory)] = Event([])
            buffers.give(memory, events[id(memory)])
        elif what == "pass":
            for event in events.values():
                event.passed = True
        assert sum(m.numel() for m in out) <= buffers.held <= buffers.limit
    assert all(held <= buffers.limit for held in trimmed)


def test_an_idle_buffer_is_used_again_rather_than_a_new_one_made() -> None:
    buffers = pool()
    first = buffers.take(5000)
    buffers.give(first)
    assert buffers.take(8192) is first
    assert buffers.held == 8192


def test_a_full_pool_waits_for_the_copy_from_its_only_buffer() -> None:
    buffers = pool(LEAST)
    first, event = buffers.take(1), Event([])
    assert buffers.take(1) is None
    buffers.give(first, event)
    assert buffers.take(1) is first
    assert event.passed


def test_a_buffer_whose_copy_failed_is_not_used_again() -> None:
    buffers = pool(LEAST)
    memory = buffers.take(1)
    with pytest.raises(ZeroDivisionError), buffers.used(memory):
        raise ZeroDivisionError
    assert buffers.held == 0
    assert buffers.take(1) is not memory


# staging


def readonly(array: Any) -> Any:
    array.flags.writeable = False
    return array


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    readonly(np.arange(5000, dtype=np.int64)),
    np.arange(24, dtype=np.uint8).reshape(4, 6)[:, ::2],
    readonly(np.empty((0, 3), np.float16)),
    np.array(7.0),
    torch.arange(12).to(torch.bfloat16).reshape(3, 4).T,
]


def plain(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return array.as_subclass(torch.Tensor).double().numpy()
    return np.asarray(array, np.float64)


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["pinned", "pageable"])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{tuple(a.shape)}")
def test_what_goes_up_comes_down_the_same(cuda: Cuda, array: Any, limit: int) -> None:
    staging = Staging(pool(limit))
    up = staging.upload(array, "cuda:0")
    assert up.tensor.is_cuda
    down = staging.fetch(up)
    assert down.shape == array.shape
    assert np.array_equal(plain(down), plain(array))
    assert staging.pool.held <= limit


def test_a_download_is_read_only_after_its_event(cuda: Cuda) -> None:
    staging = Staging(pool())
    found = staging.download(pending(far([1.0, 2.0])))
    assert cuda.log == [
        ("side0", "waits", "after main0"), ("record", "side0"), ("host waits", "after side0"),
    ]  # fmt: skip
    assert found.tolist() == [1.0, 2.0]


def test_a_buffer_is_lent_with_the_array_and_comes_back_after_its_last_view(cuda: Cuda) -> None:
    staging = Staging(pool(LEAST))
    view = staging.download(pending(far(np.arange(9.0))))[3:]
    assert staging.pool.take(1) is None
    assert view[0] == 3
    del view
    assert staging.pool.take(1) is not None


def test_an_uploads_buffer_is_not_filled_again_before_its_copy_has_ended(cuda: Cuda) -> None:
    staging = Staging(pool(LEAST))
    first = staging.upload(np.zeros(8), "cuda:0")
    staging.upload(np.ones(8), "cuda:0")
    assert cuda.log == [("host waits", "after side0")]
    assert first.event.passed


def test_registered_memory_is_copied_from_where_it_is_and_unregistered_after_that(cuda: Cuda) -> None:
    staging = Staging(pool())
    memory = mmap.mmap(-1, 8192)
    assert staging.register(memory)
    source = readonly(np.frombuffer(memory, np.float32, 8, 64))
    up = staging.upload(source, "cuda:0")
    assert staging.pool.held == 0
    del source
    assert up.take().tolist() == [0.0] * 8
    with pytest.raises(BufferError):
        memory.close()
    cuda.log.clear()
    staging.unregister(memory)
    assert cuda.log == [("host waits", "after side0"), ("unregister",)]
    memory.close()


def test_memory_that_cuda_will_not_register_goes_by_the_pool(cuda: Cuda) -> None:
    cuda.refuses = 712
    staging, memory = Staging(pool()), mmap.mmap(-1, 4096)
    assert not staging.register(memory)
    staging.upload(np.frombuffer(memory, np.uint8), "cuda:0")
    assert staging.pool.held == LEAST


def test_each_thread_has_a_side_stream_of_its_own(cuda: Cuda) -> None:
    from threading import Thread

    staging, found = Staging(pool()), []
    threads = [Thread(target=lambda: found.append(staging.stream("cuda:0"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not found[1]
    assert staging.stream("cuda:0") is staging.stream(torch.device("cuda", 0))


# within a process


@pytest.mark.parametrize("name", ["cuda", "peer", "staged", "cuda-ipc"])
def test_the_ways_are_in_the_table_under_their_names(name: str) -> None:
    assert load(TRANSPORTS[name]).name == name


def test_a_value_is_taken_apart_and_each_tensor_goes_once() -> None:
    tensor = far([1, 2])
    value = Held("a", (tensor, {"again": tensor}, np.arange(3)), torch.arange(2))
    head, found = split(value, on_device)
    assert [t is tensor for t in found] == [True]
    back = join(head, found)
    assert back.cache[0] is back.cache[1]["again"] is tensor
    assert back.cache[2].tolist() == [0, 1, 2]
    assert back.lengths.tolist() == [0, 1]


def test_the_reader_waits_on_its_stream_and_the_producer_before_it_reuses_the_memory(cuda: Cuda) -> None:
    way, tensor, array = CudaTransport(), far([1, 2]), np.arange(3)
    sent = way.put(Held("a", (tensor, tensor), array))
    reader = Stream(cuda.log, "reader", Far0.device)
    with cuda.stream(reader):
        got = way.get(sent)
    assert got.cache[0] is got.cache[1] is tensor
    assert np.shares_memory(got.lengths, array)
    way.release(sent)
    assert cuda.log == [
        ("reader", "waits", "after main0"), ("record", "reader"), ("main0", "waits for", "reader"),
    ]  # fmt: skip
    assert (way.shared, way.copied) == (16, 0)


def test_tensors_of_the_host_go_along_without_a_copy(cuda: Cuda) -> None:
    way, tensor = CudaTransport(), torch.arange(3)
    assert way.get(way.put((tensor,)))[0] is tensor
    assert cuda.log == []


def test_a_value_of_this_process_refuses_to_travel(cuda: Cuda) -> None:
    with pytest.raises(PlanError, match="cuda-ipc"):
        pickle.dumps(CudaTransport().put(far([1])))


@pytest.mark.parametrize("reach", [True, False], ids=["peers", "by the host"])
def test_tensors_of_another_device_are_copied_to_the_readers(cuda: Cuda, reach: bool) -> None:
    cuda.reach = reach
    way = PeerTransport(Staging(pool()))
    near, away, host = far([1.0, 2.0], 1), far([[3.0], [4.0]], 0), torch.ones(2)
    got = way.get(sent := way.put((near, away, host)))
    assert [t.tolist() for t in got] == [[1.0, 2.0], [[3.0], [4.0]], [1.0, 1.0]]
    assert got[0] is near
    assert got[2] is host
    assert got[1].device.index == 1
    assert (way.shared, way.copied) == (16, 8)
    by_host = any(entry[0] == "host waits" for entry in cuda.log)
    assert by_host is not reach
    assert ("side0", "waits", "after main0") in cuda.log
    assert ("main1", "waits", "after side1") in cuda.log
    way.release(sent)
    assert ("main0", "waits for", "side0") in cuda.log


# between processes


@dataclass
class FakeIpc:
    """Exports into a dict that stands for the GPU."""

    memory: dict[int, Any] = field(default_factory=dict)
    log: list[Any] = field(default_factory=list)

    def export(self, tensor: Any) -> tuple[Any, ...]:
        self.memory[len(self.memory)] = torch.Tensor.numpy(tensor.as_subclass(torch.Tensor))
        return (len(self.memory) - 1,)

    def restore(self, args: tuple[Any, ...]) -> Any:
        return far(torch.from_numpy(self.memory[args[0]]))

    def settle(self, args: tuple[Any, ...]) -> None:
        self.log.append(("settled", args[0]))

    def signal(self, where: Any) -> tuple[Any, str, bytes]:
        return Event(self.log, "signal"), "aaaa", b"handle"

    def wait(self, gpu: str, handle: bytes) -> None:
        self.log.append(("waits", gpu, handle))


def pair() -> tuple[CudaIpcTransport, CudaIpcTransport, FakeIpc]:
    """A producer, and a reader that takes itself for another process."""
    ipc = FakeIpc()
    producer, reader = CudaIpcTransport(ipc), CudaIpcTransport(ipc)
    reader._claims.owner = "another"
    return producer, reader, ipc


def test_a_lease_lasts_as_long_as_the_last_view_and_the_producer_as_long_as_the_lease(cuda: Cuda) -> None:
    producer, reader, ipc = pair()
    sent = producer.put(Held("a", (far([1, 2, 3]),), np.arange(2)))
    got = reader.get(pickle.loads(pickle.dumps(sent)))
    assert got.lengths.tolist() == [0, 1]
    assert ipc.log == [("waits", "aaaa", b"handle")]
    view = got.cache[0][1:]
    del got
    producer.release(sent)
    producer.collect()
    assert ("settled", 0) not in ipc.log
    assert view.tolist() == [2, 3]
    del view
    assert ("host waits for", "main0") in cuda.log
    producer.collect()
    assert ipc.log[-1] == ("settled", 0)
    with pytest.raises(StaleHandleError):
        reader.get(sent)
    assert (producer.copied, reader.shared) == (0, 24)


def test_a_value_that_nobody_read_is_settled_at_its_release(cuda: Cuda) -> None:
    producer, _, ipc = pair()
    sent = producer.put((far([1]), far([2])))
    producer.release(sent)
    assert ipc.log == [("settled", 0), ("settled", 1)]
    with pytest.raises(StaleHandleError, match="released"):
        producer.release(sent)
    with pytest.raises(StaleHandleError, match="released"):
        producer.get(sent)


def test_what_came_from_another_process_is_copied_before_it_is_exported(cuda: Cuda) -> None:
    producer, reader, ipc = pair()
    got = reader.get(producer.put(far([1.0, 2.0])))
    again = reader.put((got, far([3.0])))
    assert reader.copied == 8
    assert not np.shares_memory(ipc.memory[again.tensors[0][0]], ipc.memory[0])
    assert ipc.memory[again.tensors[0][0]].tolist() == [1.0, 2.0]


def test_the_producers_own_process_gets_the_tensor_itself(cuda: Cuda) -> None:
    producer, _, ipc = pair()
    tensor = far([1.0])
    got = producer.get(producer.put((tensor,)))[0]
    assert got.data_ptr() == tensor.data_ptr()
    assert ("main0", "waits", "signal") in cuda.log
    assert ipc.log == []


def test_an_export_that_fails_leaves_no_other_behind(cuda: Cuda, monkeypatch: Any) -> None:
    producer, _, ipc = pair()
    whole = ipc.export

    def half(tensor: Any) -> Any:
        if tensor.numel() > 1:
            raise TypeError
        return whole(tensor)

    monkeypatch.setattr(ipc, "export", half)
    with pytest.raises(TypeError):
        producer.put((far([1]), far([1, 2])))
    assert ipc.log == [("settled", 0)]


def test_the_places_among_torchs_arguments_are_those_of_this_torch() -> None:
    from torch.multiprocessing import reductions

    names = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    assert names[cuda_ipc.DEVICE] == "storage_device"
    assert names[cuda_ipc.COUNT] == ["ref_counter_handle", "ref_counter_offset"]


def test_the_index_of_the_device_travels_as_its_uuid(cuda: Cuda, monkeypatch: Any) -> None:
    from torch.multiprocessing import reductions

    def rebuild(*args: Any) -> Any:
        return args

    args = (*"abcdef", 0, *"ghijklmn")
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", rebuild)
    monkeypatch.setattr(reductions, "reduce_tensor", lambda _: (rebuild, args))
    sent = Ipc().export(None)
    assert sent[6] == "aaaa"
    cuda.uuids.reverse()
    assert Ipc().restore(sent) == (*args[:6], 1, *args[7:])


def test_expandable_segments_are_refused_before_anything_is_exported(monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(PlanError, match="take expandable_segments out"):
        Ipc()


def test_an_event_travels_as_its_handle_and_the_gpu_as_its_uuid(cuda: Cuda) -> None:
    _, told, handle = Ipc().signal(torch.device("cuda", 0))
    assert (told, handle) == ("aaaa", b"after main0")
    cuda.uuids.reverse()
    Ipc().wait(told, handle)
    assert cuda.log == [("main1", "waits", "after main0 on cuda:1")]


# the script


@pytest.mark.parametrize(
    "path", [p for p in cuda_paths.PATHS if "load" in p or "handed" in p or "GPU to" in p]
)
def test_the_script_runs_its_paths_through(cuda: Cuda, monkeypatch: Any, path: str) -> None:
    monkeypatch.setattr(cuda_moves, "Pinned", pool)
    row = cuda_paths.attempt(path, 4096)
    assert row.state == "ok" or "though one after the other" in row.state, row.state
    assert row.state != "ok" or row.seconds > 0


@pytest.mark.parametrize("lane", [Device("cpu:0"), Device("cpu:1")])
def test_an_edge_is_run_and_fails_where_it_took_another_way(lane: Device) -> None:
    """On lanes of the CPU, which every machine has."""
    nbytes, seconds = cuda_edges.edge("reference", Device("cpu:0"), lane)(4096)
    assert nbytes == 4096
    assert seconds >= 0
    with pytest.raises(ValueError, match="planned by reference"):
        cuda_edges.edge("cuda", Device("cpu:0"), lane)(4096)


def test_there_is_an_edge_for_each_way_off_a_gpu() -> None:
    told = {name.partition(",")[0].removeprefix("edge by ") for name in cuda_edges.EDGES}
    assert told == {*ON_GPU, "arena"}
    assert set(cuda_edges.EDGES) <= set(cuda_paths.PATHS)


def test_a_path_that_gives_other_values_fails_and_one_without_its_device_is_left_out(
    cuda: Cuda, monkeypatch: Any, capsys: Any
) -> None:
    cuda.uuids.pop()
    assert cuda_paths.attempt("from GPU to GPU", 4096).state == "left out: one device"
    monkeypatch.setattr(cuda_moves, "array", lambda nbytes: np.zeros(nbytes // 4, np.float32))
    monkeypatch.setattr(cuda_moves, "Pinned", pool)
    row = cuda_paths.attempt("upload, pinned", 4096)
    assert row.state.startswith("failed: ValueError: other values")
    cuda_paths.show([row, cuda_paths.Row("upload", "ok", 1 << 30, 0.5)])
    assert capsys.readouterr().out.splitlines()[-1].split() == ["upload", "1024", "500.00", "2.1", "ok"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_the_script_says_so_and_is_content(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["cuda_paths"])
    assert cuda_paths.main() == 0
    assert capsys.readouterr().out == "no CUDA device: nothing to check\n"
