"""Where values of a GPU may go meanwhile when its memory runs low: a peer device, the host, a disk.

Each says what room it offers now; which one is taken is `pipeline.buffers.tiers.choose`. What comes back is
on the device it was on.

When not: a peer without a direct link is no faster than the host, and is left out.

Never run on a GPU so far: tested with fakes.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pipeline.buffers.cuda import Here, carry
from pipeline.buffers.device import Pending, peers
from pipeline.buffers.staging import Staging
from pipeline.buffers.tiers import Tier
from pipeline.buffers.transports import FileTransport

__all__ = ["DISK", "HOST", "DiskPlace", "HostPlace", "PeerPlace", "Refuge", "disk", "refuges"]

PEER, HOST, DISK = 50e9, 25e9, 1e9
"""Bytes/s to a peer device (PCIe 5), to pinned memory (PCIe 4) and to a common NVMe disk: assumed, to choose
by. Only their order matters for where a value goes."""
RESERVE = 1 << 28
"""Bytes of a disk that are left to others."""
LENT = 0.5
"""The share of what is free on a peer device that others may take: it has work of its own."""


def disk(folder: Path | None = None) -> Tier:
    """The disk of a folder, which need not be there yet, by default that of temporary files."""
    there = Path(tempfile.gettempdir()) if folder is None else folder
    while not there.exists():
        there = there.parent
    return Tier(f"the disk of {there}", shutil.disk_usage(there).free - RESERVE, DISK)


class Refuge(Protocol):
    """Where values lodge."""

    def tier(self) -> Tier:
        """What it offers now."""
        ...

    def put(self, given: Here) -> Callable[[], Here]:
        """Copy a value there; what is returned brings it back to its devices."""
        ...


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """The memory of another device, `device` as torch has it."""

    device: Any
    staging: Staging

    def tier(self) -> Tier:
        """A share of what is free there."""
        import torch

        free, _ = torch.cuda.mem_get_info(self.device)
        return Tier(str(self.device), int(LENT * free), PEER)

    def put(self, given: Here) -> Callable[[], Here]:
        """By way of side streams."""
        devices = [p.tensor.device for p in given.tensors]
        away = [carry(p, self.device, self.staging) for p in given.tensors]

        def back() -> Here:
            return _with(given, [carry(p, d, self.staging) for p, d in zip(away, devices, strict=True)])

        given = _with(given, [])  # its tensors must not live on in `back`
        return back


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Pinned memory of the host."""

    staging: Staging

    def tier(self) -> Tier:
        """What is left of the pool."""
        pool = self.staging.pool
        return Tier("the host's pinned memory", pool.limit - pool.held, HOST)

    def put(self, given: Here) -> Callable[[], Here]:
        """Each tensor as it is."""
        devices = [p.tensor.device for p in given.tensors]
        away = [_down(p, self.staging) for p in given.tensors]
        given = _with(given, [])
        return lambda: _with(given, [_up(t, d, self.staging) for t, d in zip(away, devices, strict=True)])


class DiskPlace:
    """Files, in a folder of this process that goes with it."""

    def __init__(self, staging: Staging, base: Path | None = None) -> None:
        self.base = base
        self._staging = staging
        self._files: FileTransport | None = None

    def tier(self) -> Tier:
        """What is free there."""
        return disk(self.base)

    def put(self, given: Here) -> Callable[[], Here]:
        """All tensors in one file, which is removed with what is returned. Raises OSError."""
        self._files = files = self._files or FileTransport(self.base)
        devices = [p.tensor.device for p in given.tensors]
        handle = files.put([_down(p, self._staging) for p in given.tensors])
        given = _with(given, [])

        def back() -> Here:
            away = zip(files.get(handle), devices, strict=True)
            return _with(given, [_up(tensor, device, self._staging) for tensor, device in away])

        weakref.finalize(back, files.release, handle).atexit = False
        return back


def refuges(device: Any, staging: Staging, files: DiskPlace) -> list[Refuge]:
    """Where values of a device may go: to those that reach it, to the host, to disk."""
    import torch

    others = [i for i in range(torch.cuda.device_count()) if i != device.index and peers(device.index, i)]
    return [*(PeerPlace(torch.device("cuda", i), staging) for i in others), HostPlace(staging), files]


def _with(given: Here, tensors: Sequence[Pending]) -> Here:
    return replace(given, tensors=tuple(tensors))


def _down(given: Pending, staging: Staging) -> Any:
    return staging.fetch(given) if given.tensor.is_cuda else given.tensor


def _up(tensor: Any, device: Any, staging: Staging) -> Pending:
    return staging.upload(tensor, device) if device.type == "cuda" else Pending(tensor)
