"""Several jobs as one graph, so that they run side by side on the same lanes.

Each keeps its inputs, outputs and nodes, under its own name before theirs: `night__questions`. Nothing flows
from one to another. What they gain: one plan for all, one window of bytes, and under the policy `coalesce`
one call where they ask the same model (see `pipeline.merging`).

When not: jobs that write the same files, such as an index in the same folder, and jobs of which one must be
done before another begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from pipeline.errors import GraphError
from pipeline.graph import Graph
from pipeline.node import check_name

What = TypeVar("What")


def beside(graphs: Mapping[str, Graph]) -> Graph:
    """The jobs of `graphs`, by name, as one graph, under the policies of all of them.

    What an input or output is called in it, says `named`. Raises GraphError for no jobs, a name that is none,
    and two that cannot be told apart ("a" with "b__c", and "a__b" with "c").
    """
    if not graphs:
        raise GraphError("there is no job to put beside another: give at least one graph", "jobs")
    for job in graphs:
        check_name(job, "jobs")
    return Graph(
        inputs=_joined({job: g.inputs for job, g in graphs.items()}),
        nodes=tuple(
            replace(n, name=named(job, n.name), inputs=_refs(job, n.inputs))
            for job, g in graphs.items()
            for n in g.nodes
        ),
        outputs=_joined({job: _refs(job, g.outputs) for job, g in graphs.items()}),
        policies=tuple(dict.fromkeys(p for g in graphs.values() for p in g.policies)),
    )


def named(job: str, name: str) -> str:
    """What an input, output or node of a job is called among the others."""
    return f"{job}__{name}"


def _refs(job: str, refs: Mapping[str, str]) -> dict[str, str]:
    return {name: named(job, ref) for name, ref in refs.items()}


def _joined(found: Mapping[str, Mapping[str, What]]) -> dict[str, What]:
    """All of them, under the names that they have beside each other."""
    joined: dict[str, What] = {}
    for job, things in found.items():
        for name, thing in things.items():
            if named(job, name) in joined:
                raise GraphError(
                    f"two jobs have something called {named(job, name)!r}: rename a job", "jobs", job
                )
            joined[named(job, name)] = thing
    return joined
