"""What identifies a machine, on hardware that is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.fingerprint import (
    cache_bytes,
    capabilities,
    cuda_facts,
    facts,
    fingerprint,
    flags,
    free_bytes,
    host_facts,
    memory_bytes,
)
from pipeline.machine import Device, Machine

CPUINFO = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Fast CPU\nflags\t\t: fpu avx2 {}\n"
MEMINFO = "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "cpuinfo").write_text(CPUINFO.format("amx_bf16"))
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def host(proc: Path, cores: tuple[int, ...] = (0, 1)) -> dict[str, str]:
    return host_facts(cores, proc / "cpuinfo", proc / "meminfo")


def test_the_cpu_is_told_with_model_instructions_cores_and_memory(proc: Path) -> None:
    found = host(proc)
    assert (found["cpu"], found["cores"]) == ("Fast CPU", "0,1")
    assert (found["flags"], found["model"]) == ("amx_bf16 avx2 fpu", "6/143/")
    assert found["torch"]


def test_what_changes_changes_the_fingerprint(proc: Path) -> None:
    before = fingerprint(host(proc))
    assert before == fingerprint(host(proc))
    assert before != fingerprint(host(proc, (0, 2)))
    (proc / "cpuinfo").write_text(CPUINFO.format("avx512f"))
    assert before != fingerprint(host(proc))


def test_capabilities_are_read_not_assumed(proc: Path) -> None:
    assert flags(proc / "cpuinfo") == {"fpu", "avx2", "amx_bf16"}
    assert capabilities(flags(proc / "cpuinfo")) == ("amx_bf16", "avx2")
    assert flags(proc / "none") == frozenset()


def test_memory_is_what_a_container_may_use(proc: Path) -> None:
    (proc / "max").write_text("max\n")
    (proc / "limit").write_text("1000\n")
    assert memory_bytes(proc / "meminfo", [proc / "max"]) == 2048 * 1024
    assert memory_bytes(proc / "meminfo", [proc / "max", proc / "limit"]) == 1000
    assert (free_bytes(proc / "meminfo"), free_bytes(proc / "none")) == (1024 * 1024, 0)


def test_the_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    for i, size in enumerate(["48K", "2048K", "260M"]):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(f"{size}\n")
    assert cache_bytes(tmp_path) == 260 << 20
    assert cache_bytes(tmp_path / "none") == 0


class FakeCuda:
    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def get_device_properties(self, index: int) -> SimpleNamespace:
        name = "H100 MIG 1g.10gb"
        return SimpleNamespace(name=name, uuid=self.uuid, total_memory=10, multi_processor_count=16)


def test_a_mig_slice_is_told_by_its_uuid_and_by_what_is_visible(tmp_path: Path) -> None:
    def told(uuid: str, visible: str) -> dict[str, str]:
        fake = SimpleNamespace(cuda=FakeCuda(uuid))
        return cuda_facts(fake, 1, {"CUDA_VISIBLE_DEVICES": visible}, tmp_path / "none")

    found = told("MIG-1", "MIG-1")
    assert found["cuda:0"] == "H100 MIG 1g.10gb MIG-1 10 16"
    assert fingerprint(found) != fingerprint(told("MIG-2", "MIG-2"))


def test_a_machine_without_cuda_is_told_without_asking_for_it() -> None:
    assert not {k for k in facts(Machine((Device("cpu:0"),))) if k.startswith("cuda")}
