"""The part that a stage plays in memory processing, and what share of a run that is.

The four steps of "Understand and Accelerate Memory Processing Pipeline for LLM Inference" (arXiv
2603.29002): prepare an index of the memory, score its relevancy, retrieve what scores best, apply it.
Score and top-k are one stage here, a search, and count as relevancy; retrieve is fetching the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pipeline.advice import loads
from pipeline.errors import GraphError, PlanError
from pipeline.lookup import near_miss
from pipeline.program import Program
from pipeline.stage import Ports, ports
from pipeline.timeline import Timeline
from pipeline.values import (
    Chunks,
    Corpora,
    Documents,
    Embeddings,
    Hits,
    Indexes,
    Pages,
    PageTexts,
    Passages,
    Queries,
)

ROLES = ("prepare", "relevancy", "retrieve", "apply")
MEMORY = ROLES[:3]
"""The roles that are memory processing; the last one uses what they found."""


def role(stage: Any) -> str:
    """The role of a stage, or of its class: what it says itself, else what its ports tell.

    Raises GraphError for a class variable `role` that is none of `ROLES`.
    """
    kind = stage if isinstance(stage, type) else type(stage)
    found = ports(kind)
    is_parameter = any(f.name == "role" for f in fields(kind))
    said = None if is_parameter else getattr(kind, "role", None)
    if said is None:
        return _inferred(found)
    if said not in ROLES:
        raise GraphError(f"stage {kind.__qualname__}: no role {said!r}{near_miss(str(said), ROLES)}")
    return str(said)


def _inferred(found: Ports) -> str:
    """Embeddings take the side of what is embedded: of the question, or of the memory."""
    if issubclass(found.output, Embeddings):
        if _reads(found, Queries):
            return "relevancy"
        return "prepare" if _reads(found, Documents, Pages, PageTexts, Chunks) else "apply"
    if issubclass(found.output, Pages | PageTexts | Chunks | Indexes | Corpora):
        return "prepare"
    if issubclass(found.output, Hits):
        return "relevancy"
    return "retrieve" if issubclass(found.output, Passages) else "apply"


def _reads(found: Ports, *kinds: type) -> bool:
    return any(issubclass(port, kinds) for port in found.inputs.values())


def memory_share(timeline: Timeline, program: Program) -> dict[str, float]:
    """Busy seconds by role, all four of them. Raises PlanError for a step that the program does not have."""
    known = {s.name: role(s.stage) for s in program.steps}
    found = dict.fromkeys(ROLES, 0.0)
    for (step, _), seconds in loads(timeline).items():
        if step not in known:
            raise PlanError(f"the timeline has a step {step!r}, the program has not{near_miss(step, known)}")
        found[known[step]] += seconds
    return found


def memory_line(shares: Mapping[str, float]) -> str:
    """What `memory_share` found, for people: "memory processing = 61 % of busy time: prepare 40 %, ..."."""
    busy = sum(shares.values()) or 1.0
    parts = ", ".join(f"{name} {100 * shares[name] / busy:.0f} %" for name in MEMORY)
    share = sum(shares[name] for name in MEMORY) / busy
    return f"memory processing = {100 * share:.0f} % of busy time: {parts}"
