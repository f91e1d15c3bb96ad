"""`run_local`: the meaning of a graph, as one plain loop without Dask, plans or overlap.

Every other way to run a graph is tested equal to this one. Node after node, all rows of a node in
batches; a batch that fails is halved until the bad row stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.apply import Fault, apply, assemble, fault
from pipeline.errors import Failure, GraphError, RidgewayError, RowId
from pipeline.graph import Graph
from pipeline.lookup import near_miss
from pipeline.machine import Device, cores
from pipeline.program import Program, Step, Turn, flatten
from pipeline.rows import row_order
from pipeline.stage import batch_size, expands, gathers, open_stage, ports, state_key
from pipeline.values import Rows

Table = dict[RowId, Rows | Failure]
"""The rows of one producer, one a batch; a failure stands for all rows whose ids it is a prefix of."""


@dataclass(frozen=True, slots=True)
class Result:
    """One input row at one output: its rows (often just one), or the failures in its way."""

    output: str
    id: RowId
    rows: Rows
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results, in the order of the inputs, and every failure once."""

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]

    def __getitem__(self, output: str) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.output == output)


def run_local(graph: Graph, inputs: Mapping[str, Rows], device: Device | None = None) -> Outcome:
    """Run `graph` over `inputs` (name to rows) in this thread.

    Raises GraphError where they do not fit, and any RidgewayError that a stage raises.
    """
    check_inputs(graph, inputs)
    program = flatten(graph)
    loop = _Loop(program, device or Device("cpu:0", cores()))
    for name, rows in inputs.items():
        loop.tables[name] = {r.ids[0]: r for r in rows.split()}
    for n in program.nodes:
        if not n.scope:
            loop.run(n)
    found: list[Result] = []
    for name, producer in program.outputs.items():
        roots = inputs[program.roots[name]].ids if program.roots[name] else ((),)
        found += collect(name, roots, loop.tables[producer], graph.type_of(graph.outputs[name]))
    return Outcome(tuple(found), tuple(loop.failures))


def check_inputs(graph: Graph, inputs: Mapping[str, Rows]) -> None:
    """Raise GraphError unless `inputs` are what the graph takes: names, types, distinct ids."""
    for name in {*graph.inputs, *inputs}:
        if name not in inputs:
            raise GraphError(f"input {name!r} is missing", "inputs", name)
        if name not in graph.inputs:
            raise GraphError(
                f"the graph has no input {name!r}{near_miss(name, graph.inputs)}", "inputs", name
            )
        rows, wanted = inputs[name], graph.inputs[name]
        if not isinstance(rows, wanted):
            raise GraphError(
                f"input {name!r} takes {wanted.__name__}, found {type(rows).__name__}", "inputs", name
            )
        if wanted.whole and rows.ids != ((),):
            raise GraphError(
                f"input {name!r}: {wanted.__name__} are one row, under the id ()", "inputs", name
            )
        if len(set(rows.ids)) != len(rows.ids) or any(len(i) != (not wanted.whole) for i in rows.ids):
            raise GraphError(f"input {name!r}: ids must be distinct and of one element", "inputs", name)


def collect(output: str, roots: tuple[RowId, ...], table: Table, kind: type[Rows]) -> Iterator[Result]:
    """The result of each input row: all rows and failures under its id, sorted by id."""
    below: dict[RowId, list[Rows | Failure]] = {root: [] for root in roots}
    for i in sorted(table, key=row_order):
        below[i[: len(roots[0])]].append(table[i])
    for root, found in below.items():
        rows = kind.concat([r for r in found if isinstance(r, Rows)])
        failures = dict.fromkeys(f for f in found if isinstance(f, Failure))
        yield Result(output, root, rows, tuple(failures))


