"""What a finished run leaves: its timeline beside the predicted one, advice, and what it has shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import perfetto, planning
from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.learned import read
from pipeline.look_back import FILE, look_back
from pipeline.planning import plan_for
from pipeline.timeline import Counts
from pipeline.values import Completions, Rows
from tests.toys import Numbers, Plus, numbers

GRAPH = Graph(
    {"a": Numbers},
    (node("plus", Plus(), a="a", batch=2), node("more", Plus(2), a="plus", batch=2)),
    {"out": "more"},
)
INPUTS: dict[str, Rows] = {"a": numbers(**{f"n{i}": i for i in range(12)})}


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "_path", lambda: tmp_path / "learned.json")
    return tmp_path / "learned.json"


def test_a_run_is_kept_compared_and_remembered(tmp_path: Path, memory: Path) -> None:
    planned = plan_for(GRAPH, INPUTS)
    under_way = run(GRAPH, INPUTS, plan=planned.plan)
    list(under_way)
    found = look_back(under_way, planned, tmp_path)
    timeline = perfetto.read(tmp_path / FILE)
    assert timeline == under_way.timeline
    assert sum(s.rows for s in timeline.spans) == 24
    assert [s["step"] for s in found["predicted"]["steps"]] == ["plus", "more"]
    assert found["predicted"]["measured_seconds"] == timeline.seconds
    assert len(found["advice"]) == len(planned.plan.machine.devices)
    assert "memory" in found["memory"]
    assert sum(map(len, read(memory).points.values())) == len(timeline.spans)


def test_both_timelines_are_in_the_file(tmp_path: Path) -> None:
    planned = plan_for(GRAPH, INPUTS)
    under_way = run(GRAPH, INPUTS, plan=planned.plan)
    list(under_way)
    look_back(under_way, planned, tmp_path)
    assert '"predicted"' in (tmp_path / FILE).read_text()


def test_a_run_without_a_prediction_is_not_compared(tmp_path: Path) -> None:
    under_way = run(GRAPH, INPUTS, plan=plan_for(GRAPH, INPUTS).plan)
    list(under_way)
    assert "predicted" not in look_back(under_way, None, tmp_path)


def test_a_run_that_has_not_ended_leaves_nothing(tmp_path: Path) -> None:
    under_way = run(GRAPH, INPUTS, plan=plan_for(GRAPH, INPUTS).plan)
    assert look_back(under_way, None, tmp_path) == {}
    assert not (tmp_path / FILE).exists()
    list(under_way)


def test_bytes_handed_over_and_memory_are_told(tmp_path: Path) -> None:
    under_way = run(GRAPH, INPUTS, plan=plan_for(GRAPH, INPUTS).plan)
    list(under_way)
    found = look_back(under_way, None, tmp_path)
    assert all(set(c) == {"way", "shared_bytes", "copied_bytes"} for c in found["handed_over"].values())
    assert found["memory_bytes"]["pss"] > 0


def test_what_int8_saved_and_lost_is_told_of_the_steps_that_it_did(tmp_path: Path) -> None:
    under_way = run(GRAPH, INPUTS, plan=plan_for(GRAPH, INPUTS).plan)
    list(under_way)
    under_way.handed["plus"].add(Counts(saved=300, error=0.0039))
    found = look_back(under_way, None, tmp_path)["handed_over"]
    assert (found["plus"]["int8_saved_bytes"], found["plus"]["int8_largest_error"]) == (300, 0.0039)
    assert "int8_saved_bytes" not in found["more"]


@dataclass(frozen=True, slots=True)
class Speak:
    """As many words as the number says, half of them guessed; none where it is 0."""

    def run(self, state: Any, a: Numbers) -> Completions:
        stops = tuple("length" if x else "skipped" for x in a.x)
        half = tuple(x // 2 for x in a.x)
        return Completions(a.ids, ("",) * len(a), (7,) * len(a), a.x, stops, (2,) * len(a), half, half)


def test_tokens_are_added_up_by_step(tmp_path: Path) -> None:
    nodes = (node("plus", Plus(), a="a"), *(node(s, Speak(), a="a", batch=5) for s in ("one", "two")))
    graph = Graph({"a": Numbers}, nodes, {"plus": "plus", "one": "one", "two": "two"})
    under_way = run(graph, INPUTS, plan=plan_for(graph, INPUTS).plan)
    list(under_way)
    counted = look_back(under_way, None, tmp_path)["counted"]
    assert counted.keys() == {"one", "two"}
    assert counted["one"].pop("seconds") > 0
    assert counted["one"] == {
        "prompt_tokens": 84, "reused": 24, "new_tokens": 66, "drafted": 30, "accepted": 30,
        "stop_length": 11, "stop_skipped": 1,
    }  # fmt: skip
    assert counted["two"].items() >= counted["one"].items()
