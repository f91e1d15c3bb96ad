"""The Scheduler, through a driver without Dask: what it does next is a pure function of what happened."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.apply import Fault
from pipeline.board import QUEUED
from pipeline.errors import Failure, RowId
from pipeline.events import Done, Emit, Event, Fail, Failed, Free, Instruction, Start, Submit
from pipeline.graph import Graph, Loop, Node, node
from pipeline.holds import Longest
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.plan import Plan, place
from pipeline.policy import Waiting
from pipeline.program import Program, flatten
from pipeline.scheduler import Scheduler
from pipeline.values import Rows
from tests.driving import LANES, Driver, meta
from tests.graphs import graphs, inputs_for
from tests.toys import Collatz, Fan, Join, Numbers, Picky, Plus, Strip, Total, Whole, numbers

ONE = Machine((Device("cpu:0"),))
KINDS: dict[str, type[Rows]] = {"docs": Numbers, "asks": Numbers, "all": Whole}


def graph(*nodes: Node, **outputs: str) -> Graph:
    read = {r.partition(".")[0] for n in nodes for r in n.inputs.values()}
    return Graph({k: v for k, v in KINDS.items() if k in read}, nodes, outputs or {"out": nodes[-1].name})


def many(n: int, x: int = 1) -> Numbers:
    return numbers(**{f"r{i}": x for i in range(n)})


def sizes(driver: Driver, step: str) -> list[int]:
    return [n for name, n in driver.sizes if name == step]


def essence(outcome: Outcome) -> tuple[object, ...]:
    """What two ways to run a graph must agree on."""
    assert len({(r.output, r.id) for r in outcome.results}) == len(outcome.results), "an input left twice"
    results = {(r.output, r.id): (r.rows, bool(r.failures)) for r in outcome.results}
    return results, Counter((f.id, f.stage, f.category) for f in outcome.failures)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_order_of_events_gives_what_the_plain_loop_gives(data: st.DataObject) -> None:
    made = data.draw(graphs())
    inputs = data.draw(inputs_for(made))
    rng = random.Random(data.draw(st.integers(0, 99)))
    window = data.draw(st.sampled_from([1, 500, 1 << 30]))
    ordered = data.draw(st.booleans())
    driver = Driver(made, window, ordered)
    outcome, local = driver.run(inputs, lambda w: rng.randrange(len(w))), run_local(made, inputs)
    assert essence(outcome) == essence(local)
    if ordered:
        for output in made.outputs:
            assert [r.id for r in outcome[output]] == [r.id for r in local[output]]


# batches fill from whatever is ready


def test_rows_of_different_documents_share_a_batch() -> None:
    driver = Driver(graph(node("pages", Fan(4), a="docs", batch=1), node("read", Plus(), a="pages", batch=4)))
    driver.run({"docs": many(3, 3)})
    assert sizes(driver, "read") == [4, 4, 1]


def test_a_part_filled_batch_waits_while_something_that_could_fill_it_moves() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1), node("b", Plus(), a="a", batch=5)))
    driver.run({"docs": many(7)})
    assert sizes(driver, "b") == [5, 2]


def test_a_full_batch_does_not_wait_for_the_rest_of_the_step_before() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1), node("b", Plus(), a="a", batch=2)))
    driver.run({"docs": many(20)})
    steps = [name for name, _ in driver.sizes]
    assert steps.index("b") < 2 * QUEUED + 2


def test_the_deepest_full_step_goes_first() -> None:
    """Two tasks fit on the lane; each `b` goes before the next `a`."""
    driver = Driver(
        graph(node("a", Plus(), a="docs", batch=2), node("b", Plus(), a="a", batch=2)), machine=ONE
    )
    driver.run({"docs": many(8)})
    assert [name for name, _ in driver.sizes] == ["a", "a", "b", "b", "a", "a", "b", "b"]


@dataclass(frozen=True, slots=True)
class Texts(Numbers):
    """Numbers that cost what they are."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.x


@dataclass(frozen=True, slots=True)
class Sized:
    """Rows whose lengths are their last id."""

    def run(self, state: Any, a: Numbers) -> Texts:
        return Texts(a.ids, tuple(int(i[-1]) for i in a.ids))


