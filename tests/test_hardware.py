"""The doctor's view of CPUs and CUDA devices, on machines that are made up."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import hardware
from pipeline.probes import Check

CPUINFO = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu sse2 {}\n"


@pytest.mark.parametrize(
    ("flags", "status", "told"),
    [
        ("avx2 avx512f amx_bf16", "ok", "Fast CPU, 4 cores; avx2 avx512f amx_bf16; multiplies bfloat16"),
        ("avx2", "ok", "Fast CPU, 4 cores; avx2; computes in float32: no bfloat16 instructions"),
        ("sse4_2", "warn", "Fast CPU, 4 cores; unknown; computes in float32: no bfloat16 instructions"),
    ],
)
def test_the_cpu_is_told_with_what_it_can_multiply(
    tmp_path: Path, flags: str, status: str, told: str
) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(flags))
    check = hardware.cpu(tmp_path / "cpuinfo", 4)
    assert (check.status, check.found) == (status, told)


def test_a_cpu_without_cpuinfo_is_still_a_cpu(tmp_path: Path) -> None:
    assert hardware.cpu(tmp_path / "none", 4).status == "ok"


@pytest.mark.parametrize(
    ("text", "rows"), [("150000 100000\n", 1), ("400000 100000\n", 0), ("max 100000\n", 0)]
)
def test_less_time_than_cores_is_a_warning(tmp_path: Path, text: str, rows: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    found = list(hardware.quota(tmp_path / "cpu.max", 4))
    assert [c.status for c in found] == ["warn"] * rows
    assert list(hardware.quota(tmp_path / "none", 4)) == []


class FakeCuda:
    """torch.cuda with `count` devices, or with a driver that says `refusal`."""

    def __init__(self, count: int = 0, refusal: str = "", broken: bool = False) -> None:
        self.count, self.refusal, self.broken = count, refusal, broken

    def is_available(self) -> bool:
        if self.refusal:
            warnings.warn(f"CUDA initialization: {self.refusal}\nsee there", stacklevel=1)
        return self.count > 0

    def init(self) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    def device_count(self) -> int:
        return self.count

    def get_device_properties(self, i: int) -> Any:
        if self.broken:
            raise RuntimeError("CUDA error: no kernel image is available\nmore")
        return SimpleNamespace(name="H200", major=9, minor=0)

    def get_arch_list(self) -> list[str]:
        return ["sm_80"]

    def mem_get_info(self, i: int) -> tuple[int, int]:
        return 100 << 30, 141 << 30


def torch(cuda: FakeCuda, version: str | None = "12.8", total: int = 64**3) -> Any:
    ones = type("Ones", (), {"__matmul__": lambda a, b: a, "sum": lambda _: total})
    return SimpleNamespace(
        cuda=cuda, version=SimpleNamespace(cuda=version), __version__="2.13", ones=lambda *_, device: ones()
    )


def cuda(machine: Any, driver: Path, **environ: str) -> Check:
    (found,) = hardware.cuda(machine, environ, driver)
    return found


def test_each_device_is_told_after_it_has_computed(tmp_path: Path) -> None:
    found = list(hardware.cuda(torch(FakeCuda(2)), {}, tmp_path))
    assert [(c.name, c.status) for c in found] == [("cuda:0", "ok"), ("cuda:1", "ok")]
    assert found[0].found == "H200 (sm_90), 100.0 GiB free of 141.0 GiB"


def test_a_device_that_cannot_compute_or_computes_wrongly_fails(tmp_path: Path) -> None:
    broken = cuda(torch(FakeCuda(1, broken=True)), tmp_path)
    assert (broken.status, broken.found) == ("fail", "RuntimeError: CUDA error: no kernel image is available")
    assert "sm_80" in broken.advice
    assert cuda(torch(FakeCuda(1), total=7), tmp_path).status == "fail"


def test_a_machine_without_devices_is_well(tmp_path: Path) -> None:
    found = cuda(torch(FakeCuda(), version=None), tmp_path / "none")
    assert found == Check("cuda", "ok", "torch 2.13 is built for CPUs only")
    assert cuda(torch(FakeCuda()), tmp_path / "none").status == "ok"


def test_a_device_that_torch_cannot_use_is_a_warning_that_says_why(tmp_path: Path) -> None:
    assert "CUDA build" in cuda(torch(FakeCuda(), version=None), tmp_path).advice
    hidden = cuda(torch(FakeCuda()), tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (hidden.status, hidden.advice) == ("warn", "unset it")
    old = cuda(torch(FakeCuda(refusal="the driver is too old")), tmp_path)
    assert old.found == "torch is built for CUDA 12.8, but: CUDA initialization: the driver is too old"
    assert cuda(torch(FakeCuda()), tmp_path).found.endswith("Found no NVIDIA driver on your system.")
