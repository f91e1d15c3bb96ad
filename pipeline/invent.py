"""Rows that nobody computed: what a stage would give, by its flow. For simulations."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate

from pipeline.errors import RowId
from pipeline.estimate import Estimates
from pipeline.events import Meta, Submit
from pipeline.program import Turn
from pipeline.roofline import Flow
from pipeline.rows import Rows
from pipeline.stage import expands, ports
from pipeline.values import Documents

SKEW = 0.8
"""The r-th most asked for of all documents has a share in proportion to 1 / r ** SKEW: Zipf's law, which was
measured for requests of pages to be 0.64 to 0.83 (Breslau et al., "Web caching and Zipf-like distributions",
1999)."""


class Inventor:
    """Gives each batch its rows: as many, as long and as heavy as the flows say, long rows more of them.

    Fractions are carried from row to row, so that numbers come out right in sum; nothing is random.
    """

    def __init__(self, estimates: Estimates) -> None:
        self._steps = estimates.steps
        self._flows = estimates.flows
        self._rest: dict[str, float] = defaultdict(float)
        self._ends = {n.until: n.name for n in estimates.program.nodes if isinstance(n, Turn)}
        self._passes: dict[tuple[str, RowId], int] = {}
        self._facts = {name: self._fact(name) for name in self._steps}
        keyed = {n: ports(type(s.stage)).output.keys is not Rows.keys for n, s in self._steps.items()}
        self._shares = {n: self._popular(estimates, n) for n, has_keys in keyed.items() if has_keys}

    def made(self, task: Submit, lengths: Sequence[int]) -> Meta:
        """What a task gives; `lengths`: the cost hints of its rows, where they have any."""
        flow, fan_out, mean = self._facts[task.step]
        scale = [x / mean for x in lengths] if mean and len(lengths) == len(task.owed) else []
        ids = task.owed
        if expands(self._steps[task.step].stage):
            numbers = [self._whole(task.step, fan_out * s) for s in scale or [1.0] * len(ids)]
            ids = tuple((*i, k) for i, number in zip(ids, numbers, strict=True) for k in range(number))
            scale = []
        nbytes = round(flow.nbytes * len(ids))
        done = tuple(self._is_done(task.step, i) for i in ids) if task.step in self._ends else None
        lengths_made = self._lengths(task.step, flow.length, scale, len(ids))
        return Meta(ids, nbytes, lengths_made, done, self._keys(task.step, ids))

    def _popular(self, estimates: Estimates, step: str) -> list[float]:
        """Of each document, the share of rows that have it or one before; as many as come in, if any do."""
        sources = estimates.program.sources
        known = sum(self._flows.made(n).rows for n, kind in sources.items() if kind is Documents)
        return popular(max(1, round(known or self._flows.made(step).rows)))

    def _keys(self, step: str, ids: Sequence[RowId]) -> tuple[Hashable, ...] | None:
        """Documents, by the ids alone: a row has the same one whatever ran before it."""
        if step not in self._shares:
            return None
        shares = self._shares[step]
        places = (zlib.crc32(repr(i).encode()) / 2**32 for i in ids)
        return tuple(f"document-{bisect_right(shares, place)}" for place in places)

    def _fact(self, name: str) -> tuple[Flow, float, float]:
        step = self._steps[name]
        flow, rows = self._flows.made(name), self._flows.rows(step)
        return flow, flow.rows / rows if rows else 0.0, self._flows.length(step)

    def _whole(self, key: str, number: float) -> int:
        self._rest[key] += number
        whole = int(self._rest[key] + 1e-9)
        self._rest[key] -= whole
        return whole

    def _lengths(self, step: str, mean: float, scale: list[float], rows: int) -> tuple[int, ...] | None:
        if not mean:
            return None
        return tuple(self._whole(f"{step} length", mean * s) for s in scale or [1.0] * rows)

    def _is_done(self, step: str, row: RowId) -> bool:
        """Whether a row leaves its loop after this round."""
        left = self._passes.pop((step, row), None)
        if left is None:
            left = max(self._whole(f"{step} rounds", self._flows.rounds(self._ends[step])), 1)
        if left > 1:
            self._passes[step, row] = left - 1
        return left <= 1


def popular(count: int) -> list[float]:
    """The cumulated shares of `count` documents under `SKEW`, the most asked for first; the last is 1."""
    sums = list(accumulate(rank**-SKEW for rank in range(1, count + 1)))
    return [s / sums[-1] for s in sums]


def given(sources: Mapping[str, Flow], whole: Mapping[str, bool]) -> dict[str, Meta]:
    """Rows for the sources of a simulation, numbered; `whole`: those that are one row, under the id ()."""
    return {
        name: Meta(
            ((),) if whole[name] else tuple((f"{name}-{i}",) for i in range(round(flow.rows))),
            round(flow.nbytes * flow.rows),
            _lengths(flow.length, 1 if whole[name] else round(flow.rows)) if flow.length else None,
        )
        for name, flow in sources.items()
    }


def _lengths(mean: float, rows: int) -> tuple[int, ...]:
    """Whole numbers as near to `mean` as can be, and right in sum."""
    return tuple(int((i + 1) * mean + 1e-9) - int(i * mean + 1e-9) for i in range(rows))