@dataclass(slots=True)
class _Loop:
    program: Program
    device: Device
    tables: dict[str, Table] = field(default_factory=dict)
    states: dict[Any, Any] = field(default_factory=dict)
    expanded: dict[str, list[RowId]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def run(self, n: Step | Turn) -> None:
        if isinstance(n, Turn):
            self._turn(n)
        elif gathers(n.stage) is not None:
            self.tables[n.name] = self._gather(n)
        else:
            self.tables[n.name] = self._map(n)

    def _map(self, step: Step) -> Table:
        joined = self._joined(step)
        made: Table = {i: row for i, row in joined.items() if isinstance(row, Failure)}
        good = [row for row in joined.values() if not isinstance(row, Failure)]
        size = step.batch or batch_size(step.stage)
        for start in range(0, len(good), size):
            made |= self._batch(step, good[start : start + size])
        return made

    def _gather(self, step: Step) -> Table:
        depth = gathers(step.stage) or 0
        made: Table = {}
        known = [()] if step.origin in self.program.sources else self.expanded.get(step.origin, [])
        groups: dict[RowId, list[dict[str, Rows]]] = {i: [] for i in known}
        for i, row in self._joined(step).items():
            if not isinstance(row, Failure):
                groups.setdefault(i[:depth], []).append(row)
            elif len(i) <= depth:
                made[i] = row
        for i, rows in groups.items():
            result = self._attempt(step, rows, (i,))
            if isinstance(result, Fault):
                made[i] = self._fail(step, i, result.category, result.message, result.detail)
            else:
                made[i] = result
        return made

    def _joined(self, step: Step | Turn) -> dict[RowId, dict[str, Rows] | Failure]:
        """Every row of `step` by id, with what it reads from each port; or the failure in its way."""
        aligned = [e for e in step.edges if e.depth == step.depth and e.scope == len(step.scope)]
        keys = dict.fromkeys(i for e in aligned for i in self.tables[e.producer])
        found: dict[RowId, dict[str, Rows] | Failure] = {}
        for i in keys:
            row: dict[str, Rows] = {}
            for e in step.edges:
                value = _find(self.tables[e.producer], i[: e.depth])
                if isinstance(value, Failure):
                    found[i] = value
                    break
                row[e.port] = value
            else:
                found[i] = row
        return found

    def _batch(self, step: Step, rows: list[dict[str, Rows]]) -> Table:
        if not rows:
            return {}
        ids = tuple(self._id(row) for row in rows)
        made = self._attempt(step, rows, ids)
        if isinstance(made, Rows):
            if expands(step.stage):
                self.expanded.setdefault(step.name, []).extend(ids)
            return {r.ids[0]: r for r in made.split()}
        known = {i: why for i, why in (made.rows or {}).items() if i in ids}
        if known:
            bad = {i: self._fail(step, i, *why) for i, why in known.items()}
            return {**bad, **self._batch(step, [r for i, r in zip(ids, rows, strict=True) if i not in bad])}
        if len(rows) == 1:
            return {ids[0]: self._fail(step, ids[0], made.category, made.message, made.detail)}
        half = len(rows) // 2
        return self._batch(step, rows[:half]) | self._batch(step, rows[half:])

    def _attempt(self, step: Step, rows: list[dict[str, Rows]], owed: tuple[RowId, ...]) -> Rows | Fault:
        key = state_key(step.stage)
        try:
            if key not in self.states:
                self.states[key] = open_stage(step.stage, self.device)
            parts = {e.port: list({r[e.port].ids[0]: r[e.port] for r in rows}.values()) for e in step.edges}
            kinds = ports(type(step.stage))
            return apply(step.stage, kinds, self.states[key], assemble(step.stage, kinds, parts), owed)
        except RidgewayError:
            raise
        except Exception as error:
            return fault(error)

    def _fail(self, step: Step, i: RowId, category: str, message: str, detail: str = "") -> Failure:
        self.failures.append(Failure(i, step.name, category, message, detail))
        return self.failures[-1]

    @staticmethod
    def _id(row: dict[str, Rows]) -> RowId:
        return max((r.ids[0] for r in row.values()), key=len)

    def _turn(self, turn: Turn) -> None:
        """All rows through the loop together, round after round; the done ones leave."""
        outputs: dict[str, Table] = {name: {} for name in turn.outputs}
        current: dict[str, Table] = {e: {} for e in turn.carried}
        for i, row in self._joined(turn).items():
            for e in turn.edges:
                entry = f"{turn.name}/{e.port}"
                if isinstance(row, Failure):
                    for table in outputs.values():
                        table[i] = row
                elif entry in current:
                    current[entry][i] = row[e.port]
        for round_ in range(turn.max_rounds):
            self.tables |= current
            self.expanded = {k: v for k, v in self.expanded.items() if not k.startswith(f"{turn.name}/")}
            for n in self.program.nodes:
                if n.scope == (*turn.scope, turn.name):
                    self.run(n)
            current = self._leave(turn, outputs, current, last=round_ == turn.max_rounds - 1)
        self.tables |= outputs

    def _leave(
        self, turn: Turn, outputs: dict[str, Table], current: dict[str, Table], last: bool
    ) -> dict[str, Table]:
        """Move the rows that are done to `outputs`; returns the others, for the next round."""
        following: dict[str, Table] = {e: {} for e in turn.carried}
        for i in next(iter(current.values())):
            made = {p: _find(self.tables[p], i) for p in turn.outputs.values()}
            failure = next((m for m in made.values() if isinstance(m, Failure)), None)
            flags: Any = made[turn.until]
            if failure is not None or last or bool(flags.done[0]):
                for name, p in turn.outputs.items():
                    outputs[name][i] = failure or made[p]
            else:
                for entry, p in turn.carried.items():
                    following[entry][i] = made[p]
        return following


def _find(table: Table, i: RowId) -> Rows | Failure:
    """The row `i`, or the failure that stands for it."""
    for end in range(len(i), -1, -1):
        value = table.get(i[:end])
        if value is not None and (end == len(i) or isinstance(value, Failure)):
            return value
    raise AssertionError(f"row {i} was never made")
