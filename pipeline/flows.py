"""How many rows pass each step, how long and how heavy they are: from the sources down, before a run.

A stage's own `cost` says what it gives; what earlier runs have shown goes before it; a stage of which
nothing is known passes its rows on as they are, and an expanding one is taken to make `FAN_OUT` of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.learned import Learned
from pipeline.program import Edge, Program, Step, Turn
from pipeline.roofline import Flow, Work
from pipeline.stage import cost_of, expands, gathers, ports
from pipeline.values import Rows

FAN_OUT = 4.0
"""Rows that an expanding stage is taken to make of each, where nothing is known."""


class Flows:
    """The flows of a program over given sources. `sources`: name to its rows."""

    def __init__(self, program: Program, sources: Mapping[str, Flow], learned: Learned | None = None) -> None:
        self._program = program
        self._learned = learned or Learned()
        self._nodes: dict[str, Step | Turn] = {n.name: n for n in program.nodes}
        self._turns = {n.name: n for n in program.nodes if isinstance(n, Turn)}
        self._outputs = {o: (t, p) for t in self._turns.values() for o, p in t.outputs.items()}
        self._entries = {entry: t for t in self._turns.values() for entry in t.carried}
        self._made: dict[str, Flow] = dict(sources)

    def rounds(self, loop: str) -> float:
        """Rounds that a row of a loop goes through: as learned, else the most that it may."""
        known = self._learned.rounds.get(loop, float(self._turns[loop].max_rounds))
        return min(max(known, 1.0), float(self._turns[loop].max_rounds))

    def made(self, producer: str) -> Flow:
        """All rows that a source, a step, a loop's entry or a loop's output gives in a run."""
        if producer not in self._made:
            self._made[producer] = self._make(producer)
        return self._made[producer]

    def rows(self, step: Step) -> float:
        """All rows (groups, if it gathers) that a step processes in a run."""
        depth = gathers(step.stage)
        if depth is not None:
            return self._groups(step, depth)
        owned = [e for e in step.edges if e.depth == step.depth and e.scope == len(step.scope)]
        return max(self.made(e.producer).rows for e in owned)

    def work(self, step: Step, rows: float, dtype: str = "float32", length: float | None = None) -> Work:
        """A batch of `rows`. `length`: mean of the rows' cost hints, where it is not that of all.

        It is that of the longest port (see `length`); the others keep their proportion to it.
        """
        total = self.rows(step)
        ports = {e.port: self._part(step, e, rows / total if total else 0.0) for e in step.edges}
        usual = self.length(step)
        if length is not None and usual:
            for p, f in ports.items():
                ports[p] = replace(f, length=f.length * (length / usual)) if self._hints(step, p) else f
        return Work(rows, ports, dtype)

    def length(self, step: Step) -> float:
        """Mean cost hint of the rows that a step reads: the largest of its ports' that are its own.

        That of a group, for a step that gathers, is the sum over its rows.
        """
        found = [self.made(e.producer) for e in step.edges if self._hints(step, e.port)]
        longest = max((f.length for f in found), default=0.0)
        if gathers(step.stage) is None or not longest:
            return longest
        groups = self.rows(step)
        return max(f.length * f.rows for f in found) / groups if groups else 0.0

    def _hints(self, step: Step, port: str) -> bool:
        """Whether the Scheduler takes a port's lengths for the rows' cost hints: not those of shared rows."""
        return any(e.port == port and 0 < e.depth == step.depth for e in step.edges)

    def _part(self, step: Step, e: Edge, share: float) -> Flow:
        """What a share of all rows brings at a port: shared rows come whole, each at least once."""
        flow = self.made(e.producer)
        if gathers(step.stage) is not None or (e.depth == step.depth and e.scope == len(step.scope)):
            return replace(flow, rows=flow.rows * share)
        return replace(flow, rows=max(min(flow.rows, 1.0), flow.rows * share))

    def _groups(self, step: Step, depth: int) -> float:
        """Rows of the ancestor whose ids have `depth` elements."""
        if depth == 0:
            return 1.0
        producer = step.edges[0].producer
        while self._program.depths[producer] > depth:
            turn = self._outputs[producer][0] if producer in self._outputs else self._entries.get(producer)
            at = turn or self._nodes[producer]
            producer = max(at.edges, key=lambda e: e.depth).producer
        return self.made(producer).rows

    def _make(self, producer: str) -> Flow:
        if producer in self._entries:
            turn = self._entries[producer]
            port = producer.rpartition("/")[2]
            flow = self.made(next(e.producer for e in turn.edges if e.port == port))
            return replace(flow, rows=flow.rows * self.rounds(turn.name))
        if producer in self._outputs:
            turn, inner = self._outputs[producer]
            flow = self.made(inner)
            return replace(flow, rows=flow.rows / self.rounds(turn.name))
        step = self._nodes[producer]
        assert isinstance(step, Step)
        return self._of_step(step, self.rows(step))

    def _of_step(self, step: Step, rows: float) -> Flow:
        known = self._learned.yielded(step.stage)
        if known is not None and known.rows:
            made = known.expected(rows, rows * self.length(step))
            each = max(known.made, 1.0)
            return Flow(made, known.length / each, known.nbytes / each)
        cost = cost_of(step.stage, self.work(step, rows))
        if cost is not None:
            return cost.output
        own = [e for e in step.edges if e.depth] or step.edges
        heaviest = max(own, key=lambda e: self.made(e.producer).nbytes)
        flow, kinds = self.made(heaviest.producer), ports(type(step.stage))
        if kinds.output.lengths is not kinds.inputs[heaviest.port].lengths:
            flow = replace(flow, length=0.0)  # bytes of a file are no characters of a text
        return replace(flow, rows=rows * (FAN_OUT if expands(step.stage) else 1.0))


def usual(program: Program, sources: Mapping[str, Flow], learned: Learned) -> dict[str, Flow]:
    """The sources; rows that have lengths, but nobody knows them, are as long as those that came before."""
    found = dict(sources)
    for step in program.steps:
        known = learned.yielded(step.stage)
        for e in step.edges:
            flow = found.get(e.producer)
            if flow is None or flow.length or program.sources[e.producer].lengths is Rows.lengths:
                continue
            if e.depth == step.depth > 0 and known and known.rows:
                found[e.producer] = replace(flow, length=known.read / known.rows)
    return found


def makers(program: Program) -> dict[str, Sequence[str]]:
    """The steps behind each producer; none behind a source, the last of a loop behind what it gives."""
    steps = {s.name for s in program.steps}
    outputs = {o: p for n in program.nodes if isinstance(n, Turn) for o, p in n.outputs.items()}
    found: dict[str, Sequence[str]] = defaultdict(tuple)
    for n in program.nodes:
        for e in n.edges:
            producer = e.producer
            while producer in outputs:
                producer = outputs[producer]
            found[e.producer] = (producer,) if producer in steps else ()
    return found
