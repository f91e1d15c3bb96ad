"""How long Dask takes from the end of a batch until the batch that follows from it begins.

Measured on a chain of empty batches: each waits for the one before, so nothing hides the way through
Dask's scheduler and ours. Part of `ridgeway calibrate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.values import Queries, Rows

STEPS = 24


@dataclass(frozen=True, slots=True)
class _Pass:
    number: int

    def run(self, state: Any, rows: Queries) -> Queries:
        return rows


def seconds() -> float:
    """The median way from a batch to the next, on one lane of this process."""
    names = [f"s{i}" for i in range(STEPS)]
    nodes = [node(n, _Pass(i), rows=b) for i, (b, n) in enumerate(pairwise(["given", *names]))]
    graph = Graph({"given": Queries}, tuple(nodes), {"out": names[-1]})
    rows: dict[str, Rows] = {"given": Queries((("q",),), ("",), ("",))}
    under_way = run(graph, rows, plan=place(flatten(graph), Machine((Device("cpu:0"),))))
    list(under_way)
    return median(b.start - a.end for a, b in pairwise(under_way.spans))
