"""Values of a GPU that lodge elsewhere: what leaves, where to, how it comes back; nothing is kept."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers import refuges
from pipeline.buffers.cuda import Here
from pipeline.buffers.device import Pending
from pipeline.buffers.lodging import HIGH, LOW, Lodged, Lodgings
from pipeline.buffers.refuges import RESERVE, DiskPlace, HostPlace, PeerPlace, Refuge, disk
from pipeline.buffers.staging import Staging
from pipeline.buffers.tiers import Tier
from pipeline.errors import PlanError

TOTAL = 1000
GPU = torch.device("cuda", 0)


def value(number: int, nbytes: int = 100) -> Here:
    """As of a device, though it lies on the host: its first byte says which one it is."""
    tensor = torch.full((nbytes,), number, dtype=torch.uint8)
    return Here(b"", [], (Pending(tensor),), {GPU: None})


def number_of(here: Here) -> int:
    return int(here.tensors[0].tensor[0])


@dataclass
class Fake:
    """A place with `room` bytes, which counts what is there."""

    name: str
    room: int
    bandwidth: float
    there: list[int] = field(default_factory=list)
    full: bool = False

    def tier(self) -> Tier:
        return Tier(self.name, self.room, self.bandwidth)

    def put(self, given: Here) -> Callable[[], Here]:
        if self.full:
            raise OSError(28, "No space left on device")
        self.room -= given.nbytes
        self.there.append(number_of(given))
        away = given.tensors[0].tensor.numpy().copy()
        return lambda: replace(given, tensors=(Pending(torch.from_numpy(away)),))


@dataclass
class Device:
    """A device whose memory holds what has not left it, and `own` bytes beside."""

    own: int = 0
    kept: list[Lodged] = field(default_factory=list)

    def used(self, device: Any) -> tuple[int, int]:
        assert device == GPU
        return self.own + sum(v.nbytes for v in self.kept if not v.is_away), TOTAL

    def lodgings(self, *places: Fake) -> Lodgings:
        return Lodgings(lambda device: places, self.used)

    def put(self, lodgings: Lodgings, number: int, due: int, nbytes: int = 100) -> Lodged:
        """As where a value takes its memory before it is handed on."""
        self.own += nbytes
        self.kept.append(lodgings.put(value(number, nbytes), due))
        self.own -= nbytes
        return self.kept[-1]


def test_below_the_mark_all_stay_and_readers_get_the_very_value() -> None:
    device, host = Device(), Fake("host", 9999, 2.0)
    kept = [device.put(device.lodgings(host), i, i) for i in range(9)]
    assert host.there == []
    given = value(7)
    assert Lodged(given, 0).here() is given
    assert [number_of(v.here()) for v in kept] == list(range(9))


def test_above_the_mark_what_is_needed_latest_leaves_until_the_low_one() -> None:
    device, host = Device(), Fake("host", 9999, 2.0)
    lodgings = device.lodgings(host)
    kept = [device.put(lodgings, i, due) for i, due in enumerate((5, 1, 9, 3, 2, 8, 4, 7, 6))]
    assert host.there == []
    kept.append(device.put(lodgings, 9, 0))
    assert host.there == [2, 5, 7]
    assert [number_of(v.here()) for v in kept] == list(range(10))
    assert [v.is_away for v in kept].count(True) == 3


def test_the_fastest_place_with_room_takes_each() -> None:
    device = Device()
    places = (Fake("disk", 9999, 1.0), Fake("peer", 150, 3.0), Fake("host", 100, 2.0))
    lodgings = device.lodgings(*places)
    for i in range(10):
        device.put(lodgings, i, i)
    by_name = {p.name: p.there for p in places}
    assert by_name == {"peer": [9], "host": [8], "disk": [7]}


def test_where_nothing_has_room_it_stays_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    device, host = Device(), Fake("host", 50, 2.0)
    lodgings = device.lodgings(host)
    kept = [device.put(lodgings, i, i) for i in range(10)]
    assert "cuda:0 runs low: a value of 100 bytes" in caplog.text
    assert "50 bytes on host" in caplog.text
    assert not any(v.is_away for v in kept)


def test_a_disk_that_is_full_after_all_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    device, files = Device(), Fake("disk", 9999, 1.0, full=True)
    lodgings = device.lodgings(files)
    kept = [device.put(lodgings, i, i) for i in range(10)]
    assert "No space left on device" in caplog.text
    assert [number_of(v.here()) for v in kept] == list(range(10))


def test_what_nobody_needs_any_more_does_not_leave() -> None:
    device, host = Device(), Fake("host", 9999, 2.0)
    lodgings = device.lodgings(host)
    for i in range(9):
        device.put(lodgings, i, 100)
    device.kept.clear()
    gc.collect()
    for i in range(10, 19):
        device.put(lodgings, i, 1)
    assert host.there == []


def test_weights_count_and_cannot_leave() -> None:
    device, host = Device(own=850), Fake("host", 9999, 2.0)
    lodgings = device.lodgings(host)
    device.put(lodgings, 0, 1, 40)
    assert host.there == []
    device.put(lodgings, 1, 2, 40)
    assert host.there == [1, 0]


def test_it_does_not_go_to_another_process() -> None:
    with pytest.raises(PlanError, match="cuda-ipc"):
        pickle.dumps(Lodged(value(1), 0))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 9)), max_size=30),
    st.integers(0, 500),
    st.integers(0, 9999),
)
def test_no_limit_is_passed_where_there_is_room_and_contents_stay(
    arriving: list[tuple[int, int]], peer: int, host: int
) -> None:
    device = Device()
    places = (Fake("peer", peer, 3.0), Fake("host", host, 2.0), Fake("disk", 10**6, 1.0))
    lodgings = device.lodgings(*places)
    for number, (nbytes, due) in enumerate(arriving):
        before = device.used(GPU)[0] + nbytes
        device.put(lodgings, number, due, nbytes)
        after = device.used(GPU)[0]
        assert after <= HIGH * TOTAL + nbytes  # the new one leaves with the next, where all others have
        if before <= HIGH * TOTAL:
            assert after == before, "between the marks nothing moves"
    assert [number_of(v.here()) for v in device.kept] == list(range(len(arriving)))
    assert min(p.room for p in places) >= 0
    assert LOW < HIGH


# the places themselves, with a staging that moves nothing


class Far(torch.Tensor):
    """A tensor that says it is on a device, and is not."""

    is_cuda = True
    device = GPU


def far(tensor: torch.Tensor) -> Any:
    return tensor.clone().as_subclass(Far)


class Still:
    """A staging whose device is the host."""

    pool = SimpleNamespace(limit=1000, held=300)

    def fetch(self, pending: Pending) -> torch.Tensor:
        found: torch.Tensor = pending.tensor.clone().as_subclass(torch.Tensor)
        return found

    def upload(self, tensor: torch.Tensor, device: Any) -> Pending:
        assert device == GPU
        return Pending(far(tensor))


STILL: Any = Still()


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    def carry(given: Pending, device: Any, staging: Staging) -> Pending:
        return Pending(far(given.tensor))

    monkeypatch.setattr(refuges, "carry", carry)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["peer", "host", "disk"])
def test_what_comes_back_is_what_went(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    places: dict[str, Refuge] = {
        "peer": PeerPlace(torch.device("cuda", 1), STILL),
        "host": HostPlace(STILL),
        "disk": DiskPlace(STILL, tmp_path),
    }
    tensors = (torch.arange(6000).to(dtype).reshape(2, 3000), torch.ones(3, dtype=dtype))
    went = Here(b"head", [b"b"], (Pending(far(tensors[0])), Pending(tensors[1])), {})
    lodged = Lodged(went, 1)
    lodged.leave(places[kind])
    del went
    for _ in range(2):
        found = lodged.here()
        assert (found.head, found.buffers) == (b"head", [b"b"])
        assert all(torch.equal(p.tensor, t) for p, t in zip(found.tensors, tensors, strict=True))
    assert [type(p.tensor) for p in found.tensors] == [Far, torch.Tensor if kind != "peer" else Far]
    assert [p.tensor.dtype for p in found.tensors] == [dtype, dtype]


def test_the_tensors_that_left_are_gone() -> None:
    tensor = far(torch.ones(10))
    gone = weakref.ref(tensor)
    lodged = Lodged(Here(b"", [], (Pending(tensor),), {}), 1)
    lodged.leave(HostPlace(STILL))
    del tensor
    gc.collect()
    assert gone() is None


def test_a_file_goes_with_its_value(tmp_path: Path) -> None:
    place = DiskPlace(STILL, tmp_path)
    lodged = Lodged(Here(b"", [], (Pending(far(torch.ones(5000))),), {}), 1)
    lodged.leave(place)
    assert len(list(tmp_path.rglob("*.block"))) == 1
    view = lodged.here()
    del lodged
    gc.collect()
    assert list(tmp_path.rglob("*.block")) == []
    assert int(view.tensors[0].tensor.sum()) == 5000


def test_the_pool_says_what_room_the_host_has() -> None:
    assert HostPlace(STILL).tier().room == 700


def test_a_disk_keeps_a_reserve_and_need_not_have_the_folder_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": RESERVE + 17}))
    assert disk(tmp_path / "a" / "b").room == 17
    assert str(tmp_path) in disk(tmp_path / "a").name
    assert disk().room == 17
