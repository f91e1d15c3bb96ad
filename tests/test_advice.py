from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.advice import Bottleneck, Idle, advice, bottleneck, covered, idle, loads, saving
from pipeline.machine import Device
from pipeline.timeline import Span, Stall, Timeline

pairs = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda p: (min(p), max(p)))


def run(seconds: float, *spans: tuple[str, str, float, float], waits: Sequence[Stall] = ()) -> Timeline:
    """A timeline from (step, device, start, end)."""
    return Timeline(seconds, tuple(Span(*s, rows=1) for s in spans), tuple(waits))


STARVED = run(
    100.0,
    ("parse", "cpu:0", 0, 100),
    ("embed", "cuda:0", 31, 91),
    waits=[
        Stall("cuda:0", 0, 31, "starved", "parse"),
        Stall("cuda:0", 91, 96, "filling", "embed"),
        Stall("cuda:0", 96, 100, "done"),
    ],
)
"""parse works all the time; embed for 60 s."""


@given(st.lists(pairs))
def test_seconds_covered_are_those_that_any_batch_covers(spans: list[tuple[int, int]]) -> None:
    assert covered(spans) == sum(any(a <= t < b for a, b in spans) for t in range(21))


def test_loads_are_by_step_and_lane_and_count_what_overlaps_once() -> None:
    found = loads(run(9.0, ("a", "x", 0, 2), ("a", "x", 1, 3), ("a", "y", 0, 1), ("b", "x", 3, 5)))
    assert found == {("a", "x"): 3, ("a", "y"): 1, ("b", "x"): 2}


def test_idle_time_goes_by_reason_and_step_the_largest_first() -> None:
    cpu, cuda = idle(STARVED)
    assert cpu == Idle("cpu:0", 100, {})
    assert (cuda.device, cuda.busy) == ("cuda:0", 60)
    assert list(cuda.by_reason.items()) == [
        (("starved", "parse"), 31),
        (("filling", "embed"), 5),
        (("done", ""), 4),
    ]


def test_the_bottleneck_is_the_step_with_most_work_for_each_lane_it_used() -> None:
    # a: 120 s on two lanes, 60 each; b: 70 s on one
    found = run(
        100.0, ("a", "x", 0, 50), ("a", "y", 0, 70), ("b", "z", 0, 40), ("c", "x", 50, 60), ("b", "z", 60, 90)
    )
    assert bottleneck(found) == Bottleneck("b", "z", 0.7)
    without = run(100.0, ("a", "x", 0, 50), ("a", "y", 0, 70), ("c", "x", 50, 60))
    assert bottleneck(without) == Bottleneck("a", "y", 0.6)


def test_where_nothing_ran_there_is_no_bottleneck_and_no_advice() -> None:
    assert bottleneck(Timeline(0.0, ())) is None
    assert bottleneck(Timeline(1.0, ())) is None
    assert advice(Timeline(0.0, ())) == ()


def test_one_more_lane_halves_a_step_that_has_one_to_itself_down_to_the_next_bottleneck() -> None:
    assert saving(STARVED, "parse") == 100 - max(60, 100 * 1 / 2)


def test_with_nothing_behind_it_the_whole_half_is_saved() -> None:
    assert saving(run(100.0, ("parse", "x", 0, 50), ("parse", "y", 50, 100)), "parse") == pytest.approx(
        50 - 50 * 2 / 3
    )


def test_steps_that_wait_for_each_other_save_no_more_than_the_step_gets_faster() -> None:
    # one after the other: 100 s become 75 s, not the 50 s of the formula for a step that works all the time
    assert saving(run(100.0, ("a", "x", 0, 50), ("b", "y", 50, 100)), "a") == 25


def test_a_step_that_shares_its_lane_can_move_away_no_more_than_itself() -> None:
    # x: a 10 s, b 90 s; a new lane for a takes 10 s off x; one for b halves all
    found = run(100.0, ("a", "x", 0, 10), ("b", "x", 10, 100))
    assert (saving(found, "a"), saving(found, "b")) == (10, 50)


def test_a_step_that_never_ran_saves_nothing() -> None:
    assert saving(STARVED, "pars") == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), pairs), min_size=1))
