"""A plan as people and programs read it: what is said adds up, fits 80 columns, and loses nothing in JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from pipeline.graph import Graph, node
from pipeline.handover import settled
from pipeline.machine import Link, Machine
from pipeline.plan import Way
from pipeline.plan_report import EDGES, HEAD, NUMBERS, Line, as_dict, edges, lines, notes, sentences, summary
from pipeline.planner import Planned, Planner
from pipeline.program import flatten
from pipeline.reasons import reasons
from pipeline.report import print_json, table
from pipeline.roofline import Flow
from tests.costed import Busy, Plain, chain, lanes, linked
from tests.toys import Numbers, Plus

GPU = Machine((*lanes(2), *lanes(1, 8.0, kind="cuda")), {("host", "cuda:0"): Link(100.0, 0.0)}, "made up")


def planned(graph: Graph, machine: Machine = GPU, rows: float = 40) -> Planned:
    return Planner(
        flatten(graph), machine, {n: Flow(rows, 0.0, 1.0) for n in graph.inputs}, divide=False
    ).best()


@pytest.fixture(scope="module")
def found() -> Planned:
    return planned(chain(Plain(0.5, 1.0), Busy(2.0, 3.0), Plain(0.1), batch=4))


def test_a_line_is_a_step_with_its_lanes_rows_and_seconds(found: Planned) -> None:
    first, second, _ = lines(found)
    assert (second.step, second.rows, second.batch, second.devices) == ("s1", 40, 4, ("cuda:0",))
    assert second.seconds == pytest.approx(40 * 2 / 8)
    assert (second.dtype, second.bound, second.source) == ("float32", "compute", "formula")
    assert first.seconds == pytest.approx(40 * 0.5)


def test_the_seconds_of_steps_are_those_of_the_simulation(found: Planned) -> None:
    spans = found.simulated.timeline.spans
    for line in lines(found):
        took = sum(s.seconds for s in spans if s.step == line.step)
        assert line.seconds == pytest.approx(took)


def test_an_edge_says_how_its_bytes_travel(found: Planned) -> None:
    told = {(e.producer, e.step): e for e in edges(found)}
    assert set(told) == {("rows", "s0"), ("s0", "s1"), ("s1", "s2")}
    assert (told["rows", "s0"].nbytes, told["rows", "s0"].transport) == (40, "by reference")
    assert (told["s1", "s2"].nbytes, told["s1", "s2"].transport) == (120, "copied from cuda:0 to host: 1.2 s")


def apart(found: Planned) -> Planned:
    return replace(found, plan=settled(found.estimates.program, found.plan, apart=True))


def test_the_way_of_each_edge_is_that_of_the_plan(found: Planned) -> None:
    told = {(e.producer, e.step): e.way for e in edges(apart(found))}
    assert told == {("rows", "s0"): "bytes", ("s0", "s1"): "arena", ("s1", "s2"): "arena"}
    assert {e.way for e in edges(found)} == {"reference"}
    assert next(e.transport for e in edges(apart(found))) == "by bytes"
    assert notes(apart(found))["s1"].endswith(" · by arena")


def test_the_summary_says_how_values_are_handed_on_and_why_not_cheaper(found: Planned) -> None:
    assert "values are handed on: by reference" in list(summary(found))
    ways = {**apart(found).plan.ways, "s1": Way("bytes", "it is so")}
    told = list(summary(replace(found, plan=replace(found.plan, ways=ways))))
    assert "values are handed on: s0, s2 by arena; s1 by bytes" in told
    assert "values of s1 go by bytes: it is so" in told


def test_the_summary_names_machine_bottleneck_and_policies(found: Planned) -> None:
    told = list(summary(found))
    assert told[0].startswith("predicted: ")
    assert told[0].endswith(" s on made up")
    assert told[1].startswith("bottleneck: s")


def test_what_is_assumed_is_said() -> None:
    graph = Graph({"a": Numbers}, (node("odd", Plus(), a="a"),), {"out": "odd"})
    unknown = planned(graph)
    assert "nothing is known of odd: a run will measure them" in list(summary(unknown))
    assert lines(unknown)[0].source == "assumed"


def test_energy_and_money_are_told_where_they_are_known() -> None:
    from pipeline import machine_file

    told = list(summary(planned(chain(Busy(1e12), batch=4), machine_file.load("cpu-gpu"))))
    assert any(line.startswith("energy: ") and line.endswith(" kWh") for line in told)
    assert any(line.startswith("cost: ") and line.endswith(" USD") for line in told)


def wide(count: int = 16) -> Line:
    names = tuple(f"cpu:{i}" for i in range(count))
    return Line(
        "references", 1234567, names, 1024, "bfloat16", 12345.678, "overhead", 1234.5, 5.5e11, "measured"
    )


def test_a_table_of_80_columns_breaks_no_cell() -> None:
    """The longest that a cell gets in practice, ten letters of a step's name among it."""
    out = io.StringIO()
    table(Console(file=out, width=80), HEAD, [wide().cells(), wide(2).cells()], numbers=NUMBERS)
    said = out.getvalue().splitlines()
    assert max(map(len, said)) <= 80
    assert len([line for line in said if line.strip()]) == 4, "a head, a rule, and a line for each step"
    for cell in wide().cells():
        assert cell in said[2]


