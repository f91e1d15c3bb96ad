"""Plans for rows that are there, from what the machine and earlier runs have shown."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from pipeline import plan_report, planning
from pipeline.errors import PlanError
from pipeline.executor import run
from pipeline.graph import Graph, Loop, node
from pipeline.learned import Learned, stage_key
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.planning import experience, flow_of, measured, plan_flows, plan_for, remember
from pipeline.roofline import Flow
from pipeline.values import Rows
from tests.costed import Busy, chain, lanes
from tests.driving import essence
from tests.toys import Collatz, Fan, Numbers, Plus, Strip, Total, Whole, numbers


@pytest.fixture(autouse=True)
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What runs show is kept here, apart from other tests."""
    path = tmp_path / "learned.json"
    monkeypatch.setattr(planning, "_path", lambda: path)
    return path


def graph(policies: tuple[str, ...] = ()) -> Graph:
    return Graph({"a": Numbers}, (node("plus", Plus(), a="a", batch=2),), {"out": "plus"}, policies)


@dataclasses.dataclass(frozen=True, slots=True)
class Words(Numbers):
    """Numbers with a cost hint."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.x


def test_the_flow_of_rows_is_their_number_mean_length_and_bytes() -> None:
    rows = Words((("a",), ("b",)), (2, 6))
    assert flow_of(rows) == Flow(2, 4.0, rows.nbytes / 2)
    assert flow_of(numbers()) == Flow(0, 0.0, 0.0)


def test_a_row_of_the_corpus_is_as_long_as_its_chunks() -> None:
    assert flow_of(Whole(((),), (1,)), 500.0).length == 500
    assert flow_of(numbers(a=1), 500.0).length == 0


def test_this_machine_is_measured_once() -> None:
    assert measured() == measured()


def test_a_machine_that_is_given_keeps_its_lanes() -> None:
    """They exist already, as those of a cluster do."""
    machine = Machine((Device("cpu:0"), Device("cpu:1")))
    assert plan_for(graph(), {"a": numbers(a=1)}, machine).plan.machine.names == ("cpu:0", "cpu:1")


@pytest.mark.parametrize(
    ("asked", "said", "followed"),
    [
        ((), (), planning.DEFAULT_POLICIES),
        ((), ("steal",), ("steal",)),
        (("guided",), ("steal",), ("guided",)),
    ],
)
def test_policies_are_those_asked_for_else_the_graphs_else_the_usual(
    asked: tuple[str, ...], said: tuple[str, ...], followed: tuple[str, ...]
) -> None:
    found = plan_flows(graph(said), {"a": Flow(4)}, Machine(lanes(1)), Learned(), asked)
    assert found.plan.policies == followed


def test_a_policy_that_nobody_knows_is_refused_before_the_run() -> None:
    with pytest.raises(PlanError, match="did you mean 'steal'"):
        plan_for(graph(), {"a": numbers(a=1)}, policies=("stael",))


def test_a_plan_for_other_rows_is_for_other_times() -> None:
    few, many = (
        plan_flows(chain(Busy(), batch=1), {"rows": Flow(n)}, Machine(lanes(1)), Learned()) for n in (4, 40)
    )
    assert many.seconds == pytest.approx(10 * few.seconds)


def finish(asked: Graph, inputs: dict[str, Rows]) -> None:
    under_way = run(asked, inputs, plan=plan_for(asked, inputs).plan)
    list(under_way)
    remember(under_way)


def test_a_run_is_remembered_and_the_next_plan_starts_from_it(forgetful: Path) -> None:
    inputs: dict[str, Rows] = {"a": numbers(**{f"n{i}": i for i in range(20)})}
    assert plan_for(graph(), inputs).estimates.guess("plus", measured().devices[0], 2).source == "sampled"
    finish(graph(), inputs)
    assert forgetful.is_file()
    known = plan_for(graph(), inputs)
    lane = known.plan.machine.device(known.plan.placements["plus"].devices[0])
    assert known.estimates.guess("plus", lane, 2).source == "measured"
    assert experience().yields[stage_key(Plus())].made == 20


def test_a_stage_of_the_users_own_is_sampled_before_its_first_run_which_gives_the_same() -> None:
    """The sample meets the row that fails too; who reports it is the run."""
    nodes = (node("plus", Plus(bad=3), a="a"), node("fan", Fan(), a="plus"))
    bad = Graph({"a": Numbers}, nodes, {"out": "fan"})
    inputs: dict[str, Rows] = {"a": numbers(**{f"n{i}": i for i in range(12)})}
    planned = plan_for(bad, inputs)
    assert [line.source for line in plan_report.lines(planned)] == ["sampled", "sampled"]
    assert not [t for t in plan_report.summary(planned) if "assumed" in t or "nothing is known" in t]
    under_way = run(bad, inputs, plan=planned.plan)
    assert essence(Outcome(tuple(under_way), tuple(under_way.failures))) == essence(run_local(bad, inputs))


def test_a_plan_says_why_a_stage_was_not_sampled() -> None:
    nodes = (node("total", Total(0), a="a"), node("plus", Plus(), a="total"))
    late = Graph({"a": Numbers}, nodes, {"out": "plus"})
    planned = plan_for(late, {"a": numbers(a=1, b=2)})
    told = "plus: assumed: not sampled, because total gathers its rows; a run will measure it"
    assert told in list(plan_report.summary(planned))


def test_stages_are_tried_only_where_rows_are_at_hand() -> None:
    planned = plan_flows(graph(), {"a": Flow(4)}, Machine(lanes(1)), Learned())
    assert "nothing is known of plus: a run will measure them" in list(plan_report.summary(planned))


def test_the_rounds_of_a_loop_are_remembered() -> None:
    """8 halves to 1 in three rounds, 2 in one."""
    nodes = (node("go", Collatz(), a="n"), node("bare", Strip(), a="go"))
    body = Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"})
    loop = Graph(
        {"a": Numbers}, (node("steps", Loop(body, {"n": "next"}, "flags", 9), n="a"),), {"out": "steps.next"}
    )
    finish(loop, {"a": numbers(x=8, y=2)})
    assert experience().rounds == {"steps": 2.0}


def test_elsewhere_only_what_holds_anywhere_is_known(forgetful: Path) -> None:
    finish(graph(), {"a": numbers(a=1, b=2)})
    here, there = experience(), experience(elsewhere=True)
    assert here.points
    assert (there.points, there.openings, there.yields) == ({}, {}, here.yields)


def test_a_disk_that_does_not_take_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(planning, "_path", lambda: tmp_path / "file" / "learned.json")
    monkeypatch.setattr(logging.getLogger("ridgeway"), "propagate", True)
    finish(graph(), {"a": numbers(a=1)})
    assert "what this run has shown is not kept" in caplog.text
