"""What a device more would bring, and whether a run is certain to be done in time."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline import machine_file
from pipeline.errors import PlanError
from pipeline.graph import Graph
from pipeline.learned import Learned, Point, lane_key
from pipeline.machine import Link, Machine
from pipeline.planner import Planned, Planner
from pipeline.program import flatten
from pipeline.roofline import Flow
from pipeline.what_if import admission, check_deadline, told, with_one_more
from tests.costed import Busy, One, Plain, chain, lanes, linked, profile

GPU = linked(*lanes(1), *lanes(1, 4.0, kind="cuda"), bandwidth=1e9)


def planned(graph: Graph, machine: Machine, rows: float = 40, **options: Any) -> Planned:
    return Planner(flatten(graph), machine, {"rows": Flow(rows)}, divide=False, **options).best()


def test_one_more_lane_halves_what_one_lane_does() -> None:
    found = planned(chain(Busy(), batch=4), Machine(lanes(1)))
    assert found.seconds == pytest.approx(40)
    assert with_one_more(found, {}) == {"one more like cpu:0": pytest.approx(20)}


def test_a_card_brings_what_its_profile_says() -> None:
    found = planned(chain(Busy(), batch=4), Machine(lanes(1)))
    told = with_one_more(found, {"fast": profile(10.0), "slow": profile(0.001)})
    assert told["a fast"] < 0.2 * found.seconds
    assert told["a slow"] <= found.seconds


def test_what_nothing_can_use_brings_nothing() -> None:
    found = planned(chain(Plain(), batch=4), Machine(lanes(1)))
    assert with_one_more(found, {"fast": profile(10.0)})["a fast"] == found.seconds


def test_of_devices_of_one_kind_each_sort_is_tried() -> None:
    big, small = lanes(2, 8.0, kind="cuda")[0], lanes(2, 2.0, kind="cuda")[1]
    found = planned(chain(Busy(), batch=4), linked(*lanes(1), big, small, bandwidth=1e9))
    more = with_one_more(found, {})
    assert list(more) == ["one more like cpu:0", "one more like cuda:0", "one more like cuda:1"]
    assert more["one more like cuda:0"] < more["one more like cuda:1"]


def test_one_more_device_is_linked_as_the_first() -> None:
    """10 rows of a byte take 10 s on the link; a second device behind such a link does not help."""
    at = Machine(lanes(1, 1e-3) + lanes(1, 1e3, kind="cuda"), {("host", "cuda:0"): Link(1.0, 0.0)})
    program = flatten(chain(Busy(nbytes=1.0), Plain(1e-3), batch=1))
    found = Planner(program, at, {"rows": Flow(10, 0.0, 1.0)}, divide=False).best()
    assert with_one_more(found, {})["one more like cuda:0"] > 0.4 * found.seconds


@pytest.mark.parametrize("name", machine_file.shipped())
def test_every_shipped_machine_may_have_one_more_of_each_of_its_devices(name: str) -> None:
    machine = machine_file.load(name)
    found = planned(chain(Busy(1e12), batch=4), machine, 8)
    kinds = {d.kind for d in machine.devices}
    assert kinds <= {
        text.removeprefix("one more like ").partition(":")[0] for text in with_one_more(found, {})
    }


def test_steps_one_after_another_are_the_worst_case() -> None:
    found = planned(chain(Busy(1.0), Busy(2.0), batch=4), Machine(lanes(2), handoff=0.5))
    seen = admission(found, 1e6)
    batches = 10 / 2
    assert seen.ok
    assert seen.seconds >= found.seconds
    assert admission(found, 1e-3).seconds == pytest.approx(batches * (4 + 8 + 2 * 0.5))
    assert seen.binding == "s1"


def test_the_fewest_lanes_that_are_enough_are_granted() -> None:
    found = planned(chain(Busy(), batch=4), Machine(lanes(4)))
    assert admission(found, 100).lanes == {"cpu": 1}
    assert admission(found, 25).lanes == {"cpu": 2}
    assert admission(found, 12.1).lanes == {"cpu": 4}


def test_a_step_that_can_use_one_lane_takes_as_long_on_many() -> None:
    found = planned(chain(One(1.0)), Machine(lanes(4)))
    assert admission(found, 39).ok is False
    assert admission(found, 39).seconds == pytest.approx(40)


def test_what_is_missed_names_what_would_help() -> None:
    found = planned(chain(Busy(), batch=4), Machine(lanes(2)))
    assert admission(found, 20).ok
    late = admission(found, 15)
    assert not late.ok
    assert "segment 's0' takes 20 s" in late.why
    assert "a deadline of 20 s" in late.why
    assert "more of 'cpu'" in late.why


def test_the_slowest_batch_that_was_measured_counts() -> None:
    graph, machine = chain(Busy(), batch=4), Machine(lanes(1))
    key = lane_key(graph.nodes[0].stage, machine.devices[0])
    points = (*[Point(4, 0.0, 4.0)] * 9, Point(4, 0.0, 12.0))
    found = planned(graph, machine, learned=Learned(points={key: points}))
    expected = found.estimates.seconds("s0", machine.devices[0], 4)
    assert 4 <= expected < 12
    assert admission(found, 1e6).seconds == pytest.approx(10 * 12)


@pytest.mark.parametrize(
    "graph", [chain(Busy(2.0), Plain(0.5), batch=4), chain(Busy(0.1), One(3.0), batch=2)]
)
@pytest.mark.parametrize("machine", [Machine(lanes(3)), GPU], ids=["cpus", "gpu"])
def test_no_prediction_is_later_than_the_worst_case(graph: Graph, machine: Machine) -> None:
    found = planned(graph, machine)
    assert found.seconds <= admission(found, 1e-6).seconds * (1 + 1e-9)


def test_a_run_that_may_be_late_is_refused_with_the_step_that_takes_longest() -> None:
    found = planned(chain(Busy(), Busy(3.0), batch=4), Machine(lanes(1)))
    check_deadline(found, 200)
    with pytest.raises(
        PlanError, match=r"the deadline may be missed: the run needs 160 s .* segment 's1' takes 120"
    ):
        check_deadline(found, 100)


@pytest.mark.parametrize("deadline", [0.0, -1.0, math.inf, math.nan])
def test_a_deadline_that_is_none_is_an_error(deadline: float) -> None:
    with pytest.raises(PlanError, match="a deadline is above 0 s and finite"):
        admission(planned(chain(Busy()), Machine(lanes(1))), deadline)


def test_an_admission_is_told_in_json() -> None:
    found = admission(planned(chain(Busy(), batch=4), Machine(lanes(1))), 50)
    assert told(found, 50) == {
        "deadline": 50, "ok": True, "seconds": 40.0, "binding": "s0", "why": found.why, "lanes": {"cpu": 1},
    }  # fmt: skip
