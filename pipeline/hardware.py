"""Looks at the processors: what the CPU can multiply, which CUDA devices torch can use, or why none.

Probes for `pipeline.doctor`, as in `pipeline.probes`. Nothing is measured here, and nothing is chosen:
`pipeline.machine.detect` does that.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pipeline.machine import cores
from pipeline.probes import Check, gib

__all__ = ["cpu", "cuda", "quota"]

_INSTRUCTIONS = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "sve", "i8mm", "bf16",
)  # fmt: skip
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
_HIDDEN = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide every device."""


def cpu(cpuinfo: Path = Path("/proc/cpuinfo"), count: int | None = None) -> Check:
    """The CPU's name, the cores that may be used, and its instructions for arithmetic."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = _field("model name|Model", text) or platform.processor() or platform.machine()
    flags = set(_field("flags|Features", text).split())
    known = [flag for flag in _INSTRUCTIONS if flag in flags]
    number = "multiplies bfloat16" if flags & _BFLOAT16 else "computes in float32: no bfloat16 instructions"
    found = f"{name}, {cores() if count is None else count} cores; {' '.join(known) or 'unknown'}; {number}"
    if "sse2" in flags and "avx2" not in flags:
        return Check("cpu", "warn", found, "expect it to be slow: most kernels want AVX2")
    return Check("cpu", "ok", found)


def _field(names: str, text: str) -> str:
    """The value of the first line of /proc/cpuinfo that has one of the names."""
    match = re.search(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def quota(path: Path = Path("/sys/fs/cgroup/cpu.max"), count: int | None = None) -> Iterator[Check]:
    """A container's share of processor time, where it is less than the cores that it shows (cgroup v2)."""
    count = cores() if count is None else count
    share, _, period = (path.read_text(encoding="utf-8") if path.is_file() else "max 1").partition(" ")
    if share != "max" and int(share) / int(period) < count:
        found = f"time of {int(share) / int(period):.1f} cores, but {count} are shown"
        advice = "give the container cores instead of time (--cpuset-cpus), or stages start too many threads"
        yield Check("cpu quota", "warn", found, advice)


def cuda(
    torch: Any = None,
    environ: Mapping[str, str] = os.environ,
    driver: Path = Path("/proc/driver/nvidia/gpus"),
) -> Iterator[Check]:
    """A row for each CUDA device, after computing on it; or one that says why there is none."""
    torch = torch or importlib.import_module("torch")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        yield _none(
            torch, environ.get("CUDA_VISIBLE_DEVICES"), driver.is_dir(), [str(w.message) for w in told]
        )
        return
    for i in range(torch.cuda.device_count()):
        yield _device(torch, i)


def _none(torch: Any, visible: str | None, present: bool, told: list[str]) -> Check:
    """Why torch has no CUDA device: that is well where the machine has none (`present`)."""
    status: Literal["ok", "warn"] = "warn" if present else "ok"
    if visible is not None and visible.strip() in _HIDDEN:
        return Check(
            "cuda", status, f"hidden: CUDA_VISIBLE_DEVICES={visible!r}", "unset it" if present else ""
        )
    if torch.version.cuda is None:
        advice = "install the CUDA build of torch (pytorch.org, Get Started)" if present else ""
        return Check("cuda", status, f"torch {torch.__version__} is built for CPUs only", advice)
    why = _first_line(told[0] if told else _refusal(torch))
    found = f"torch is built for CUDA {torch.version.cuda}, but: {why}"
    return Check(
        "cuda", status, found, "compare the driver's version (nvidia-smi) with it" if present else ""
    )


def _refusal(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error)
    return "it finds no device"


def _device(torch: Any, i: int) -> Check:
    name = f"cuda:{i}"
    try:
        facts = torch.cuda.get_device_properties(i)
        arch = f"sm_{facts.major}{facts.minor}"
        ones = torch.ones(64, 64, device=name)
        right = float((ones @ ones).sum()) == 64**3
        free, total = torch.cuda.mem_get_info(i)
    except Exception as error:
        kernels = " ".join(torch.cuda.get_arch_list())
        advice = f"this torch has kernels for {kernels}: install a build that fits device and driver"
        return Check(name, "fail", f"{type(error).__name__}: {_first_line(str(error))}", advice)
    found = f"{facts.name} ({arch}), {gib(free)} free of {gib(total)}"
    if not right:
        return Check(name, "fail", f"{found}; it computes wrong sums", "replace it, or pin stages elsewhere")
    return Check(name, "ok", found)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]
