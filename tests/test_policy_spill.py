"""What a hot lane has too much goes elsewhere, where that pays; what is balanced stays as it is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.candidates import job as job_of
from pipeline.errors import PlanError
from pipeline.graph import Graph, node
from pipeline.invent import given as given_rows
from pipeline.machine import Device, Link, Machine
from pipeline.policies.spill import ALPHA, LAMBDA, Move, Spill, SpillQueue, _Home, pays, spill
from pipeline.policy import Job, Lane, Waiting
from pipeline.roofline import Cost, Flow, Work
from pipeline.simulate import simulate
from pipeline.timeline import Timeline
from pipeline.values import Documents
from tests.costed import Case, Plain, profile
from tests.fake_view import FakeView
from tests.toys import Numbers

loads = st.lists(st.integers(0, 60) | st.integers(0, 3000), min_size=1, max_size=12)


def after(before: Sequence[int], moves: Sequence[Move]) -> list[int]:
    now = list(before)
    for move in moves:
        now[move.source] -= move.rows
        now[move.target] += move.rows
    return now


@given(loads, st.integers(1, 50), st.sampled_from([1.0, ALPHA, 2.0]))
def test_no_lane_has_more_than_its_part_and_a_chunk(before: list[int], chunk: int, keep: float) -> None:
    moves, mean = spill(before, chunk, LAMBDA, keep), sum(before) / len(before)
    now = after(before, moves)
    assert all(move.rows >= chunk for move in moves)
    assert sum(now) == sum(before)
    assert min(now) >= 0
    if max(before) >= LAMBDA * mean:
        assert max(now) <= keep * mean + chunk + 1e-9
    else:
        assert moves == []


@given(loads, st.integers(1, 50))
def test_rows_leave_only_lanes_above_their_part_and_reach_only_lanes_below(
    before: list[int], chunk: int
) -> None:
    part = ALPHA * sum(before) / len(before)
    for move in spill(before, chunk):
        assert before[move.source] > part > before[move.target]


@given(loads, st.integers(1, 50))
def test_moves_are_few(before: list[int], chunk: int) -> None:
    assert len(spill(before, chunk)) <= 3 * len(before)


def test_the_excess_goes_to_the_least_loaded() -> None:
    assert spill([100, 20, 0], 10, keep=1.0) == [Move(0, 2, 40), Move(0, 1, 20)]


def test_balanced_lanes_are_left_alone() -> None:
    assert spill([100, 100, 129], 1) == []
    assert spill([], 1) == []
    assert spill([0, 0], 1) == []


def test_less_than_a_chunk_is_not_moved() -> None:
    assert spill([100, 0], 46) == []
    assert spill([100, 0], 44) == [Move(0, 1, 44)]


@pytest.mark.parametrize(("chunk", "keep"), [(0, 1.0), (1, 0.9)])
def test_a_lane_keeps_its_share_and_spills_rows(chunk: int, keep: float) -> None:
    with pytest.raises(PlanError, match=f"found {keep}, {chunk}"):
        spill([1, 2], chunk, keep=keep)


HOME, SLOW = Lane(Device("cpu:0"), 0.0, 1.0), Lane(Device("cpu:1"), 0.0, 3.0)


@pytest.mark.parametrize(
    ("there", "transfer", "ready", "yes"),
    [
        (HOME, 1.5, 0.0, True),  # 4 rows in 2.5 s each: as soon as the home is through with all ten
        (HOME, 1.51, 0.0, False),
        (SLOW, 0.0, 0.0, False),
        (HOME, 0.0, 6.0, True),
        (HOME, 0.0, 6.1, False),
    ],
)
def test_it_pays_where_rows_are_done_there_before_the_home_is_through(
    there: Lane, transfer: float, ready: float, yes: bool
) -> None:
    assert pays(4, 10, HOME, there, transfer, ready) is yes


def test_where_no_speed_is_known_only_what_costs_nothing_moves() -> None:
    unknown = Lane(Device("cpu:0"))
    assert pays(4, 10, unknown, unknown, 0.0)
    assert not pays(4, 10, unknown, unknown, 1e-9)


# the queue

NAMES = tuple(f"cpu:{i}" for i in range(4))


def job(batch: int = 4, transfer: float = 0.0, per_row: float = 1.0, names: tuple[str, ...] = NAMES) -> Job:
    return Job("s", batch, names, {n: Lane(Device(n), 0.0, per_row) for n in names}, transfer)


def queued(keys: Sequence[Hashable], of: Job) -> SpillQueue[tuple[Hashable, int]]:
    rows: SpillQueue[tuple[Hashable, int]] = SpillQueue(of)
    for number, key in enumerate(keys):
        rows.add(Waiting((key, number), key=key))
    return rows


def at_home(rows: SpillQueue[tuple[Hashable, int]]) -> list[int]:
    return [home.rows for home in rows._homes]


def drain(
    rows: SpillQueue[tuple[Hashable, int]], most: int = 4
) -> list[tuple[str, list[tuple[Hashable, int]]]]:
    batches = []
    while rows:
        batches += [(lane, taken) for lane in NAMES if (taken := rows.take(most, lane))]
    return batches


def test_keys_have_their_homes_where_least_came_so_far() -> None:
    rows = queued("aaabbcdddd", job())
    assert at_home(rows) == [3, 2, 1, 4]
    assert drain(queued("aabbccdd", job()))[0] == ("cpu:0", [("a", 0), ("a", 1)])


def test_balanced_keys_run_at_home() -> None:
    keys = [key for key in "abcd" for _ in range(10)]
    for lane, taken in drain(queued(keys, job())):
        assert {key for key, _ in taken} == {"abcd"[NAMES.index(lane)]}


def test_a_hot_key_is_spread_over_the_lanes() -> None:
    rows = queued("a" * 397 + "bcd", job())
    rows.take(1, "cpu:1")
    assert max(at_home(rows)) <= ALPHA * 100 + 4


@given(st.lists(st.sampled_from("aaaaaabcdefg"), max_size=120), st.sampled_from([0.0, 0.5, 3.0, 100.0]))
def test_every_row_runs_once_wherever_it_runs(keys: list[str], transfer: float) -> None:
    taken = [row for _, batch in drain(queued(keys, job(transfer=transfer))) for row in batch]
    assert sorted(taken) == sorted((key, number) for number, key in enumerate(keys))


def test_nothing_spills_when_moving_takes_longer_than_it_saves() -> None:
    hot = "a" * 397 + "bcd"
    dear, worth = queued(hot, job(transfer=100.0)), queued(hot, job(transfer=0.9))
    for rows in (dear, worth):
        rows.take(1, "cpu:0")
    assert at_home(dear) == [396, 1, 1, 1]
    assert at_home(worth)[0] <= ALPHA * 100 + 4
    unknown = queued(hot, job(transfer=1.0, per_row=0.0))
    unknown.take(1, "cpu:0")
    assert at_home(unknown) == [396, 1, 1, 1]


def test_keys_with_less_than_a_chunk_stay_at_home() -> None:
    rows = queued("wxyz" + "a" * 5, job(batch=8))
    before = at_home(rows)
    rows.take(1, "cpu:1")
    assert [b - n for b, n in zip(before, at_home(rows), strict=True)] == [0, 1, 0, 0]


def test_a_home_gives_rows_only_of_a_key_that_has_a_chunk() -> None:
    home: _Home[str] = _Home(4)
    home.add("a", ["a0", "a1", "a2", "a3"])
    home.add("b", ["b0", "b1", "b2"])
    assert home.take(2) == ["a0", "a1"]
    assert home.give(9) is None
    home.add("b", ["b3", "b4"])
    assert home.give(4) == ("b", ["b1", "b2", "b3", "b4"])
    assert home.take(9) == ["b0", "a2", "a3"]


def test_a_lane_serves_its_keys_in_turn() -> None:
    rows = queued(["a", "b", "c", "d", *["b", "c", "d"] * 2, "e", *"aaaaa"], job(batch=64))
    assert [key for key, _ in rows.take(4, "cpu:0")] == ["a"] * 4
    assert [key for key, _ in rows.take(4, "cpu:0")] == ["e", "a", "a"]


def test_a_lane_with_nothing_to_do_takes_half_of_the_most_loaded_home() -> None:
    rows = queued("aaaa", job(transfer=100.0))
    assert rows.take(8, "cpu:3") == [("a", 0), ("a", 1)]
    assert rows.take(8, "cuda:9") == [("a", 2)]


def test_rows_without_a_key_go_to_whoever_comes() -> None:
    rows = queued([None, "a", None, None], job())
    assert rows.take(2, "cpu:3") == [(None, 0), (None, 2)]
    assert rows.take(4, "cpu:0") == [(None, 3), ("a", 1)]


def test_rows_without_a_key_do_not_wait_for_homes_that_never_run_dry() -> None:
    rows = queued([None, *"aaaa"], job(batch=2))
    taken = []
    for number in range(4):
        taken += rows.take(2, "cpu:0")
        rows.add(Waiting(("a", 10 + number), key="a"))
        rows.add(Waiting(("a", 20 + number), key="a"))
    assert (None, 0) in taken


def test_with_one_lane_all_is_first_come_first_served() -> None:
    rows = Spill([job(names=("cpu:0",))]).queue("s")
    for number in range(6):
        rows.add(Waiting(number, key=number % 2))
    assert [rows.take(4, "cpu:0") for _ in range(2)] == [[0, 1, 2, 3], [4, 5]]


# which lanes it asks


def serving(rows: int, of: Job) -> tuple[str, ...]:
    """Who may run a step whose rows all have one home."""
    policy = Spill([of])
    queue = policy.queue("s")
    for number in range(rows):
        queue.add(Waiting(number, key="a"))
    return tuple(policy.lanes("s", FakeView({"s": rows})))


@pytest.mark.parametrize(("transfer", "lanes"), [(0.0, NAMES[:2]), (7.0, NAMES[:2]), (7.1, NAMES[:1])])
def test_a_lane_without_rows_is_asked_only_where_moving_them_pays(
    transfer: float, lanes: tuple[str, ...]
) -> None:
    """One row of eight: there in 1 s and its way, at home all are done in 8 s."""
    assert serving(8, job(1, transfer, names=NAMES[:2])) == lanes


def test_a_lane_that_must_open_the_stage_first_is_asked_only_where_that_pays() -> None:
    opened = job(1, names=NAMES[:2])
    slow = {n: replace(lane, opening=9.0 * (n == "cpu:1")) for n, lane in opened.lanes.items()}
    assert serving(8, replace(opened, lanes=slow)) == NAMES[:1]
    both = {n: replace(lane, opening=9.0) for n, lane in opened.lanes.items()}
    assert serving(8, replace(opened, lanes=both)) == NAMES[:2]


def test_where_nothing_waits_or_nothing_has_a_home_all_planned_lanes_are_asked() -> None:
    assert serving(0, job()) == NAMES
    rows = queued(["a", None], job(transfer=100.0))
    assert rows.serving() == NAMES


# in the simulator


@dataclass(frozen=True, slots=True)
class Said(Numbers):
    """Numbers that stand for documents."""

    @property
    def keys(self) -> tuple[Hashable, ...]:
        return tuple(i[0] for i in self.ids)


@dataclass(frozen=True, slots=True)
class Ask:
    """Eight rows of 10 bytes about a document."""

    expands: ClassVar[bool] = True

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(8 * work.rows, 0.0, 10.0))

    def run(self, state: Any, a: Documents) -> Said:
        raise NotImplementedError


def simulated(bandwidth: float, *policies: str) -> Timeline:
    """Eight rows of a second each about a single document, on two lanes that work in different memories."""
    near, far = (Device(f"cpu:{i}", profile=profile(1.0), share=p) for i, p in enumerate(("", "far")))
    machine = Machine((near, far), {("host", "far"): Link(bandwidth, 0.0)})
    nodes = (node("ask", Ask(), a="rows"), node("s1", Plain(1.0), a="ask", batch=1))
    graph = Graph({"rows": Documents}, nodes, {"out": "s1"})
    case = Case(graph, machine, 1, at={"ask": ("cpu:0",)})
    estimates, plan = case.estimates(), case.plan()
    jobs = tuple(job_of(name, plan.placements, estimates) for name in plan.placements)
    told = replace(plan, jobs=jobs, policies=policies)
    return simulate(told, estimates, given_rows(case.sources, {"rows": False})).timeline


def test_a_simulated_run_spills_over_a_fast_link_and_refuses_over_a_slow_one() -> None:
    fast, slow = (simulated(bandwidth, "spill") for bandwidth in (1000.0, 0.5))
    assert {s.device for s in fast.spans if s.step == "s1"} == {"cpu:0", "cpu:1"}
    assert {s.device for s in slow.spans if s.step == "s1"} == {"cpu:0"}
    assert fast.seconds == pytest.approx(5.0, abs=0.1)
    assert slow.seconds == pytest.approx(8.0, abs=0.1)
    assert simulated(0.5).seconds > 20, "first come first served waits for the link"
