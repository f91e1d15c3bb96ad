"""How the values of each step reach those who read them: the cheapest way that applies. Pure.

    reference   all readers are in the process that made the value: they get the very object
    arena       all are on one host: the value is written once into shared memory, and read there
    bytes       otherwise: Dask sends it

A value is read by the lanes that its readers are planned on, and by the client where it is an output. A
step with lanes in several processes has readers in others, unless it has none but outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.plan import Plan
from pipeline.program import Program, Turn

REFERENCE, ARENA, BYTES = "reference", "arena", "bytes"
CLIENT = ""
"""The client among the lanes."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a lane, or the client, lives."""

    host: str
    process: str


def carriers(program: Program, plan: Plan, homes: Mapping[str, Home]) -> dict[str, str]:
    """The way of each step's values. `homes`: of every lane, and of the client under `CLIENT`."""
    readers = _readers(program)
    found = {}
    for step in program.steps:
        makers = plan.placements[step.name].devices
        takers = {lane for r in readers[step.name] for lane in _lanes(r, plan)}
        found[step.name] = _way([homes[lane] for lane in {*makers, *takers}])
    return found


def _lanes(reader: str, plan: Plan) -> tuple[str, ...]:
    return (CLIENT,) if reader == CLIENT else plan.placements[reader].devices


def _way(homes: list[Home]) -> str:
    if len({(h.host, h.process) for h in homes}) == 1:
        return REFERENCE
    return ARENA if len({h.host for h in homes}) == 1 else BYTES


def _readers(program: Program) -> dict[str, set[str]]:
    """The steps that read each step's rows, through loops too; `CLIENT` for outputs."""
    direct: dict[str, set[str]] = {s.name: set() for s in program.steps}
    aliases = _aliases(program)
    for s in program.steps:
        for e in s.edges:
            for maker in _makers(e.producer, aliases):
                direct.setdefault(maker, set()).add(s.name)
    for producer in program.outputs.values():
        for maker in _makers(producer, aliases):
            direct.setdefault(maker, set()).add(CLIENT)
    return direct


def _aliases(program: Program) -> dict[str, set[str]]:
    """Producers that only hand on what others made: the entries and outputs of loops."""
    found: dict[str, set[str]] = {}
    for turn in (n for n in program.nodes if isinstance(n, Turn)):
        for output, inner in turn.outputs.items():
            found.setdefault(output, set()).add(inner)
        for entry, carried in turn.carried.items():
            port = entry.rpartition("/")[2]
            first = next(e.producer for e in turn.edges if e.port == port)
            found.setdefault(entry, set()).update({carried, first})
    return found


def _makers(producer: str, aliases: Mapping[str, set[str]]) -> set[str]:
    """The steps and sources that rows of a producer come from."""
    found, todo, seen = set(), [producer], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in aliases:
            todo += sorted(aliases[name])
        else:
            found.add(name)
    return found