def test_rows_of_like_length_share_a_batch_the_longest_first() -> None:
    made = Graph({"docs": Texts}, (node("a", Plus(), a="docs", batch=2),), {"out": "a"})
    driver = Driver(made, machine=ONE)
    driver.run({"docs": Texts((("a",), ("b",), ("c",), ("d",)), (1, 90, 2, 80))})
    assert [t.owed for t in driver.log if isinstance(t, Submit)] == [(("b",), ("d",)), (("c",), ("a",))]


def test_a_row_that_others_share_does_not_count_as_their_length() -> None:
    """The document is long, its second page is longer than its first."""
    nodes = (node("pages", Fan(4), a="docs"), node("sized", Sized(), a="pages"),
             node("both", Join(), a="sized", b="docs", batch=1))  # fmt: skip
    driver = Driver(Graph({"docs": Texts}, nodes, {"out": "both"}), machine=ONE)
    driver.run({"docs": Texts((("a",),), (1002,))})
    asked = [t.owed[0] for t in driver.log if isinstance(t, Submit) and t.step == "both"]
    assert asked == [("a", 1), ("a", 0)]


def test_each_row_is_queued_once_however_many_batches_leave_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued: list[object] = []
    add = Longest.add

    def counted(queue: Longest[object], row: Waiting[object]) -> None:
        queued.append(row)
        add(queue, row)

    monkeypatch.setattr(Longest, "add", counted)
    Driver(graph(node("a", Plus(), a="docs", batch=2))).run({"docs": many(100)})
    assert len(queued) == 100


def test_no_lane_gets_more_than_it_can_hold_and_all_lanes_work() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1)))
    driver.tell(Start((("docs", meta(*"abcdefgh")),)))
    assert Counter(t.device for t in driver.waiting) == {"cpu:0": QUEUED, "cpu:1": QUEUED}


def test_a_pinned_step_runs_where_it_is_pinned() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1, device="cpu:1")))
    driver.run({"docs": many(9)})
    assert {t.device for t in driver.log if isinstance(t, Submit)} == {"cpu:1"}


# loops


def loop(rounds: int = 9, batch: int = 2, bad: int = -1) -> Node:
    nodes = (node("go", Collatz(bad), a="n", batch=batch), node("bare", Strip(), a="go", batch=batch))
    body = Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"})
    return node("turn", Loop(body, {"n": "next"}, "flags", rounds), n="docs")


def test_a_row_of_many_rounds_does_not_hold_back_one_of_few() -> None:
    driver = Driver(graph(loop(), out="turn.next"), ordered=False)
    outcome = driver.run({"docs": numbers(long=32, short=2, none=0)})
    assert [r.id for r in outcome.results] == [("short",), ("none",), ("long",)]


def rounds_of(driver: Driver, step: str) -> list[set[int]]:
    """The rounds that meet in each batch of a step."""
    seen: Counter[RowId] = Counter()
    found = []
    for task in driver.log:
        if isinstance(task, Submit) and task.step == step:
            found.append({seen[i] for i in task.owed})
            seen.update(task.owed)
    return found


def test_rows_that_go_round_again_join_the_next_full_batch() -> None:
    driver = Driver(graph(loop(), out="turn.next"), machine=ONE)
    driver.run({"docs": many(9, 8)})
    assert {0, 1} in rounds_of(driver, "turn/go")
    assert Counter(sizes(driver, "turn/go"))[2] >= 12  # of 27 rows at most three go alone