def test_nobody_promises_a_run_shorter_than_the_busiest_other_lane(
    drawn: list[tuple[str, str, tuple[int, int]]],
) -> None:
    found = run(20.0, *((step, lane, *time) for step, lane, time in drawn))
    mine = {lane for step, lane in loads(found) if step == "a"}
    left = 20 - saving(found, "a")
    assert 0 < left <= 20
    assert all(left >= lane.busy - 1e-9 for lane in idle(found) if lane.device not in mine)


def test_advice_names_the_largest_cause_and_what_a_lane_would_save() -> None:
    assert advice(STARVED) == (
        "cpu:0 busy 100 %",
        "cuda:0 idle 40 %: starved by parse (31 %); one more lane for parse would save about 40 %",
    )


def second(*waits: Stall, made: float = 100.0, devices: Sequence[Device] = ()) -> str:
    """The line of lane y, which worked for 50 s of 100 on b; a worked for `made` s on x."""
    spans = (("a", "x", 0.0, made), ("b", "y", 50.0, 100.0))
    lines = advice(run(100.0, *spans, waits=waits), devices)
    return next(line for line in lines if line.startswith("y"))


def test_a_saving_below_five_percent_is_not_promised() -> None:
    starved = Stall("y", 0, 50, "starved", "a")
    assert second(starved, made=9.9) == "y idle 50 %: starved by a (50 %)"
    assert second(starved, made=10.0).endswith("; one more lane for a would save about 5 %")


def test_a_lane_that_may_run_the_step_it_waits_for_needs_smaller_batches() -> None:
    found = run(10.0, ("a", "x", 0, 10), ("a", "y", 0, 4), waits=[Stall("y", 4, 10, "starved", "a")])
    assert (
        advice(found)[1]
        == "y idle 60 %: starved by a (60 %); smaller batches of a would keep more lanes busy"
    )


@pytest.mark.parametrize(
    ("stall", "said"),
    [
        (Stall("y", 0, 50, "starved"), "starved by the inputs (50 %)"),
        (
            Stall("y", 0, 40, "filling", "b"),
            "waiting for a full batch of b (40 %); a smaller batch of b would start earlier",
        ),
        (
            Stall("y", 0, 50, "window", "a"),
            "held back until a drains (50 %); raise the window or speed up a",
        ),
        (
            Stall("y", 0, 50, "link", "a"),
            "waiting for rows of a on their way (50 %); put a and b into one pool",
        ),
        (Stall("y", 0, 50, "done"), "nothing left to do (50 %)"),
    ],
)
def test_each_reason_has_its_own_advice(stall: Stall, said: str) -> None:
    assert second(stall) == f"y idle 50 %: {said}"


def test_a_link_that_no_step_follows_is_told_without_its_reader() -> None:
    found = run(100.0, ("a", "x", 0, 100), waits=[Stall("y", 0, 100, "link", "a")])
    assert advice(found)[1].endswith("put a and what reads it into one pool")


def test_the_reader_at_a_link_is_the_step_that_waited_longest() -> None:
    waits = [Stall("y", 0, 10, "link", "a"), Stall("y", 20, 50, "link", "a")]
    spans = (("a", "x", 0.0, 100.0), ("c", "y", 10.0, 20.0), ("b", "y", 50.0, 100.0))
    assert advice(run(100.0, *spans, waits=waits))[1].endswith("put a and b into one pool")


def test_lanes_of_one_pool_are_not_told_to_share_one() -> None:
    link = Stall("y", 0, 50, "link", "a")
    same = [Device("x", share="host"), Device("y", share="host")]
    assert second(link, devices=same) == "y idle 50 %: waiting for rows of a on their way (50 %)"
    apart = [Device("x", share="host"), Device("y", share="far")]
    assert second(link, devices=apart).endswith("put a and b into one pool")


def test_small_and_unknown_causes_are_left_out() -> None:
    assert second(Stall("y", 0, 4, "filling", "b")) == "y idle 50 %"
    assert second() == "y idle 50 %"


def test_devices_on_which_nothing_ran_are_told_in_the_order_of_the_machine() -> None:
    lines = advice(STARVED, [Device("cuda:1"), Device("cuda:0"), Device("cpu:0")])
    assert lines[0] == "cuda:1 idle 100 %: no step ran on it"
    assert [line.split()[0] for line in lines] == ["cuda:1", "cuda:0", "cpu:0"]
