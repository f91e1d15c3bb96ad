"""Notes when lanes stand still and why, while a run or a simulation goes on."""

from __future__ import annotations

from pipeline.scheduler import Scheduler
from pipeline.timeline import Stall


class Watch:
    """The stalls of a run; told after each event what time it is."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._open: dict[str, tuple[float, str, str]] = {}
        self._closed: list[Stall] = []

    def see(self, now: float) -> None:
        """Look at every lane."""
        idle = self._scheduler.board.standing()
        for lane in [lane for lane in self._open if lane not in idle]:
            self._close(lane, now)
        for lane in idle:
            why = self._scheduler.stall(lane)
            known = self._open.get(lane)
            if known is None or known[1:] != why:
                if known is not None:
                    self._close(lane, now)
                self._open[lane] = (now, *why)

    def note(self, stall: Stall) -> None:
        """A stall seen by someone else: rows on their way."""
        self._closed.append(stall)

    def stalls(self, now: float) -> tuple[Stall, ...]:
        """All of them, the run being over."""
        for lane in list(self._open):
            self._close(lane, now)
        return tuple(sorted(self._closed, key=lambda s: (s.start, s.device)))

    def _close(self, lane: str, now: float) -> None:
        since, reason, step = self._open.pop(lane)
        if now > since:
            self._closed.append(Stall(lane, since, now, reason, step))