def test_a_row_that_fails_in_its_second_round_leaves_and_the_others_go_on() -> None:
    driver = Driver(graph(loop(bad=4), out="turn.next"))
    outcome = driver.run({"docs": numbers(a=8, b=2, c=3)})
    assert [(r.id, [f.stage for f in r.failures]) for r in outcome.results] == [
        (("a",), ["turn/go"]), (("b",), []), (("c",), ["turn/go"]),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Three:
    """Sums three ports, the last of the whole corpus."""

    def run(self, state: Any, a: Numbers, b: Numbers, c: Numbers) -> Numbers:
        return Numbers(a.ids, tuple(x + y + c.x[0] for x, y in zip(a.x, b.x, strict=True)))


@pytest.mark.parametrize("order", ["nmk", "knm", "nkm"])
def test_a_row_that_waits_for_a_shared_one_enters_its_loop_once(order: str) -> None:
    """Two carried rows come before the shared one, and each asks for it."""
    inner = (node("s", Three(), a="n", b="m", c="k"), node("go", Collatz(), a="s"),
             node("bare", Strip(), a="go"))  # fmt: skip
    body = Graph(dict.fromkeys("nmk", Numbers), inner, {"next": "bare", "sum": "s", "flags": "go"})
    reads = {"n": "docs", "m": "p", "k": "late"}
    turn = Node("turn", Loop(body, {"n": "next", "m": "sum"}, "flags", 3), {k: reads[k] for k in order})
    slow = (node("s1", Plus(), a="asks"), node("s2", Plus(), a="s1"), node("late", Total(0), a="s2"))
    made = graph(node("p", Plus(), a="docs"), *slow, turn, out="turn.next")
    inputs: dict[str, Rows] = {"docs": numbers(a=3, b=5), "asks": numbers(x=1)}
    assert essence(Driver(made).run(inputs)) == essence(run_local(made, inputs))


# faults


@pytest.mark.parametrize("bad", [0, 17, 63])
def test_a_batch_is_halved_until_the_bad_row_stands_alone(bad: int) -> None:
    rows = numbers(**{f"r{i}": i for i in range(64)})
    driver = Driver(graph(node("a", Plus(1, bad), a="docs")))
    outcome = driver.run({"docs": rows})
    assert [f.id for f in outcome.failures] == [(f"r{bad}",)]
    assert len(sizes(driver, "a")) == 1 + 2 * 6
    assert sum(bool(r.failures) for r in outcome.results) == 1


def test_rows_that_the_stage_names_fail_and_the_rest_runs_again_at_once() -> None:
    driver = Driver(graph(node("a", Picky(3), a="docs")))
    outcome = driver.run({"docs": numbers(a=1, b=3, c=5, d=6, e=7)})
    assert sizes(driver, "a") == [5, 3]
    assert [f.id for f in outcome.failures] == [("b",), ("d",)]


def test_the_rest_of_a_failed_batch_runs_before_new_rows() -> None:
    driver = Driver(graph(node("a", Picky(3), a="docs", batch=2)), machine=ONE)
    driver.run({"docs": numbers(a=1, b=3, c=1, d=1, e=1, f=1)})
    assert [t.owed[0] for t in driver.log if isinstance(t, Submit)][2] == ("a",)


def test_a_worker_that_dies_halves_the_batch_too() -> None:
    scheduler = Scheduler(*program(node("a", Plus(), a="docs")))
    (first,) = submits(scheduler.handle(Start((("docs", meta("a", "b")),))))
    halves = submits(scheduler.handle(Failed(first.task, Fault("worker died", "gone"))))
    assert sorted(t.owed for t in halves) == [(("a",),), (("b",),)]
    said = scheduler.handle(Failed(halves[0].task, Fault("worker died", "gone")))
    assert [s.failure for s in said if isinstance(s, Fail)] == [
        Failure(halves[0].owed[0], "a", "worker died", "gone")
    ]
    assert not scheduler.finished
    scheduler.handle(Done(halves[1].task, meta(str(halves[1].owed[0][0]))))
    assert scheduler.finished


def test_a_fault_that_names_rows_of_another_batch_halves() -> None:
    scheduler = Scheduler(*program(node("a", Plus(), a="docs")))
    (first,) = submits(scheduler.handle(Start((("docs", meta("a", "b")),))))
    fault = Fault("bug", "", {("z",): ("unreadable", "")})
    assert len(submits(scheduler.handle(Failed(first.task, fault)))) == 2


def program(*nodes: Node, machine: Machine = LANES, window: int = 1 << 30) -> tuple[Program, Plan]:
    made = flatten(graph(*nodes))
    return made, place(made, machine, window)


def submits(said: list[Instruction]) -> list[Submit]:
    return [s for s in said if isinstance(s, Submit)]


# many to one


def test_a_group_waits_for_its_last_row_and_not_for_other_groups() -> None:
    driver = Driver(
        graph(node("f", Fan(9), a="docs"), node("p", Plus(), a="f", batch=1), node("t", Total(1), a="p")),
        ordered=False,
    )
    outcome = driver.run({"docs": numbers(c=0, b=1, a=8)})
    assert [r.id for r in outcome.results] == [("c",), ("b",), ("a",)]
    steps = [name for name, _ in driver.sizes]
    assert steps.index("t") < len(steps) - 1 - steps[::-1].index("p")


def test_a_group_is_whole_when_its_bad_rows_have_failed() -> None:
    nodes = (node("f", Fan(4), a="docs"), node("p", Plus(0, bad=31), a="f"), node("t", Total(1), a="p"))
    outcome = Driver(graph(*nodes)).run({"docs": numbers(three=3, none=4)})
    assert [r.rows for r in outcome.results] == [Numbers((("three",),), (30 + 2 * 32,)), numbers(none=0)]
    assert [f.id for f in outcome.failures] == [("three", 1)]


def test_a_document_that_cannot_be_opened_is_no_empty_document() -> None:
    nodes = (node("f", Fan(4, bad=7), a="docs"), node("t", Total(1), a="f"))
    outcome = Driver(graph(*nodes)).run({"docs": numbers(bad=7, none=4)})
    assert [(len(r.rows), [f.id for f in r.failures]) for r in outcome.results] == [(0, [("bad",)]), (1, [])]


def test_a_row_that_failed_before_its_fan_is_not_gathered_behind_it() -> None:
    nodes = (node("f", Fan(4), a="docs"), node("t", Total(1), a="f"), node("p", Plus(0, bad=62), a="t"),
             node("g", Fan(9), a="p"), node("u", Total(1), a="g"))  # fmt: skip
    (result,) = Driver(graph(*nodes)).run({"docs": numbers(a=2)}).results
    assert (len(result.rows), [f.stage for f in result.failures]) == (0, ["p"])


# what waits, and for how long


SEARCH = (node("index", Total(0), a="docs"), node("search", Join(), a="asks", b="index", batch=2))


def test_a_shared_row_is_freed_after_its_last_possible_reader_and_at_once() -> None:
    driver = Driver(graph(*SEARCH))
    driver.run({"docs": many(3), "asks": many(9)})
    task = {t.step: t.task for t in driver.log if isinstance(t, Submit)}  # the last of each step
    events = [i for i, e in enumerate(driver.log) if isinstance(e, Event)]
    freed = driver.log.index(Free(task["index"]))
    assert max(i for i in events if i < freed) == max(events)


def test_a_value_is_freed_while_the_run_goes_on() -> None:
    driver = Driver(
        graph(node("a", Plus(), a="docs", batch=1), node("b", Plus(), a="a", batch=1)), ordered=False
    )
    driver.run({"docs": many(20)})
    first = next(i for i, s in enumerate(driver.log) if isinstance(s, Free))
    assert first < len(driver.log) / 4


def test_what_nobody_reads_is_freed_at_once() -> None:
    """The fan gives no rows: its value has no reader."""
    driver = Driver(graph(node("f", Fan(1), a="docs"), node("p", Plus(), a="f")))
    driver.run({"docs": many(2)})
    assert sizes(driver, "p") == []
    assert Free(1) in driver.log


@pytest.mark.parametrize("memo", [1, 1 << 16])
def test_what_is_remembered_of_finished_rows_is_bounded(memo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.quiet.MEMO", memo)
    nodes = (node("f", Fan(4), a="docs"), node("p", Join(), a="f", b="docs"), node("t", Total(1), a="p"))
    inputs: dict[str, Rows] = {"docs": numbers(**{f"r{i}": i for i in range(50)})}
    driver = Driver(graph(*nodes))
    assert essence(driver.run(inputs)) == essence(run_local(driver.graph, inputs))
    tracker = driver.scheduler._rows
    assert len(tracker._quiet._quiet) <= memo
    assert not tracker._groups._fired


CHAIN = tuple(node(f"s{i}", Plus(), a=f"s{i - 1}" if i else "docs", batch=1) for i in range(4))


def most_bytes(driver: Driver, inputs: dict[str, Rows]) -> int:
    """The largest sum of live values after any event."""
    most = 0
    tell = driver.tell

    def measured(event: Event) -> None:
        nonlocal most
        tell(event)
        most = max(most, driver.scheduler.live_bytes)

    driver.tell = measured  # type: ignore[method-assign]
    driver.run(inputs)
    return most


def test_over_the_window_only_the_outputs_of_running_tasks_are_added() -> None:
    rows = many(100)
    one, running = rows.take([0]).nbytes, len(LANES.devices) * QUEUED
    window = rows.nbytes + 10 * one
    narrow = most_bytes(Driver(graph(*CHAIN), window, ordered=False), {"docs": rows})
    assert narrow <= window + running * one


def test_a_window_smaller_than_the_input_still_lets_the_run_go_on() -> None:
    rows = many(30)
    driver = Driver(graph(*CHAIN), window=1, ordered=False)
    assert (
        most_bytes(driver, {"docs": rows})
        <= rows.nbytes + len(LANES.devices) * QUEUED * rows.take([0]).nbytes
    )
    assert len(driver.outcome.results) == 30


def test_over_the_window_what_lies_behind_the_work_in_flight_may_start() -> None:
    """Two rows fit; the value of the first is one too many, so `s1` may go on with it and `s0` may not."""
    scheduler = Scheduler(*program(*CHAIN[:2], machine=ONE, window=3))
    first, second = submits(scheduler.handle(Start((("docs", meta(*"abc")),))))
    assert (first.step, second.step) == ("s0", "s0")
    (third,) = submits(scheduler.handle(Done(first.task, meta("a"))))
    assert third.step == "s1"
    assert [t.step for t in submits(scheduler.handle(Done(third.task, meta("a"))))] == ["s0"]


# leaving


@given(st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_inputs_leave_in_their_order_whatever_finishes_first(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1), node("b", Plus(), a="a", batch=2)))
    outcome = driver.run({"docs": many(12)}, lambda waiting: rng.randrange(len(waiting)))
    assert [r.id for r in outcome.results] == [(f"r{i}",) for i in range(12)]


def test_without_order_inputs_leave_as_they_finish() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1)), ordered=False)
    outcome = driver.run({"docs": many(4)}, lambda waiting: len(waiting) - 1)
    assert [r.id for r in outcome.results] == [("r1",), ("r2",), ("r3",), ("r0",)]


