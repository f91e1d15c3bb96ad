"""A View that says what it is told to, and by default that nothing goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class FakeView:
    """Rows and batches by step, batches by lane; a lane is idle unless it is busy."""

    rows: Mapping[str, int] = field(default_factory=dict)
    more: frozenset[str] = frozenset()
    batches: Mapping[str, int] = field(default_factory=dict)
    at_work: Mapping[str, int] = field(default_factory=dict)
    there: frozenset[tuple[str, str]] = frozenset()

    def waiting(self, step: str) -> int:
        return self.rows.get(step, 0)

    def coming(self, step: str) -> bool:
        return step in self.more

    def flying(self, step: str) -> int:
        return self.batches.get(step, 0)

    def busy(self, lane: str) -> int:
        return self.at_work.get(lane, 0)

    def idle(self, lane: str) -> bool:
        return not self.busy(lane)

    def opened(self, step: str, lane: str) -> bool:
        return (step, lane) in self.there
