"""The command lines of vLLM and llama.cpp's server, and what they take of a device. Pure.

Both live in environments of their own: nothing of them is imported. They listen on this machine alone and
fetch nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ModelError, RidgewayError
from pipeline.lookup import near_miss
from pipeline.machine import Device
from stages.llm.cost import cache_bytes
from stages.shapes import Shape

__all__ = ["KINDS", "MOST", "Launch", "command", "executable", "memory", "share"]


class Program(NamedTuple):
    """What starts a server: the environment variable with the path of its program, and the usual name."""

    variable: str
    program: str


KINDS: Mapping[str, Program] = {
    "vllm": Program("RIDGEWAY_VLLM", "vllm"),
    "llama.cpp": Program("RIDGEWAY_LLAMA_SERVER", "llama-server"),
}
"""Servers that can be started."""

_USUAL_TOKENS = 1024
"""Prompt and answer of a question with eight passages: what vLLM keeps for each row in flight."""
_BESIDE = {"vllm": 3 << 30, "llama.cpp": 1 << 29}
"""Bytes beside weights and cache: activations, CUDA graphs, buffers. Assumed."""
MOST = 0.9
"""The largest share of a device that is given away: vLLM's own default."""
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """A server to be started: `model`, a folder for vLLM, a GGUF file for llama.cpp, is asked for by `name`.

    `window`: tokens of a prompt and its answer; `concurrency`: rows in flight; `share`: the part of the
    device's memory that vLLM takes. Raises RidgewayError for another kind, ModelError for another model.
    """

    kind: str
    model: Path
    name: str
    window: int
    concurrency: int
    share: float = MOST

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RidgewayError(f"no server named {self.kind!r}{near_miss(self.kind, KINDS)}")
        if (self.model.suffix == ".gguf") != (self.kind == "llama.cpp"):
            wanted = "a folder of Hugging Face files" if self.kind == "vllm" else "a GGUF file"
            raise ModelError(f"{self.kind} needs {wanted}, and {self.model} is none; give one")


def memory(known: Shape, kind: str, window: int, concurrency: int) -> float:
    """Bytes that a server takes: weights, cache, and what is beside them.

    vLLM has pages for all rows in flight and needs at least one whole window; its weights have two bytes.
    llama.cpp keeps a window for each row; its weights are those of the file. Ours.
    """
    weights = 2.0 * known.total if kind == "vllm" else float(known.stored)
    usual = max(window, concurrency * _USUAL_TOKENS)
    tokens = usual if kind == "vllm" else window * concurrency
    return weights + tokens * cache_bytes(known, "float16") + _BESIDE[kind]


def share(needed: float, device: Device) -> float:
    """The part of the device's memory that `needed` bytes are, no more than `MOST`."""
    return min(needed / device.profile.memory, MOST)


def executable(kind: str, environ: Mapping[str, str]) -> str | None:
    """The program of a server, from its environment variable or on the path; None where there is none."""
    variable, name = KINDS[kind]
    return shutil.which(environ.get(variable) or name, path=environ.get("PATH"))


def command(
    launch: Launch, program: str, device: Device, port: int, environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line of a server on `device`, and its environment: ours, without our Python.

    Raises ModelError for a device that the server cannot use.
    """
    env = {k: v for k, v in environ.items() if k not in _OURS} | _QUIET
    env["CUDA_VISIBLE_DEVICES"] = _visible(device, environ)
    env["PATH"] = os.pathsep.join(
        [os.path.dirname(program), environ.get("PATH", os.defpath)]
    )  # its own tools
    lines = _vllm(launch, device) if launch.kind == "vllm" else _llama(launch, device)
    return [program, *lines, "--host", "127.0.0.1", "--port", str(port)], env


def _vllm(launch: Launch, device: Device) -> list[str]:
    if device.kind != "cuda":
        where = "place the stage on a GPU, or start 'llama.cpp'"
        raise ModelError(f"vLLM does not run on {device.name}; {where}")
    return [
        "serve", str(launch.model),
        "--served-model-name", launch.name,
        "--gpu-memory-utilization", f"{launch.share:.3f}",
        "--max-model-len", str(launch.window),
        "--max-num-seqs", str(launch.concurrency),
        "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--generation-config", "vllm",  # else the model's own sampling comes on top of ours
    ]  # fmt: skip


def _llama(launch: Launch, device: Device) -> list[str]:
    return [
        "-m", str(launch.model),
        "--alias", launch.name,
        "-c", str(launch.window * launch.concurrency),  # it divides this among the rows
        "-np", str(launch.concurrency),
        "-ngl", "999" if device.kind == "cuda" else "0",
        "-t", str(device.threads),
    ]  # fmt: skip


def _visible(device: Device, environ: Mapping[str, str]) -> str:
    """What CUDA_VISIBLE_DEVICES must be for the server to see `device` alone; "cuda:1" counts what we see."""
    if device.kind != "cuda":
        return ""
    number = device.torch.partition(":")[2]  # that of the GPU, also for lanes that divide one
    seen = [d.strip() for d in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if d.strip()]
    if seen and int(number) >= len(seen):
        raise ModelError(f"device {device.name}: CUDA_VISIBLE_DEVICES shows {len(seen)} devices only")
    return seen[int(number)] if seen else number