def test_an_input_that_is_ready_leaves_while_others_run() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1)))
    driver.run({"docs": many(8)})
    assert driver.log.index(next(e for e in driver.log if isinstance(e, Emit))) < len(driver.log) / 3


def test_new_work_goes_out_before_results_do() -> None:
    """Who takes a result may take long over it."""
    scheduler = Scheduler(*program(node("a", Plus(), a="docs", batch=1), machine=ONE))
    first = submits(scheduler.handle(Start((("docs", meta(*"abcd")),))))[0]
    kinds = [type(s) for s in scheduler.handle(Done(first.task, meta("a")))]
    assert kinds == [Submit, Emit, Free]


def test_each_output_has_every_input_once() -> None:
    nodes = (node("p", Picky(2), a="docs"), node("f", Fan(4), a="docs"))
    outcome = Driver(graph(*nodes, p="p", f="f")).run({"docs": numbers(a=1, b=2, c=4)})
    assert Counter((r.output, r.id) for r in outcome.results) == {(o, (i,)): 1 for o in "pf" for i in "abc"}


def test_an_input_may_be_an_output() -> None:
    outcome = Driver(graph(node("p", Plus(), a="docs"), p="p", docs="docs")).run({"docs": numbers(a=1)})
    assert {r.output: r.rows for r in outcome.results} == {"p": numbers(a=2), "docs": numbers(a=1)}


