"""Seconds of a batch before it runs: measured, scaled from what was, or by formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from pipeline.estimate import ASSUMED_SECONDS, ENOUGH, Estimates
from pipeline.learned import Learned, Point, lane_key, stage_key
from pipeline.machine import Device, Machine
from pipeline.profiles import Profile
from pipeline.roofline import Cost, Flow, Work
from tests.costed import Busy, Case, One, Plain, chain, lanes, linked, profile
from tests.toys import Numbers, Plus

ONE = lanes(1, overhead=0.5)[0]


def estimates(
    stage: Any, *devices: Device, learned: Learned | None = None, length: float = 0.0, **more: Any
) -> Estimates:
    machine = Machine(devices or (ONE,), **more)
    return Case(chain(stage), machine, 100, length, learned=learned or Learned()).estimates()


def shown(stage: Any, device: Device, *points: tuple[int, float, float]) -> Learned:
    return Learned({lane_key(stage, device): tuple(Point(*p) for p in points)})


# by formula


def test_a_formula_gives_the_seconds_of_the_roofline() -> None:
    found = estimates(Busy(2.0)).guess("s0", ONE, 3)
    assert (found.seconds, found.source, found.bound) == (6.5, "formula", "compute")
    assert found.cost is not None
    assert found.cost.flops == 6


def test_length_is_that_of_all_rows_unless_it_is_given() -> None:
    found = estimates(Busy(1.0, by_length=0.5), length=10)
    assert [found.seconds("s0", ONE, 2, x) for x in (None, 10.0, 4.0)] == [12.5, 12.5, 6.5]


def test_what_is_asked_first_does_not_decide_what_comes_later() -> None:
    once, again = (estimates(Busy(0.0, by_length=1.0), length=10) for _ in range(2))
    once.seconds("s0", ONE, 1, 9.6)
    assert once.seconds("s0", ONE, 1, 10.4) == again.seconds("s0", ONE, 1, 10.4) == 10.9


def test_nothing_known_is_assumed_and_said_to_be() -> None:
    found = estimates(Plus()).guess("s0", ONE, 10)
    assert (found.seconds, found.source, found.bound) == (0.5 + 10 * ASSUMED_SECONDS, "assumed", "")


# measured


def test_enough_batches_are_fitted() -> None:
    told = [(n, 0.0, 3.0 + n) for n in range(1, ENOUGH + 1)]
    found = estimates(Busy(), learned=shown(Busy(), ONE, *told)).guess("s0", ONE, 50)
    assert (found.source, found.bound) == ("measured", "compute")
    assert found.seconds == pytest.approx(53)


def test_a_fit_follows_the_length_of_a_batch() -> None:
    told = [(n, x, 2.0 + 0.5 * x) for n, x in ((1, 4.0), (2, 30.0), (3, 9.0), (8, 80.0), (2, 2.0), (5, 5.0))]
    found = estimates(Busy(), learned=shown(Busy(), ONE, *told), length=10)
    assert found.seconds("s0", ONE, 4, 25.0) == pytest.approx(2 + 0.5 * 100)


def test_a_batch_takes_no_less_than_the_overhead() -> None:
    told = [(n, 0.0, 0.01 * n) for n in range(1, ENOUGH + 1)]
    assert estimates(Busy(), learned=shown(Busy(), ONE, *told)).seconds("s0", ONE, 2) == 0.5


def test_a_stage_without_formula_needs_one_batch_only_even_of_another_width() -> None:
    found = estimates(Plus(), learned=shown(Plus(), Device("cpu:0", 8), (2, 0.0, 6.0))).guess("s0", ONE, 4)
    assert found.source == "measured"
    assert 6 <= found.seconds <= 12, "of one batch nobody knows what is fixed"


def test_a_group_is_fitted_by_its_length_in_sum() -> None:
    told = [(1, x, 0.5 * x) for x in (4.0, 30.0, 9.0, 80.0, 2.0, 5.0)]
    found = estimates(One(), learned=shown(One(), ONE, *told), length=3)  # 100 rows of 3
    assert found.seconds("s0", ONE, 1) == pytest.approx(150)


# scaled


def test_few_batches_say_how_much_slower_than_its_formula_a_stage_is() -> None:
    found = estimates(Busy(), learned=shown(Busy(), ONE, (2, 0.0, 7.5), (1, 0.0, 4.5))).guess("s0", ONE, 10)
    # 12 s where 4 were said.
    assert found.source == "scaled"
    assert found.seconds == pytest.approx(3 * 10.5)


def test_a_width_never_measured_has_the_ratio_of_the_nearest() -> None:
    """One thread ran at half its formula, four at a third: two are nearer to one, eight to four."""
    curve = {n: profile(float(n)) for n in (1, 2, 4, 8)}
    stage = Busy(8.0)
    learned = Learned({
        lane_key(stage, Device("cpu:0", 1)): (Point(1, 0, 16.0),),
        lane_key(stage, Device("cpu:0", 4)): (Point(1, 0, 6.0),),
    })  # fmt: skip
    for threads, seconds in ((1, 16.0), (2, 8.0), (4, 6.0), (8, 3.0)):
        lane = Device("cpu:0", threads, curve[threads])
        found = estimates(stage, lane, learned=learned, by_threads=curve).guess("s0", lane, 1)
        assert found.source == "scaled"
        assert found.seconds == pytest.approx(seconds)


def test_other_kinds_of_device_say_nothing() -> None:
    card = lanes(1, kind="cuda")[0]
    found = estimates(Busy(), ONE, card, learned=shown(Busy(), ONE, (1, 0.0, 9.0)))
    assert (found.seconds("s0", card, 1), found.seconds("s0", ONE, 1)) == (1, 9)


# where


@dataclass(frozen=True, slots=True)
class Code:
    """Ordinary code that says it gains from an accelerator."""

    accelerated = True

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows), scalar=work.rows, dtype="int8")

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_only_what_gains_runs_elsewhere_and_ordinary_code_needs_a_processor() -> None:
    card = lanes(1, kind="cuda")[0]
    pim = Device("pim:0", profile=Profile({"float32": 1.0}, 1.0, 1.0, 1e9, scalar=0.0))
    for stage, expected in (
        (Busy(), [True] * 3),
        (Plain(), [True, False, False]),
        (Code(), [True, True, False]),
    ):
        found = estimates(stage, ONE, card, pim)
        assert [found.can_run("s0", d) for d in (ONE, card, pim)] == expected


def test_a_stage_cannot_run_where_its_dtype_is_not_computed() -> None:
    half = Device("cuda:0", profile=Profile({"float16": 1.0}, 1.0, 1.0, 1e9))
    assert not estimates(Busy(), ONE, half).can_run("s0", half)


# opening, lanes


def test_opening_is_as_seen_else_what_is_read_from_storage() -> None:
    seen = Learned(openings={lane_key(Busy(opening=6.0), ONE): 2.0})
    told = [estimates(Busy(opening=6.0), learned=x).opening("s0", ONE) for x in (None, seen)]
    assert told == [6, 2]
    assert estimates(Plus()).opening("s0", ONE) == 0


def test_policies_see_a_line_through_one_row_and_a_full_batch() -> None:
    found = estimates(Busy(2.0, opening=6.0)).lane("s0", ONE, 9)
    assert (found.fixed, found.per_row, found.bound, found.opening) == (0.5, 2.0, "compute", 6.0)
    assert found.seconds(9) == 18.5
    assert estimates(Busy(2.0)).lane("s0", ONE, 1).seconds(1) == 2.5


def test_auto_is_the_dtype_of_each_lane() -> None:
    machine = linked(ONE, Device("cuda:0", profile=Profile({"float32": 1.0, "bfloat16": 9.0}, 1.0, 1.0, 1e9)))
    asked: list[str] = []

    @dataclass(frozen=True, slots=True)
    class Auto(Busy):
        def cost(self, work: Work) -> Cost:
            asked.append(work.dtype)
            return Cost(Flow(work.rows), dtype=work.dtype)

    found = Case(chain(Auto()), machine, 1).estimates()
    for device in machine.devices:
        found.cost("s0", device, 1)
    assert asked == ["float32", "bfloat16"]


# links


def links(at: dict[str, tuple[str, ...]], step: str, lane: str, batch: int = 4) -> float:
    """Seconds a row over the link to a lane, of rows of 10 bytes that come in and 20 that s0 makes."""
    machine = linked(*lanes(2), *lanes(2, kind="cuda"), bandwidth=5.0, latency=1.0)
    known = Case(chain(Busy(nbytes=20.0), Busy()), machine, 100, nbytes=10.0).estimates()
    return known.link(step, machine.device(lane), batch, at)


def test_the_way_of_a_row_is_that_of_a_full_batch_shared_out() -> None:
    assert links({}, "s0", "cuda:0") == pytest.approx((1 + 40 / 5) / 4)
    assert links({}, "s0", "cpu:1") == 0
    assert links({"s0": ("cpu:0",)}, "s1", "cuda:0") == pytest.approx((1 + 80 / 5) / 4)


def test_nothing_is_moved_within_a_memory_and_by_way_of_the_host_between_two() -> None:
    assert links({"s0": ("cuda:0",)}, "s1", "cuda:0") == links({"s0": ("cpu:0", "cpu:1")}, "s1", "cpu:0") == 0
    assert links({"s0": ("cuda:0",)}, "s1", "cuda:1") == pytest.approx(2 * (1 + 80 / 5) / 4)


def test_of_several_lanes_each_has_made_its_share() -> None:
    assert links({"s0": ("cpu:0", "cuda:0")}, "s1", "cuda:0") == pytest.approx((1 + 80 / 5) / 4 / 2)


# samples


def test_what_a_few_rows_showed_is_said_to_be_a_sample() -> None:
    told = replace(shown(Plus(), ONE, (1, 0.0, 1.0), (2, 0.0, 2.0)), sampled=frozenset({stage_key(Plus())}))
    found = estimates(Plus(), learned=told).guess("s0", ONE, 4)
    assert found.source == "sampled"
    assert found.seconds == pytest.approx(4)
