"""CUDA devices as several processes name them, which ways between them are open, and tensors on their way.

The index of a device counts those that a process may see, so that `cuda:0` of two processes with different
CUDA_VISIBLE_DEVICES are two devices (pytorch#149196). Between processes a device is its UUID.

Never run on a GPU so far: read in torch 2.13, and tested with fakes. Not told by torch, and so not checked:
whether the allocator was set to expandable segments by a call instead of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.buffers.identity import own
from pipeline.errors import PlanError

__all__ = [
    "UNKNOWN", "Gpu", "Pending", "View", "accept", "expandable", "index_of", "no_segments", "peers",
    "pending", "record", "refusal", "seen", "uuid", "view",
]  # fmt: skip

UNKNOWN = "unknown"
"""A part of a GPU (MIG) of which nobody can tell which one it is."""
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Torch reads the first of them that is set, and which comes first depends on its version."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device by the name that all processes share. `mig`: its instance; empty for a whole GPU."""

    uuid: str
    mig: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What a process says of its surroundings; it travels to whoever asks whether CUDA IPC is open.

    `host`: kernel, pid and ipc namespace; `gpus`: by index; `expandable`: the setting of the environment that
    turns expandable segments on, or nothing.
    """

    host: str
    gpus: tuple[Gpu, ...]
    expandable: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """A tensor that work on some stream still writes, and the event after which it is there.

    `event` is None on a CPU, where tensors are there when a call returns.
    """

    tensor: Any
    event: Any = None

    def take(self) -> Any:
        """The tensor, for work on the caller's current stream: it waits there, the caller does not."""
        if self.event is not None:
            accept(self.tensor, self.event)
        return self.tensor


def pending(tensor: Any) -> Pending:
    """A tensor for another thread or stream: all work so far on the caller's current stream comes first."""
    return Pending(tensor, record(tensor.device) if tensor.is_cuda else None)


def record(device: Any, interprocess: bool = False) -> Any:
    """An event after all work so far on the current stream of a device."""
    import torch

    event = torch.cuda.Event(interprocess=interprocess)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def accept(tensor: Any, event: Any) -> None:
    """Later work on the current stream of the tensor's device waits for the event, and keeps its memory.

    Streams are thread-local: call it in the thread that reads. Without `record_stream` the allocator would
    give the memory away once the last reference is gone, though this stream may still read it.
    """
    import torch

    stream = torch.cuda.current_stream(tensor.device)
    stream.wait_event(event)
    tensor.record_stream(stream)


def uuid(index: int) -> str:
    """The UUID of a device of this process."""
    import torch

    return str(torch.cuda.get_device_properties(index).uuid)


def index_of(uuid_: str) -> int:
    """The index in this process of the device with that UUID. Raises PlanError where it sees none."""
    import torch

    found = [uuid(i) for i in range(torch.cuda.device_count())]
    if uuid_ in found:
        return found.index(uuid_)
    raise PlanError(
        f"GPU {uuid_} is not visible to this process, which sees {', '.join(found) or 'none'} "
        f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}): "
        "give all processes that share it the same CUDA_VISIBLE_DEVICES"
    )


def peers(a: int, b: int) -> bool:
    """Whether two devices of this process read each other's memory without the host."""
    import torch

    return a == b or bool(torch.cuda.can_device_access_peer(a, b))


def view(environ: Mapping[str, str] = os.environ) -> View:
    """What this process sees; no GPUs where there is no CUDA."""
    import torch

    host = ":".join((*own().split(":")[:2], str(os.stat("/proc/self/ns/ipc").st_ino)))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = [torch.cuda.get_device_properties(i).name for i in range(count)]
    gpus = tuple(Gpu(uuid(i), _instance(name, visible[i : i + 1])) for i, name in enumerate(names))
    return View(host, gpus, expandable(environ))


def seen(lanes: Iterable[str]) -> View | None:
    """What this process sees; None, and torch is not asked, where none of these lanes is a GPU's."""
    return view() if any(name.startswith("cuda:") for name in lanes) else None


def _instance(name: str, entry: list[str]) -> str:
    """The MIG instance of a device by its name ("NVIDIA A100 MIG 1g.5gb") and its entry among the visible."""
    if entry and entry[0].strip().startswith("MIG-"):
        return entry[0].strip()
    return UNKNOWN if "MIG" in name.split() else ""


def expandable(environ: Mapping[str, str]) -> str:
    """The setting that turns expandable segments on, such as `PYTORCH_ALLOC_CONF=...`; else nothing."""
    for name in _ALLOCATOR:
        pairs = [item.partition(":") for item in environ.get(name, "").split(",")]
        values = [value.strip() for key, _, value in pairs if key.strip() == "expandable_segments"]
        if values and values[-1].lower() == "true":
            return f"{name}={environ[name]}"
    return ""


def refusal(a: View, b: View, gpu: str) -> str:
    """Why two processes cannot share memory of a GPU by CUDA IPC, and what to change; empty where they can.

    Processes that share a GPU in parts (MIG) can where both tell the same instance.
    """
    return _no_host(a, b) or _no_gpu(a, b, gpu) or no_segments(a.expandable) or no_segments(b.expandable)


def _no_host(a: View, b: View) -> str:
    if a.host == b.host:
        return ""
    return (
        "the processes are on different hosts, or in containers with process ids or IPC of their own: "
        "start the containers with --pid=host --ipc=host, or let the edge travel by bytes"
    )


def _no_gpu(a: View, b: View, gpu: str) -> str:
    parts = [next((g.mig for g in side.gpus if g.uuid == gpu), None) for side in (a, b)]
    if None in parts:
        return f"GPU {gpu} is not visible to both processes: give them the same CUDA_VISIBLE_DEVICES"
    if UNKNOWN in parts:
        return f"GPU {gpu} is divided (MIG): give both processes the same CUDA_VISIBLE_DEVICES=MIG-..."
    if parts[0] != parts[1]:
        return (
            f"GPU {gpu} is divided (MIG), and CUDA IPC does not cross from {parts[0]} to {parts[1]}: use one"
        )
    return ""


def no_segments(setting: str) -> str:
    """Why there is no CUDA IPC with this setting of the environment (see `expandable`); empty for none."""
    if not setting:
        return ""
    return (
        f"{setting} turns expandable segments on, which CUDA IPC cannot export without rights that "
        "containers rarely have (pytorch#165685): take expandable_segments out of it"
    )