@pytest.mark.parametrize(
    ("nbytes", "told"), [(0, ""), (5, "5B"), (2**10, "1.0KiB"), (1.5 * 2**30, "1.5GiB"), (2**50, "1024TiB")]
)
def test_bytes_are_short(nbytes: float, told: str) -> None:
    line = Line("s", 1, ("cpu:0",), 1, "", 1.0, "", 0.0, nbytes, "formula")
    assert line.cells()[HEAD.index("memory")] == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.01234, "0.0123"), (1.5, "1.5"), (123.4, "123"), (98765.4, "98765"), (2e7, "2e+07")],
)
def test_seconds_have_three_digits(seconds: float, told: str) -> None:
    line = Line("s", 1, ("cpu:0",), 1, "", seconds, "", 0.0, 0.0, "formula")
    assert line.cells()[HEAD.index("seconds")] == told


def test_cells_are_as_many_as_columns(found: Planned) -> None:
    assert all(len(line.cells()) == len(HEAD) for line in lines(found))
    assert all(len(edge.cells()) == len(EDGES) for edge in edges(found))


def test_a_picture_has_a_note_for_each_step(found: Planned) -> None:
    assert notes(found)["s1"] == "cuda:0 · 4 rows · 10 s · by reference"
    assert set(notes(found)) == {"s0", "s1", "s2"}


def test_every_decision_is_a_sentence_with_what_was_rejected_below(found: Planned) -> None:
    told = list(sentences(found))
    assert [line for line in told if not line.startswith("  not ")] == [d.why for d in reasons(found)]
    assert len([line for line in told if line.startswith("  not ")]) == sum(
        len(d.rejected) for d in reasons(found)
    )


def test_json_has_all_that_the_tables_have(found: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(as_dict(found, {"a card": 1.0}))
    told = json.loads(capsys.readouterr().out)
    assert told["seconds"] == found.seconds
    assert told["bottleneck"]["step"] in {"s0", "s1"}
    assert [s["devices"] for s in told["steps"]] == [list(line.devices) for line in lines(found)]
    assert set(told["steps"][0]) >= set(Line.__dataclass_fields__)
    assert [e["nbytes"] for e in told["edges"]] == [e.nbytes for e in edges(found)]
    assert [e["way"] for e in told["edges"]] == ["reference"] * 3
    assert [(s["way"], s["why_this_way"]) for s in told["steps"]] == [("reference", "")] * 3
    assert told["apart"] is False
    assert [d["why"] for d in told["decisions"]] == [d.why for d in reasons(found)]
    assert told["with_one_more"] == {"a card": 1.0}
    assert {d["name"]: d["pool"] for d in told["devices"]} == {
        "cpu:0": "host",
        "cpu:1": "host",
        "cuda:0": "cuda:0",
    }


def test_where_nothing_runs_nothing_is_the_bottleneck() -> None:
    empty = planned(chain(Busy()), linked(*lanes(1)), 0)
    assert as_dict(empty, {})["bottleneck"] is None
    assert lines(empty)[0].rows == 0
