"""Machines with work for them, of which all costs are declared: for the planner and the policies.

A scenario can be planned and simulated in milliseconds, on a machine that need not exist.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.declared import Decode, Encode, Items, Parse, Prefill, Reason, Search, Write
from pipeline import machine_file
from pipeline.events import Meta
from pipeline.graph import Graph, Loop, node
from pipeline.machine import Machine
from pipeline.program import Program, flatten
from pipeline.roofline import Flow


@dataclass(frozen=True, slots=True)
class Scenario:
    """Work for a machine. `counts`: rows of each source; `lengths`: each row's, where they differ."""

    name: str
    machine_name: str
    graph: Graph
    counts: Mapping[str, int]
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def machine(self) -> Machine:
        """The shipped machine."""
        return machine_file.load(self.machine_name)

    @property
    def program(self) -> Program:
        """The graph, flat."""
        return flatten(self.graph)

    @property
    def flows(self) -> dict[str, Flow]:
        """What the planner is told: rows and their mean length."""
        return {n: Flow(count, _mean(self.lengths.get(n, ())), 1e3) for n, count in self.counts.items()}

    @property
    def metas(self) -> dict[str, Meta]:
        """The rows themselves."""
        return {
            n: Meta(tuple((f"{n}-{i}",) for i in range(count)), 1000 * count, self.lengths.get(n))
            for n, count in self.counts.items()
        }

    def shrunk(self, share: float) -> Scenario:
        """The same with fewer rows."""
        counts = {n: max(1, round(count * share)) for n, count in self.counts.items()}
        lengths = {n: found[: counts[n]] for n, found in self.lengths.items()}
        return replace(self, counts=counts, lengths=lengths)


def _mean(lengths: tuple[int, ...]) -> float:
    return sum(lengths) / len(lengths) if lengths else 0.0


def pareto(count: int, least: int, shape: float, most: int, seed: int = 0) -> tuple[int, ...]:
    """Heavy-tailed lengths, drawn from a Pareto distribution that is cut off at `most`."""
    draw = random.Random(seed)
    return tuple(min(most, round(least * draw.paretovariate(shape))) for _ in range(count))


def _answers(parse: Parse, encode: Encode, search: Search, decode: Decode) -> Graph:
    """Documents to vectors; beside them questions to passages to answers."""
    nodes = (
        node("parse", parse, items="documents"),
        node("encode", encode, items="parse"),
        node("ask", Encode(encode.parameters, 32), items="questions"),
        node("search", search, items="ask"),
        node("decode", decode, items="search"),
    )
    return Graph({"documents": Items, "questions": Items}, nodes, {"index": "encode", "answers": "decode"})


def _chain(**stages: Any) -> Graph:
    """Rows through stages, one after another."""
    nodes, before = [], "rows"
    for name, stage in stages.items():
        nodes.append(node(name, stage, items=before))
        before = name
    return Graph({"rows": Items}, tuple(nodes), {"out": before})


def _rounds() -> Graph:
    """Questions that are searched for and thought about in up to four rounds, then answered."""
    body = Graph(
        {"question": Items},
        (node("search", Search(2e6), items="question"), node("reason", Reason(), items="search")),
        {"judged": "reason"},
    )
    nodes = (
        node("rounds", Loop(body, {"question": "judged"}, "judged", 4), question="rows"),
        node("write", Write(), items="rounds"),
        node("decode", Decode(), items="write"),
    )
    return Graph({"rows": Items}, nodes, {"out": "decode"})


def scenarios() -> tuple[Scenario, ...]:
    """All of them. Enough rows that the run is long beside opening the models."""
    answers = _answers(Parse(), Encode(), Search(), Decode())
    pages = pareto(200, 300, 1.2, 60_000)
    return (
        Scenario(
            "CPU only",
            "cpu-16",
            _answers(Parse(), Encode(3e7), Search(3e5), Decode(1.4e8)),
            {"documents": 100, "questions": 300},
        ),
        Scenario("CPU + GPU", "cpu-gpu", answers, {"documents": 100, "questions": 500}),
        Scenario(
            "big + small GPU",
            "big-small",
            _chain(
                write=Write(),
                encode=Encode(3e8),
                search=Search(4e6),
                decode=Decode(3e9),
            ),
            {"rows": 500},
        ),
        Scenario(
            "4 cheap + 2 large GPUs",
            "cheap-large",
            _chain(write=Write(), encode=Encode(3e8), prefill=Prefill(3e9), decode=Decode(3e9)),
            {"rows": 600},
        ),
        Scenario(
            "slow link",
            "slow-link",
            _chain(parse=Parse(nbytes=1e6), encode=Encode(3e7), decode=Decode(5e8)),
            {"rows": 100},
        ),
        Scenario(
            "skewed pages",
            "big-small",
            _chain(write=Write(0.02), encode=Encode(1e9)),
            {"rows": 200},
            {"rows": pages},
        ),
        Scenario(
            "skewed documents",
            "cpu-gpu",
            _chain(parse=Parse(), encode=Encode(1e9), decode=Decode()),
            {"rows": 100},
            {"rows": pareto(100, 20, 1.2, 4000)},
        ),
        Scenario("many rounds", "cpu-gpu", _rounds(), {"rows": 200}),
        Scenario(
            "decode-heavy",
            "cheap-large",
            _chain(write=Write(), search=Search(4e6), prefill=Prefill(7e9, 200), decode=Decode(7e9, 512)),
            {"rows": 400},
        ),
    )
