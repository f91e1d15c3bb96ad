"""Programs as the exact planner of chains sees them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bounds import Bounds
from pipeline.estimate import Estimates
from pipeline.graph import Graph, node
from pipeline.machine import Machine
from pipeline.pipelined import best_runs, is_chain
from pipeline.program import flatten
from pipeline.roofline import Flow
from tests.costed import Busy, chain, lanes
from tests.toys import Numbers, Plus


def estimates(machine: Machine, *work: float) -> Estimates:
    return Estimates(flatten(chain(*(Busy(w) for w in work))), machine, {"rows": Flow(8)})


def test_a_step_that_two_read_makes_no_chain() -> None:
    nodes = (node("a", Plus(), a="x"), node("b", Plus(), a="a"), node("c", Plus(), a="a"))
    assert not is_chain(flatten(Graph({"x": Numbers}, nodes, {"b": "b", "c": "c"})))
    assert is_chain(flatten(Graph({"x": Numbers}, nodes[:2], {"b": "b"})))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 3))
def test_no_division_into_runs_has_a_smaller_bottleneck(work: list[int], count: int) -> None:
    known = estimates(Machine(lanes(count)), *map(float, work))
    bounds = Bounds(known)
    found = best_runs(known, bounds)
    assert found is not None
    chosen, proven = found
    names = [s.name for s in known.program.steps]
    each = [bounds.piece(n, ("cpu:0",)).spread for n in names]
    best = min(
        max(sum(s for s, at in zip(each, where, strict=True) if at == lane) for lane in set(where))
        for where in product(range(count), repeat=len(each))
        if list(where) == sorted(where)
    )
    assert proven.bottleneck == pytest.approx(best)
    assert [len(lanes) for lanes in chosen] == [1] * len(names)


def test_a_pinned_step_is_left_to_the_search() -> None:
    nodes = (node("a", Busy(1.0), a="rows", device="cpu:0"),)
    program = flatten(Graph({"rows": Numbers}, nodes, {"out": "a"}))
    known = Estimates(program, Machine(lanes(2)), {"rows": Flow(8)})
    assert best_runs(known, Bounds(known)) is None
