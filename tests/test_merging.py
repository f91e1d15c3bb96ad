"""Steps of equal stages share calls: fewer, the same results, and nobody pays for another's bad row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.apply import Fault
from pipeline.events import Event, Failed, Meta, Start, Submit
from pipeline.executor import run
from pipeline.graph import Graph, Loop, Node, node
from pipeline.invent import given as invented
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.merging import alone, kin, moved, shares, spans, together
from pipeline.plan import Plan, place
from pipeline.program import flatten
from pipeline.scheduler import Scheduler
from pipeline.simulate import simulate
from pipeline.timeline import Counts, Span
from pipeline.values import Rows
from tests.costed import Busy, Case, lanes
from tests.driving import LANES, Driver, essence, meta
from tests.graphs import alike, inputs_for
from tests.toys import Collatz, Fan, Join, Numbers, Picky, Plus, Strip, Total, Whole, numbers

FAULT = Fault("worker died", "gone")
ONE = Machine((Device("cpu:0"),))
KINDS: dict[str, type[Rows]] = {"docs": Numbers, "asks": Numbers, "all": Whole}


def graph(*nodes: Node) -> Graph:
    """The nodes, all of them outputs."""
    read = {ref for n in nodes for ref in n.inputs.values()}
    outputs = {n.name: f"{n.name}.next" if isinstance(n.stage, Loop) else n.name for n in nodes}
    return Graph({k: v for k, v in KINDS.items() if k in read}, nodes, outputs)


def plan(made: Graph, machine: Machine = ONE, window: int = 1 << 30) -> Plan:
    return place(flatten(made), machine, window, ("coalesce",))


def driver(*nodes: Node, machine: Machine = ONE, window: int = 1 << 30) -> Driver:
    made = graph(*nodes)
    return Driver(made, plan=plan(made, machine, window))


def many(n: int, x: int = 1) -> Numbers:
    return numbers(**{f"r{i}": x for i in range(n)})


def turn(name: str, ref: str) -> Node:
    nodes = (node("go", Collatz(), a="n"), node("bare", Strip(), a="go"))
    body = Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"})
    return node(name, Loop(body, {"n": "next"}, "flags", 9), n=ref)


def submits(driver: Driver) -> list[Submit]:
    return [s for s in driver.log if isinstance(s, Submit)]


def calls(driver: Driver, *steps: str) -> int:
    return sum(bool({s for s, _ in shares(t)} & set(steps)) for t in submits(driver))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_merges_the_outcome_is_that_of_the_plain_loop(data: st.DataObject) -> None:
    """Any order of events, rows that fail, a lane that is lost, a window that is full."""
    made = data.draw(alike())
    inputs = data.draw(inputs_for(made))
    rng = random.Random(data.draw(st.integers(0, 99)))
    found = Checked(made, plan=plan(made, LANES, data.draw(st.sampled_from([1, 2000, 1 << 30]))))
    lost = data.draw(st.dictionaries(st.integers(0, 12), st.just("cpu:1"), max_size=1))
    outcome, local = found.run(inputs, lambda w: rng.randrange(len(w)), lost), run_local(made, inputs)
    assert essence(outcome) == essence(local)
    for output in made.outputs:
        assert [r.id for r in outcome[output]] == [r.id for r in local[output]]


class Checked(Driver):
    """Checks who shares a call, and who starts while the window is full."""

    def tell(self, event: Event) -> None:
        before = list(self.waiting)
        super().tell(event)
        depth = {name: i for i, name in enumerate(self.steps)}
        deepest = max((depth[s] for t in before for s, _ in shares(t)), default=-1)
        for task in self.waiting[len(before) :]:
            assert len({self.steps[s].stage for s, _ in shares(task)}) == 1
            if self.scheduler.live_bytes > self.plan.window:
                assert not task.shares
                assert self.scheduler.board.weights.is_light(task.step) or depth[task.step] > deepest
                deepest = max(deepest, depth[task.step])


# who


def test_equal_stages_in_branches_and_loops_may_share_calls() -> None:
    branches = (node("a", Plus(), a="docs"), node("b", Plus(), a="asks"), node("c", Plus(2), a="docs"))
    made = graph(*branches, turn("s", "docs"), turn("t", "asks"))
    assert kin(flatten(made), plan(made)) == {
        "a": ("b",), "b": ("a",),
        "s/go": ("t/go",), "t/go": ("s/go",),
        "s/bare": ("t/bare",), "t/bare": ("s/bare",),
    }  # fmt: skip


@pytest.mark.parametrize(
    "nodes",
    [
        (node("a", Fan(), a="docs"), node("b", Fan(), a="docs")),
        (node("a", Total(), a="docs"), node("b", Total(), a="docs")),
        (node("a", Join(), a="docs", b="all"), node("b", Join(), a="docs", b="all")),
        (node("a", Plus(1), a="docs"), node("b", Plus(2), a="docs")),
        (node("a", Plus(), a="docs"), node("b", Plus(), a="docs", device="cpu:1")),
        (node("f", Fan(), a="docs"), node("a", Plus(), a="docs"), node("b", Plus(), a="f")),
        (node("a", Plus(), a="all"), node("b", Plus(), a="all")),
    ],
    ids=["expands", "gathers", "shared port", "parameters", "lanes", "depth of ids", "whole corpus"],
)
def test_others_keep_to_themselves(nodes: tuple[Node, ...]) -> None:
    made = graph(*nodes)
    assert kin(flatten(made), plan(made, LANES)) == {}


def test_without_the_policy_nobody_shares_a_call() -> None:
    found = Driver(graph(node("a", Plus(), a="docs"), node("b", Plus(), a="docs")), machine=ONE)
    found.run({"docs": many(3)})
    assert [t.shares for t in submits(found)] == [(), ()]


# how many calls


@pytest.mark.parametrize(("rows", "batch"), [(3, 64), (5, 4), (8, 8), (1, 2), (7, 3), (2, 1)])
@pytest.mark.parametrize("branches", [2, 3])
def test_calls_are_as_few_as_if_all_rows_were_of_one_step(rows: int, batch: int, branches: int) -> None:
    names = [f"s{i}" for i in range(branches)]
    found = driver(*(node(name, Plus(5), a="docs", batch=batch) for name in names))
    outcome = found.run({"docs": many(rows)})
    assert calls(found, *names) == ceil(branches * rows / batch)
    assert all(r.rows == numbers(**{str(r.id[0]): 6}) for r in outcome.results)
    assert Counter(r.output for r in outcome.results) == dict.fromkeys(names, rows)


@pytest.mark.parametrize("late", [0, 1])
def test_a_part_filled_batch_waits_for_rows_of_its_kin_that_are_one_step_away(late: int) -> None:
    read = ["docs", "docs"]
    read[late] = "p"
    nodes = [node("p", Picky(7), a="docs"), node("a", Plus(), a=read[0]), node("b", Plus(), a=read[1])]
    found = driver(*nodes)
    found.run({"docs": many(3)})
    assert calls(found, "a", "b") == 1


def test_it_does_not_wait_for_what_is_further_away() -> None:
    far = (node("p", Picky(7), a="docs"), node("q", Picky(8), a="p"), node("b", Plus(), a="q"))
    found = driver(*far, node("a", Plus(), a="docs"))
    found.run({"docs": many(3)})
    assert calls(found, "a", "b") == 2


def test_two_that_feed_each_others_kin_do_not_wait_for_each_other() -> None:
    one = (node("a", Plus(), a="docs"), node("b", Picky(7), a="a"))
    other = (node("c", Picky(7), a="asks"), node("d", Plus(), a="c"))
    outcome = driver(*one, *other).run({"docs": many(3), "asks": numbers(x=2)})
    assert len(outcome.results) == 8


def test_a_step_of_small_batches_is_never_in_a_larger_one() -> None:
    found = driver(node("a", Plus(), a="docs", batch=6), node("b", Plus(), a="docs", batch=2))
    found.run({"docs": many(6)})
    assert all(len(t.owed) <= 2 for t in submits(found) if "b" in {s for s, _ in shares(t)})


def test_rounds_of_two_loops_share_calls() -> None:
    made = graph(turn("s", "docs"), turn("t", "asks"))
    inputs: dict[str, Rows] = {"docs": numbers(q=32), "asks": numbers(q=8)}
    found = Driver(made, plan=plan(made))
    assert essence(found.run(inputs)) == essence(run_local(made, inputs))
    assert calls(found, "s/go", "t/go") == 5  # as many as the longer one has rounds


def test_rows_of_the_same_id_are_told_apart_by_a_stage_that_goes_by_id() -> None:
    found = driver(
        node("p", Plus(10), a="docs"), node("a", Join(), a="docs", b="docs"), node("b", Join(), a="p", b="p")
    )
    outcome = found.run({"docs": numbers(q=1, r=2)})
    assert calls(found, "a", "b") == 1
    assert [r.rows for r in outcome["a"]] == [numbers(q=2), numbers(r=4)]
    assert [r.rows for r in outcome["b"]] == [numbers(q=22), numbers(r=24)]


# fair


def test_nobody_takes_more_than_a_fair_part_of_a_call() -> None:
    found = driver(node("a", Plus(), a="docs", batch=8), node("b", Plus(), a="asks", batch=8))
    found.tell(Start((("docs", meta(*map(str, range(100)))), ("asks", meta("x", "y", "z")))))
    assert dict(submits(found)[0].shares) == {"a": 5, "b": 3}


# bad rows


@pytest.mark.parametrize("bad", range(4))
def test_a_bad_row_of_one_branch_leaves_those_of_the_other_alone(bad: int) -> None:
    """Both read rows of the same ids; only those of `b` are bad."""
    plus = Plus(1, bad=10 + bad)
    found = driver(node("p", Plus(10), a="docs"), node("a", plus, a="docs"), node("b", plus, a="p"))
    outcome = found.run({"docs": numbers(q0=0, q1=1, q2=2, q3=3)})
    assert [(f.id, f.stage) for f in outcome.failures] == [((f"q{bad}",), "b")]
    tried = [t for t in submits(found) if {s for s, _ in shares(t)} & {"a", "b"}]
    assert [len(t.shares) for t in tried] == [2] + [0] * (len(tried) - 1)
    assert [len(t.owed) for t in tried if t.step == "a" and not t.shares] == [4]
    assert all(not r.failures for r in outcome["a"])


def test_rows_that_the_stage_names_are_those_of_the_right_branch() -> None:
    found = driver(node("p", Plus(), a="docs"), node("a", Picky(5), a="docs"), node("b", Picky(5), a="p"))
    outcome = found.run({"docs": numbers(q=4, r=5, s=6)})
    assert calls(found, "a", "b") == 5  # together, apart, and each without its bad row
    assert Counter((f.id, f.stage) for f in outcome.failures) == {(("r",), "a"): 1, (("q",), "b"): 1}


def test_what_a_lost_lane_had_of_several_steps_runs_again_by_step() -> None:
    found = driver(node("a", Plus(), a="docs"), node("b", Plus(), a="docs"), machine=LANES)
    outcome = found.run({"docs": many(3)}, lose={0: "cpu:0"})
    assert [t.shares for t in submits(found)] == [(("b", 3), ("a", 3)), (), ()]
    assert len(outcome.results) == 6


def test_a_worker_that_dies_under_two_steps_blames_neither() -> None:
    made = graph(node("a", Plus(), a="docs"), node("b", Plus(), a="docs"))
    scheduler = Scheduler(flatten(made), plan(made))
    (first,) = (s for s in scheduler.handle(Start((("docs", meta("q")),))) if isinstance(s, Submit))
    again = scheduler.handle(Failed(first.task, FAULT))
    assert [(t.step, t.owed) for t in again if isinstance(t, Submit)] == [("b", (("q",),)), ("a", (("q",),))]
    assert len(again) == 2


# reports

TASK = Submit(1, "a", "cpu:0", (), tuple((f"q{i}",) for i in (0, 1, 2, 0, 1)), (("a", 3), ("b", 2)))


def test_a_task_is_told_apart_by_step_and_put_together_again() -> None:
    parts = alone(TASK)
    assert [(t.step, t.owed) for t in parts] == [("a", TASK.owed[:3]), ("b", TASK.owed[3:])]
    whole = Meta(TASK.owed, 50, (1, 2, 3, 0, 0), (True, False, True, False, False))
    first = Meta(TASK.owed[:3], 30, (1, 2, 3), (True, False, True))
    assert together([first, Meta(TASK.owed[3:], 20)]) == whole
    assert alone(replace(TASK, shares=())) == [replace(TASK, shares=())]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.floats(0, 5), st.floats(0, 5))
def test_seconds_and_bytes_are_shared_out_by_rows_and_none_is_lost(
    rows: list[int], opening: float, work: float
) -> None:
    total = sum(rows)
    task = replace(TASK, owed=((),) * total, shares=tuple((f"s{i}", n) for i, n in enumerate(rows)))
    span = Span("s0", "cpu:0", 1.0, 1.0 + opening + work, total, 7.0, total, 90.0, opening, 0.5, 0.25)
    found = spans(task, span)
    assert [(s.step, s.rows, s.made) for s in found] == [(f"s{i}", n, n) for i, n in enumerate(rows)]
    assert [s.start for s in found[1:]] == [s.end for s in found[:-1]]
    assert found[0].start == span.start
    assert found[-1].end == pytest.approx(span.end)
    for i, s in enumerate(found):
        assert s.seconds == pytest.approx(work * rows[i] / total, abs=1e-9)
        assert s.length == pytest.approx(7.0 * rows[i] / total)
    for name in ("opening", "preparing", "handing", "nbytes"):
        assert sum(getattr(s, name) for s in found) == pytest.approx(getattr(span, name))
    counts = [c for _, c in moved(task, Counts(101, 7))]
    assert (sum(c.shared for c in counts), sum(c.copied for c in counts)) == (101, 7)


def test_a_run_counts_for_each_step_what_is_its_own() -> None:
    made = graph(node("p", Plus(3), a="docs"), node("a", Plus(), a="docs"), node("b", Plus(), a="p"))
    inputs: dict[str, Rows] = {"docs": many(4)}
    found = run(made, inputs, plan=plan(made))
    assert essence(Outcome(tuple(found), tuple(found.failures))) == essence(run_local(made, inputs))
    assert {step: tally.rows for step, tally in found.tallies.items()} == {"p": 4, "a": 4, "b": 4}
    assert Counter((s.step, s.rows, s.made) for s in found.spans) == {(step, 4, 4): 1 for step in "pab"}
    a, b = sorted((s for s in found.spans if s.step in "ab"), key=lambda s: s.start)
    assert a.end == b.start  # one call


def test_a_simulation_merges_what_a_run_would() -> None:
    """A row takes a second and a batch nothing for itself: no seconds are lost or counted twice."""
    nodes = tuple(node(name, Busy(), a="rows", batch=8) for name in "ab")
    case = Case(Graph({"rows": Numbers}, nodes, {"a": "a", "b": "b"}), Machine(lanes(1)), 3)
    rows = invented(case.sources, {"rows": False})
    apart = simulate(case.plan(), case.estimates(), rows)
    merged = simulate(replace(case.plan(), policies=("coalesce",)), case.estimates(), rows)
    assert [(s.step, s.rows) for s in merged.timeline.spans] == [("b", 3), ("a", 3)]
    assert merged.timeline.seconds == pytest.approx(apart.timeline.seconds)
    assert merged.timeline.spans[0].end == merged.timeline.spans[1].start
