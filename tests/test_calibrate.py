"""Calibration: profiles from what a bench measures, and the cache, on hardware that is made up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import calibrate as module
from pipeline.calibrate import cache_path, calibrate, counts, fitted, known, measured
from pipeline.kernels import Effort
from pipeline.machine import HOST, NOMINAL, Device, Link, Machine, detect, layouts
from pipeline.machine_file import dumps, loads
from pipeline.profiles import provenance, saturation, source

torch = pytest.importorskip("torch")

TINY = Effort(1.0, 64, 64, 0.1, 1 << 18, 0, 1, 1 << 16, 1000, 0.001)


@dataclass
class FakeHost:
    """A CPU of which each thread multiplies 1e9 FLOP/s; two saturate its memory."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    memory: int = 32 * 2**30
    note: str = "1 MiB"
    storage: float = 3e9
    closed: bool = False

    def product(self, dtype: str, threads: int) -> float:
        return threads * (1e9 if dtype == "float32" else 3e9)

    def read(self, threads: int) -> float:
        return 1e10 * min(threads, 2)

    def copy(self, threads: int) -> float:
        return self.read(threads) / 2

    def together(self, dtype: str, threads: int) -> float:
        assert (dtype, threads) == ("bfloat16", 4)
        return 0.7

    def turns(self) -> float:
        return 2.5e7

    def handoff(self) -> float:
        return 1e-4

    def load(self) -> float:
        if not self.storage:
            raise OSError("read-only")
        return self.storage

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeCuda:
    """A GPU, or a MIG slice of one."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    memory: int = 16 * 2**30
    note: str = "H100 MIG-7, 1 MiB"

    def product(self, dtype: str) -> float:
        return 1e13 if dtype == "float32" else 1e14

    def read(self) -> float:
        return 1e12

    def copy(self) -> float:
        return 4e11

    def together(self, dtype: str) -> float:
        return 0.9

    def handoff(self) -> float:
        return 2e-5

    def to_host(self) -> Link:
        return Link(2e9, 1e-5)

    def to(self, other: Any) -> Link:
        return Link(5e10, 3e-6)


@dataclass
class FakeBench:
    cores: int = 4
    facts: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "Fast CPU", "torch": "3", "flags": "avx2 amx_bf16"}
    )
    one: FakeHost = field(default_factory=FakeHost)

    def host(self) -> FakeHost:
        return self.one

    def cuda(self, index: int) -> FakeCuda:
        return FakeCuda()


CPU = Machine((Device("cpu:0", 4),))
GPUS = Machine((Device("cpu:0", 4), Device("cuda:0"), Device("cuda:1"), Device("pim:0")))


# what a bench measures becomes profiles


def test_the_cpu_has_a_profile_for_each_count_of_threads() -> None:
    found = calibrate(CPU, bench=FakeBench())
    assert sorted(found.by_threads) == [1, 2, 4]
    assert found.by_threads[2].peaks == {"float32": 2e9, "bfloat16": 6e9}
    assert [p.bandwidth for p in found.by_threads.values()] == [1e10, 2e10, 2e10]
    assert found.device("cpu:0").profile == found.by_threads[4]


def test_all_that_was_measured_is_in_the_profile_with_its_source() -> None:
    found = calibrate(CPU, bench=FakeBench(), task_seconds=0.005)
    p = found.device("cpu:0").profile
    assert found.handoff == 0.005
    assert (p.memory, p.scalar, p.load, p.together) == (32 * 2**30, 2.5e7, 3e9, 0.7)
    assert p.overhead == 0.0001
    assert provenance(p) == "measured"
    told = source(p, "bandwidth")
    assert told.startswith("measured: sum over a buffer, 4 of 4 threads, Fast CPU (amx_bf16 avx2), torch 3")
    assert told.endswith("1 MiB; reading saturates at 2")


def test_power_and_price_are_kept_as_declared_and_shared_by_threads() -> None:
    priced = Machine((Device("cpu:0", 4, replace(NOMINAL, price=1.0, idle_watts=40, joules_per_flop=1e-11)),))
    found = calibrate(priced, bench=FakeBench())
    assert (found.by_threads[1].price, found.by_threads[1].idle_watts) == (0.25, 10)
    p = found.device("cpu:0").profile
    assert (p.price, p.idle_watts, p.joules_per_flop) == (1.0, 40, 1e-11)
    assert source(calibrate(CPU, bench=FakeBench()).devices[0].profile, "price").startswith(
        "assumed: unknown"
    )


def test_where_nothing_can_be_written_loading_keeps_its_default() -> None:
    bench = FakeBench(one=FakeHost(storage=0))
    assert calibrate(CPU, bench=bench).devices[0].profile.load == NOMINAL.load
    assert bench.one.closed


def test_cuda_devices_are_measured_with_their_links_and_others_are_left_alone() -> None:
    found = calibrate(GPUS, bench=FakeBench(), task_seconds=0.005)
    p = found.device("cuda:1").profile
    assert (p.peaks["bfloat16"], p.bandwidth, p.copy, p.memory) == (1e14, 1e12, 4e11, 16 * 2**30)
    assert (p.together, p.scalar, p.overhead) == (0.9, 2.5e7, 0.00012)
    assert p.load == 2e9, "weights cannot come faster than over the link"
    assert found.links == {
        (HOST, "cuda:0"): Link(2e9, 1e-5),
        (HOST, "cuda:1"): Link(2e9, 1e-5),
        ("cuda:0", "cuda:1"): Link(5e10, 3e-6),
    }
    assert found.device("pim:0").profile is NOMINAL


def test_the_source_of_a_slice_names_its_uuid() -> None:
    assert "MIG-7" in source(calibrate(GPUS, bench=FakeBench()).device("cuda:0").profile, "bfloat16")


def test_lanes_have_what_was_measured_for_their_threads() -> None:
    found = calibrate(CPU, bench=FakeBench())
    two, whole = layouts(found)[1], found.by_threads[4]
    # Two threads saturate the memory: two such lanes at once share it, while products grow with threads.
    expected = replace(found.by_threads[2], bandwidth=whole.bandwidth / 2, copy=whole.copy / 2)
    assert [d.profile for d in two.devices] == [expected] * 2
    assert expected.peaks["float32"] == whole.peaks["float32"] / 2
    assert calibrate(two, bench=FakeBench()).devices[0].profile == found.by_threads[2]


def test_what_was_measured_can_be_carried_to_another_machine() -> None:
    found = calibrate(GPUS, bench=FakeBench())
    again = loads(dumps(found), "carried.yaml")
    assert (again, again.links) == (found, found.links)
    assert again.device("cuda:0").profile == found.device("cuda:0").profile
    assert dict(again.by_threads) == dict(found.by_threads)


# aggregation


@given(st.integers(1, 300))
def test_threads_are_doubled_up_to_all_of_them(most: int) -> None:
    found = counts(most)
    assert (found[0], found[-1]) == (1, most)
    assert list(found) == sorted(set(found))
    assert all(b <= 2 * a for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("rates", "threads"),
    [({1: 10}, 1), ({1: 10, 2: 19, 4: 20, 8: 21}, 2), ({1: 9, 2: 10}, 1), ({1: 5, 2: 10}, 2)],
)
def test_the_knee_is_where_more_threads_bring_little(rates: dict[int, float], threads: int) -> None:
    assert saturation(rates) == threads


# the cache


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """Calibration sees this bench instead of the hardware."""
    found = FakeBench()
    monkeypatch.setattr(module, "Here", lambda *_: found)
    monkeypatch.setattr(module, "facts", lambda _: found.facts)
    return found


def test_what_was_measured_once_is_known(
    tmp_path: Path, bench: FakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    assert known(CPU, tmp_path) is None
    with caplog.at_level(logging.INFO, "ridgeway"):
        first = measured(CPU, tmp_path)
        bench.one = FakeHost(memory=1)
        again = measured(CPU, tmp_path)
    assert again.devices[0].profile == first.devices[0].profile
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert "measured this machine" in caplog.text


def test_what_is_known_is_measured_again_where_that_is_asked(tmp_path: Path, bench: FakeBench) -> None:
    measured(CPU, tmp_path)
    bench.one = FakeHost(memory=8 * 2**30)
    assert measured(CPU, tmp_path, again=True).devices[0].profile.memory == 8 * 2**30
    assert [p.name for p in (tmp_path / "machines").iterdir()] == [cache_path(CPU, tmp_path).name]


def test_lanes_of_another_width_are_known_too(tmp_path: Path, bench: FakeBench) -> None:
    whole = measured(CPU, tmp_path)
    lanes = known(Machine((Device("cpu:0", 2), Device("cpu:1", 2))), tmp_path)
    assert lanes is not None
    assert [d.profile for d in lanes.devices] == [whole.by_threads[2]] * 2


def test_other_hardware_is_measured_anew(tmp_path: Path, bench: FakeBench) -> None:
    measured(CPU, tmp_path)
    bench.facts = {**bench.facts, "torch": "4"}
    assert known(CPU, tmp_path) is None


def test_a_device_that_nobody_measured_makes_all_unknown(tmp_path: Path, bench: FakeBench) -> None:
    measured(CPU, tmp_path)
    assert known(GPUS, tmp_path) is None


def test_links_to_what_the_machine_has_not_are_left_out() -> None:
    found = calibrate(GPUS, bench=FakeBench())
    fits = fitted(CPU, found)
    assert fits is not None
    assert fits.links == {}


def test_a_broken_file_is_measured_again(
    tmp_path: Path, bench: FakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    measured(CPU, tmp_path)
    (file,) = (tmp_path / "machines").iterdir()
    file.write_text("devices: 3")
    assert known(CPU, tmp_path) is None
    assert "made again" in caplog.text
    assert measured(CPU, tmp_path).by_threads


def test_a_folder_that_cannot_be_written_costs_a_line_no_more(
    tmp_path: Path, bench: FakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.INFO, "ridgeway"):
        assert measured(CPU, tmp_path / "file").by_threads
    assert "cannot be kept" in caplog.text


# the real thing


def test_this_machine_is_measured(tmp_path: Path) -> None:
    cpu = Machine(detect().lanes)
    found = measured(cpu, tmp_path, effort=TINY)
    p = found.devices[0].profile
    assert provenance(p) == "measured"
    assert set(found.by_threads) == set(counts(cpu.devices[0].threads))
    again = known(cpu, tmp_path)
    assert again is not None
    assert again.devices[0].profile == p


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_devices_of_this_machine_are_measured(tmp_path: Path) -> None:
    found = measured(detect(), tmp_path)
    for device in found.devices:
        assert provenance(device.profile) == "measured"
    p = found.device("cuda:0").profile
    assert p.auto() == "bfloat16" or "bfloat16" not in p.peaks
    assert p.bandwidth > found.links[HOST, "cuda:0"].bandwidth
    assert known(detect(), tmp_path) == found
