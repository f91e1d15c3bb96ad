"""Values of a GPU that wait for their readers: where its memory runs low, they lodge elsewhere meanwhile.

What is needed latest leaves first, to the fastest place with room (`pipeline.buffers.tiers`): a peer device,
pinned memory of the host, a disk. It is copied back to its device when it is read, and stays away otherwise.

When not: between processes, where readers have mapped the memory (CUDA IPC); and for what a stage keeps for
itself, such as weights, which count as used here but are not ours to move.

Never run on a GPU so far: tested with fakes.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from threading import Lock, RLock
from typing import Any

from pipeline.buffers.cuda import Here
from pipeline.buffers.refuges import HOST, Refuge
from pipeline.buffers.tiers import Resident, Watermarks, choose, demote
from pipeline.errors import PlanError

__all__ = ["HIGH", "LOW", "Lodged", "Lodgings", "used"]

HIGH, LOW = 0.9, 0.7
"""Shares of a device's memory: above the one values leave, down to the other."""


class Lodged:
    """A value on its way within a process. Its memory, wherever that is, goes with the last reference."""

    def __init__(self, given: Here, due: int) -> None:
        self.due = due
        self.nbytes = given.nbytes
        self.devices = frozenset(given.writers)
        self._given: Here | None = given
        self._back: Callable[[], Here] | None = None
        self._lock = Lock()

    def __reduce__(self) -> Any:
        raise PlanError("a value that stays in its process was sent to another: plan that edge by cuda-ipc")

    @property
    def is_away(self) -> bool:
        """Whether it has left its device."""
        return self._given is None

    def here(self) -> Here:
        """The value on its device; what is away is copied for this reader alone."""
        with self._lock:
            given, back = self._given, self._back
        if given is not None:
            return given
        assert back is not None
        return back()

    def leave(self, place: Refuge) -> None:
        """Go there; who reads it, keeps it. Raises OSError where the disk is full: it then stays."""
        with self._lock:
            if self._given is not None:
                self._back = place.put(self._given)
                self._given = None


class Lodgings:
    """The values of one process that wait on its devices. For several threads.

    `places`: where those of a device may go; `used`: bytes in use on a device, and all that it has.
    """

    def __init__(
        self, places: Callable[[Any], Sequence[Refuge]], used: Callable[[Any], tuple[int, int]]
    ) -> None:
        self._places, self._used = places, used
        self._values: weakref.WeakSet[Lodged] = weakref.WeakSet()
        self._lock = RLock()  # the end of a value may come amid anything

    def put(self, given: Here, due: int) -> Lodged:
        """A value as it is handed on; others leave its devices where these run low, or it does.

        `due`: when it is needed; larger is later. Where nothing has room it stays, with a warning.
        """
        value = Lodged(given, due)
        with self._lock:
            self._values.add(value)
            for device in value.devices:
                try:
                    self._relieve(device)
                except (MemoryError, OSError) as error:
                    logging.getLogger("ridgeway").warning("%s runs low: %s", device, error)
        return value

    def _relieve(self, device: Any) -> None:
        """From above the high mark down to the low one, as far as there is something to move."""
        in_use, total = self._used(device)
        excess = Watermarks(int(HIGH * total), int(LOW * total)).excess(in_use)
        if not excess:
            return
        there = [v for v in self._values if device in v.devices and not v.is_away]
        for value in demote([Resident(v, v.nbytes, v.due, v.nbytes / HOST) for v in there], excess, 0):
            offered = [(place.tier(), place) for place in self._places(device)]
            tier = choose([tier for tier, _ in offered], value.nbytes)
            value.leave(next(place for other, place in offered if other is tier))


def used(device: Any) -> tuple[int, int]:
    """Bytes in use on a device, and all that it has; what torch keeps for later is free."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return total - free - spare, total
