"""When a batch was where on its way through a lane."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pipeline.timeline import Counts, Times


@dataclass(slots=True)
class Clock:
    """When a batch came to each of the three stations, and left it.

    `since`: when another batch that shared the lane ended, whose time that was; `ended`: when the stage
    was through; `length`: see `Times`.
    """

    marks: list[float] = field(default_factory=list)
    opening: float = 0.0
    length: float = 0.0
    since: float = 0.0
    ended: float = 0.0
    moved: Counts = field(default_factory=Counts)

    def mark(self) -> None:
        """It came, or left."""
        self.marks.append(time.monotonic())

    def times(self) -> Times:
        """One that failed was at no later station."""
        begun, ready, start, end, leaves, left = self.marks + [self.marks[-1]] * (6 - len(self.marks))
        end = self.ended or end
        beside = (ready - begun, left - leaves)
        return Times(max(start, min(self.since, end)), end, self.opening, self.length, *beside, self.moved)