@pytest.mark.parametrize("asks", [0, 2])
def test_without_documents_there_is_an_empty_index(asks: int) -> None:
    outcome = Driver(graph(*SEARCH)).run({"docs": many(0), "asks": many(asks, 5)})
    assert [r.rows for r in outcome.results] == list(many(asks, 5).split())


def test_without_any_rows_a_run_is_finished_as_it_starts() -> None:
    scheduler = Scheduler(*program(node("a", Plus(), a="docs")))
    assert scheduler.handle(Start((("docs", meta()),))) == [Free("docs")]
    assert scheduler.finished


# a pure state machine


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_the_same_events_give_the_same_instructions(data: st.DataObject) -> None:
    made = data.draw(graphs())
    driver = Driver(made, window=500)
    driver.run(data.draw(inputs_for(made)), lambda waiting: len(waiting) // 2)
    again = Scheduler(driver.program, driver.plan)
    said = [s for e in driver.log if isinstance(e, Event) for s in (e, *again.handle(e))]
    assert said == driver.log


def test_a_task_that_is_not_in_flight_cannot_be_done() -> None:
    scheduler = Scheduler(*program(node("a", Plus(), a="docs")))
    (task,) = submits(scheduler.handle(Start((("docs", meta("a")),))))
    scheduler.handle(Done(task.task, meta("a")))
    with pytest.raises(KeyError):
        scheduler.handle(Done(task.task, meta("a")))
