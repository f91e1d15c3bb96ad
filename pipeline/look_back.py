"""After a run: what happened beside what was predicted, where time went, and what to remember."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import perfetto
from pipeline.advice import advice
from pipeline.buffers.accounting import usage
from pipeline.compare import compare
from pipeline.planning import remember
from pipeline.roles import memory_line, memory_share
from pipeline.timeline import Counts, totals

if TYPE_CHECKING:
    from pipeline.executor import Run
    from pipeline.planner import Planned

FILE = "timeline.json"


def look_back(run: Run, planned: Planned | None, out: Path) -> dict[str, Any]:
    """Write the timeline of a finished run, and remember what it has shown; returns the facts for run.json.

    `predicted`: the comparison by step; `advice`: a line for each lane; `memory`: the share of the time that
    was memory processing; `counted`: by step the numbers of its rows in sum, such as tokens, and the seconds
    of its batches; `handed_over`: by step the way of its values, bytes, and what int8 saved and lost;
    `memory_bytes`: of this process and its children.
    """
    if run.timeline is None or run.plan is None:
        return {}
    predicted = planned.in_full() if planned else None
    perfetto.write(run.timeline, out / FILE, predicted)
    remember(run)
    found: dict[str, Any] = {
        "advice": list(advice(run.timeline, run.plan.machine.devices)),
        "memory": memory_line(memory_share(run.timeline, run.program)),
        "counted": {
            t.step: {**run.tallies[t.step].counted, "seconds": t.seconds}
            for t in totals(run.spans)
            if t.step in run.tallies and run.tallies[t.step].counted
        },
        "handed_over": {
            step: {"way": run.plan.ways[step].name, **_moved(counts)} for step, counts in run.handed.items()
        },
        "memory_bytes": asdict(usage()),
    }
    if predicted is not None:
        return found | {"predicted": compare(predicted, run.timeline).as_dict()}
    took = {"measured_seconds": run.timeline.seconds, "steps": []}
    return found | ({"predicted": {"predicted_seconds": planned.seconds, **took}} if planned else {})


def _moved(counts: Counts) -> dict[str, float]:
    found: dict[str, float] = {"shared_bytes": counts.shared, "copied_bytes": counts.copied}
    lossy = {"int8_saved_bytes": counts.saved, "int8_largest_error": counts.error}
    return found | lossy if counts.saved else found
