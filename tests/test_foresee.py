"""What looking ahead assumes of rows that are not given, and how simulations are told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import learned, perfetto
from pipeline.errors import PlanError, RidgewayError
from pipeline.foresee import at_hand, notes, planned, simulations, tell_plan, tell_simulations, workload
from pipeline.graph import Graph, node
from pipeline.knot import crawled
from pipeline.learned import Learned, stage_key
from pipeline.machine import Device, Machine
from pipeline.machine_file import dump
from pipeline.roofline import Flow
from pipeline.values import Documents, Queries
from pipeline.yields import Yield
from tests.costed import Busy, One, Plain, chain, lanes, linked, profile
from tests.fakes import graph as fake_graph
from tests.fakes import write
from tests.toys import Join, Numbers, Whole

GRAPH = chain(Plain(0.5, 1.0), Busy(2.0, 1.0), batch=4)


@dataclass(frozen=True, slots=True)
class Count:
    """A user's stage, without a formula."""

    def run(self, state: Any, documents: Documents) -> Numbers:
        return Numbers(documents.ids, documents.sizes)


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A file with two cores and a device that is four times as fast as each."""
    path = tmp_path / "machine.yaml"
    dump(linked(*lanes(2), *lanes(1, 4.0, kind="cuda"), bandwidth=1e3), path)
    return str(path)


def test_inputs_that_are_not_given_have_so_many_rows_and_the_corpus_one() -> None:
    nodes = (node("both", Join(), a="some", b="all"),)
    found = workload(Graph({"some": Numbers, "all": Whole}, nodes, {"out": "both"}), 70)
    assert (found["some"].rows, found["all"].rows) == (70, 1)
    assert found["some"].nbytes > 0


def test_inputs_that_are_given_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "documents", one="a", two="b")
    (tmp_path / "questions.txt").write_text("first\nsecond\nthird\n")
    graph = fake_graph(tmp_path)
    found = workload(graph, 70, crawled([str(tmp_path / "documents")]), tmp_path / "questions.txt")
    assert {graph.inputs[name]: flow.rows for name, flow in found.items()} == {Documents: 2, Queries: 3}


def test_a_machine_may_be_a_file(machine: str) -> None:
    found = planned(GRAPH, {"rows": Flow(40)}, machine, ["steal+guided", "modes"])
    assert found.plan.placements["s1"].devices == ("cuda:0",)
    assert found.plan.policies == ("steal", "guided", "modes")


def test_a_machine_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(PlanError, match=r"no machine 'h20'.* one of: .*h200"):
        planned(GRAPH, {"rows": Flow(40)}, "h20")


def test_stages_of_which_nothing_is_known_are_tried_on_the_rows_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.planning._path", lambda: tmp_path / "learned.json")
    own = Graph({"documents": Documents}, (node("count", Count(), documents="documents"),), {"out": "count"})
    (tmp_path / "a.txt").write_text("text")
    found = crawled([str(tmp_path / "a.txt")])
    inputs, work = at_hand(own, found), workload(own, 1, found)
    assert set(inputs) == {"documents"}
    lane = Device("cpu:0")
    for given, machine, source in (
        (inputs, "", "sampled"),
        ({}, "", "assumed"),
        (inputs, "big-small", "assumed"),
    ):
        plan = planned(own, work, machine, inputs=given)
        assert plan.estimates.guess("count", lane, 1).source == source


def test_a_row_length_that_is_not_given_is_that_of_earlier_runs_in_a_simulation_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Learned(yields={stage_key(Count()): Yield(2, 2, 0, 0, 600)})
    learned.write(known, tmp_path / "learned.json")
    monkeypatch.setattr("pipeline.planning._path", lambda: tmp_path / "learned.json")
    own = Graph({"documents": Documents}, (node("count", Count(), documents="documents"),), {"out": "count"})
    (found,) = simulations(own, workload(own, 3), "", [], [])
    assert [s.length for s in found.found.timeline.spans] == [900]


def test_notes_name_lanes_batch_and_seconds(machine: str) -> None:
    assert notes(GRAPH, {"rows": Flow(40)}, machine)["s1"] == "cuda:0 · 4 rows · 20 s · by reference"


def test_a_plan_is_told_with_its_reasons(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell_plan(planned(GRAPH, {"rows": Flow(40)}, machine), False, 1000)
    said = capsys.readouterr().out
    assert "predicted: " in said
    assert "with one more like cpu:0: " in said
    assert "deadline: kept: the run needs " in said
    assert "s1 runs on cuda:0 at batch 4" in said
    assert max(len(line) for line in said.splitlines()[:4]) <= 80


def test_a_plan_in_json_says_whether_it_is_in_time(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(GRAPH, {"rows": Flow(40)}, machine)
    tell_plan(found, True, 1)
    told = json.loads(capsys.readouterr().out)["admission"]
    assert (told["ok"], told["deadline"], told["binding"]) == (False, 1, "s1")
    tell_plan(found, True)
    assert json.loads(capsys.readouterr().out)["admission"] is None


def test_a_machine_without_accelerators_is_tried_with_cards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(linked(*lanes(1)), tmp_path / "cpu.yaml")
    tell_plan(planned(GRAPH, {"rows": Flow(4)}, str(tmp_path / "cpu.yaml")), False)
    said = capsys.readouterr().out
    assert "with a rtx-4090: " in said
    assert "with a l40s: " in said


def test_policies_are_simulated_on_one_placement(machine: str) -> None:
    found = simulations(GRAPH, {"rows": Flow(40)}, machine, ["none", "steal", "steal+guided"], [])
    assert [s.policies for s in found] == ["none", "steal", "steal+guided"]
    assert sum(s.rows for s in found[0].found.timeline.spans) == 80
    assert all(s.found.timeline.seconds > 0 for s in found)


def test_without_a_policy_it_is_the_plans_own(machine: str) -> None:
    (found,) = simulations(GRAPH, {"rows": Flow(40)}, machine, [], [])
    assert found.found.timeline.seconds == planned(GRAPH, {"rows": Flow(40)}, machine).seconds


def test_a_lane_that_is_lost_ends_early_and_the_rows_are_done_elsewhere(tmp_path: Path) -> None:
    dump(linked(*lanes(1), *lanes(2, 4.0, kind="cuda"), bandwidth=1e3), tmp_path / "two.yaml")
    (found,) = simulations(GRAPH, {"rows": Flow(40)}, str(tmp_path / "two.yaml"), [], ["cuda:0@5"])
    spans = found.found.timeline.spans
    assert 0 < max(s.end for s in spans if s.device == "cuda:0") <= 5
    assert sum(s.rows for s in spans) == 80
    assert found.missing == {}


def test_rows_that_no_lane_is_left_for_are_told(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulations(GRAPH, {"rows": Flow(40)}, machine, ["none"], ["cuda:0@0"])
    assert found[0].missing == {"s1": 40}
    tell_simulations(found, None, False)
    assert "none: not done, as no lane is left for them: s1 40 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        ("cpu:7@3", r"--lose 'cpu:7@3': no device 'cpu:7'; did you mean"),
        ("cuda:0@soon", r"--lose 'cuda:0@soon': 'soon' is no number of seconds, as in cuda:0@30"),
        ("cuda:0@-3", r"is no number of seconds"),
        ("cuda:0@nan", r"is no number of seconds"),
        ("cuda:0@", r"is no number of seconds"),
    ],
)
def test_what_is_no_lane_or_no_second_is_an_error(machine: str, lose: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        simulations(GRAPH, {"rows": Flow(4)}, machine, [], [lose])


def test_modes_is_simulated_on_lanes_that_share_cores(tmp_path: Path) -> None:
    dump(Machine((Device("cpu:0", 2, profile(2.0, overhead=1.0)),)), tmp_path / "cpu.yaml")
    graph = chain(Busy(1.0, name="many"), One(0.0), Busy(20.0, name="one"))
    plain, modes = simulations(graph, {"rows": Flow(20)}, str(tmp_path / "cpu.yaml"), ["none", "modes"], [])
    assert (plain.machine.crowds, bool(modes.machine.crowds)) == ((), True)
    assert modes.found.timeline.seconds < 0.9 * plain.found.timeline.seconds


def test_simulations_are_told_side_by_side(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell_simulations(simulations(GRAPH, {"rows": Flow(40)}, machine, ["none", "steal"], []), None, False)
    said = capsys.readouterr().out
    assert "none" in said
    assert "steal" in said
    assert "cuda 9" in said or "cuda 100 %" in said, "s1 keeps the device busy"


def test_a_single_simulation_gives_advice(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell_simulations(simulations(GRAPH, {"rows": Flow(40)}, machine, [], []), None, False)
    assert "cpu:0 idle " in capsys.readouterr().out


def test_simulations_in_json(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulations(GRAPH, {"rows": Flow(40)}, machine, ["none"], [])
    tell_simulations(found, None, True)
    (told,) = json.loads(capsys.readouterr().out)
    assert told["seconds"] == found[0].found.timeline.seconds
    assert {d["name"] for d in told["devices"]} == set(found[0].machine.names)
    assert all(0 <= d["busy_seconds"] <= told["seconds"] for d in told["devices"])


def test_the_timeline_of_one_simulation_can_be_kept(machine: str, tmp_path: Path) -> None:
    found = simulations(GRAPH, {"rows": Flow(40)}, machine, [], [])
    tell_simulations(found, tmp_path / "trace.json", True)
    assert perfetto.read(tmp_path / "trace.json").spans == found[0].found.timeline.spans


def test_the_timelines_of_two_cannot(machine: str, tmp_path: Path) -> None:
    found = simulations(GRAPH, {"rows": Flow(4)}, machine, ["none", "steal"], [])
    with pytest.raises(RidgewayError, match="--trace keeps one timeline"):
        tell_simulations(found, tmp_path / "trace.json", True)
    assert not (tmp_path / "trace.json").exists()
