"""Whether this machine is ready: versions, processors, models, variables, memory, disk; and what to do.

A list of probes, each on its own: one that raises becomes a failed row, and the others go on. See
`pipeline.probes` and `pipeline.hardware` for what they look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline import hardware, probes
from pipeline.probes import Check

__all__ = ["PROBES", "Check", "Report", "examine"]

Probe = Callable[[], Check | Iterable[Check]]

PROBES: tuple[Probe, ...] = (
    probes.packages,
    probes.libraries,
    probes.faiss,
    hardware.cpu,
    hardware.quota,
    hardware.cuda,
    probes.memory,
    probes.disks,
    probes.weights,
    probes.hub,
    probes.threads,
)


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, in the order of the probes."""

    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """1 where a check failed, else 0: warnings do not stop a run."""
        return int(self.status == "fail")

    @property
    def status(self) -> str:
        """The worst status: "ok", "warn" or "fail"."""
        return max((c.status for c in self.checks), key=("ok", "warn", "fail").index, default="ok")

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Check, status, what was found, what to do: for people."""
        return [(c.name, c.status, c.found, c.advice) for c in self.checks]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"status": self.status, "checks": [asdict(c) for c in self.checks]}


def examine(look_at: Sequence[Probe] = PROBES) -> Report:
    """Look at everything; raises nothing. Takes seconds, since the heavy libraries are imported."""
    return Report(tuple(check for probe in look_at for check in _rows(probe)))


def _rows(probe: Probe) -> list[Check]:
    """The rows of a probe; those that it gave before it raised, then what it raised."""
    rows: list[Check] = []
    try:
        found = probe()
        rows.extend([found] if isinstance(found, Check) else found)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        advice = "mend what it names; if it names nothing of yours, report it"
        rows.append(Check(getattr(probe, "__name__", "check"), "fail", told, advice))
    return rows
