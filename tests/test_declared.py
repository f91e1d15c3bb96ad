"""A run on lanes that the user declared: those of a file, if this computer can have them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.cluster import local_client
from pipeline.declared import check, here, lanes
from pipeline.errors import PlanError
from pipeline.executor import run
from pipeline.graph import Graph, Loop, node
from pipeline.job import Wishes, run_job
from pipeline.local import run_local
from pipeline.machine import Device, Machine
from pipeline.machine_file import dump
from pipeline.plan import Plan, place
from pipeline.policy import Lane
from pipeline.program import flatten
from pipeline.questions import Question, Questions
from pipeline.records import read_lines
from pipeline.run_folder import Task
from tests import fakes
from tests.toys import Collatz, Numbers, Strip, numbers

OWN = sorted(os.sched_getaffinity(0))[:2]
two_cores = pytest.mark.skipif(len(OWN) < 2, reason="needs two cores")


def wide_and_narrow() -> Machine:
    """A lane on two cores of this computer, and one on each of them."""
    narrow = (Device(f"cpu:{i + 1}", 1, cores=(core,)) for i, core in enumerate(OWN))
    return Machine((Device("cpu:0", 2, cores=tuple(OWN)), *narrow), name="both")


# what this computer can be

FOUND = Machine((Device("cpu:0", 4, cores=(0, 1, 2, 5)), Device("cuda:0")))


def cpu(number: int, threads: int, *cores: int) -> Device:
    return Device(f"cpu:{number}", threads, cores=cores)


@pytest.mark.parametrize(
    "devices",
    [
        (cpu(0, 4),),
        (cpu(0, 2, 0, 5), cpu(1, 1, 0), cpu(2, 1, 5)),
        (cpu(0, 2, 1, 2), cpu(1, 2)),
        (cpu(0, 1), Device("cuda:0")),
    ],
    ids=["all cores", "shared cores", "some named", "with a device"],
)
def test_what_asks_for_no_more_than_there_is_may_run(devices: tuple[Device, ...]) -> None:
    check(Machine(devices), FOUND)


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ((cpu(0, 5),), "only 4 of 5 cores"),
        ((cpu(0, 4), cpu(1, 1, 2)), "only 4 of 5 cores"),
        ((cpu(0, 2, 2, 3),), r"no core 3 \(only 0, 1, 2, 5\)"),
        ((cpu(0, 1), Device("cuda:0"), Device("cuda:1")), "no cuda:1"),
        ((cpu(0, 9), Device("pim:0")), "no pim:0 and only 4 of 9 cores"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(devices: tuple[Device, ...], told: str) -> None:
    with pytest.raises(
        PlanError, match=f"this computer cannot be 'big': it has {told}; declare what is here"
    ):
        check(Machine(devices, name="big"), FOUND)


def test_a_shipped_machine_that_is_not_this_one_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be 'pim': it has no cuda:0, pim:0, pim:1"):
        here("pim")


def test_nothing_declared_leaves_the_lanes_to_the_planner() -> None:
    assert lanes(None, "") is None


def test_a_cluster_and_a_machine_are_one_too_many() -> None:
    with pytest.raises(PlanError, match="leave out --machine, or --scheduler"):
        lanes(object(), "cpu-2")


def test_the_lanes_of_a_cluster_are_its_workers() -> None:
    with local_client(Machine((Device("cpu:7", 3),))) as client:
        found = lanes(client, "")
    assert found is not None
    assert [(d.name, d.threads) for d in found.devices] == [("cpu:7", 3)]


# runs

ROUNDS = Loop(
    Graph(
        {"n": Numbers},
        (node("go", Collatz(), a="n", batch=4), node("bare", Strip(), a="go", batch=4)),
        {"next": "bare", "flags": "go"},
    ),
    {"n": "next"},
    "flags",
    9,
)
"""Halves until 1: most rows are through after a round, and only a few go on."""
FALLING = Graph({"a": Numbers}, (node("l", ROUNDS, n="a"),), {"out": "l.next"})
INPUTS = {"a": numbers(**{f"n{i}": 2 for i in range(16)}, x=128, y=256)}


def planned() -> Plan:
    """A batch of 4 takes 2.9 s on the wide lane, two side by side 5 s on the narrow ones; a row 0.8 and 2."""
    plan = place(flatten(FALLING), wide_and_narrow(), policies=("modes",))
    costs = {"cpu:0": (0.1, 0.7), "cpu:1": (1.0, 1.0), "cpu:2": (1.0, 1.0)}
    told = {name: Lane(plan.machine.device(name), *cost) for name, cost in costs.items()}
    return replace(plan, jobs=tuple(replace(job, lanes=told) for job in plan.jobs))


@two_cores
def test_a_run_changes_lanes_by_its_backlog_and_gives_what_the_plain_loop_gives() -> None:
    under_way = run(FALLING, INPUTS, plan=planned())
    found = [(r.id, r.rows) for r in under_way]
    assert found == [(r.id, r.rows) for r in run_local(FALLING, INPUTS)["out"]]
    spans = sorted((s for s in under_way.spans if s.step == "l/go"), key=lambda s: s.start)
    assert {spans[0].device, spans[1].device} == {"cpu:1", "cpu:2"}, "18 rows wait"
    assert spans[-1].device == "cpu:0", "one row is left"


@two_cores
def test_lanes_that_share_cores_never_run_at_once() -> None:
    under_way = run(FALLING, INPUTS, plan=planned())
    list(under_way)
    wide = [s for s in under_way.spans if s.device == "cpu:0"]
    narrow = [s for s in under_way.spans if s.device != "cpu:0"]
    assert wide
    assert narrow
    assert all(a.end <= b.start or b.end <= a.start for a, b in product(wide, narrow))


@two_cores
def test_a_job_runs_on_the_lanes_of_a_file(tmp_path: Path) -> None:
    dump(wide_and_narrow(), tmp_path / "lanes.yaml")
    asked = Questions((Question("a", "one"), Question("b", "two")))
    folder, documents = tmp_path / "run", fakes.write(tmp_path / "documents", doc="one\ntwo")
    task = Task(fakes.graph(folder), folder, folder, documents, asked)
    summary = run_job(task, wishes=Wishes(policies=("modes",), machine=str(tmp_path / "lanes.yaml")))
    assert summary.answered == 2
    record = json.loads((folder / "run.json").read_text("utf-8"))
    used = {lane for step in record["plan"] for lane in step["devices"].split(", ")}
    assert used <= {"cpu:0 (2 threads)", "cpu:1 (1 threads)", "cpu:2 (1 threads)"}
    assert [r["answer"] for r in read_lines(folder / "answers.jsonl")] == ["page 1", "page 2"]


def test_a_machine_that_is_not_here_ends_the_job_before_any_work(tmp_path: Path) -> None:
    folder, documents = tmp_path / "run", fakes.write(tmp_path / "documents", doc="one")
    task = Task(fakes.graph(folder), folder, folder, documents, Questions((Question("a", "one"),)))
    with pytest.raises(PlanError, match="this computer cannot be 'h200'"):
        run_job(task, wishes=Wishes(machine="h200"))
    assert not folder.exists()


@pytest.mark.parametrize("command", ["run", "index"])
def test_the_command_line_takes_a_machine(tmp_path: Path, command: str) -> None:
    (tmp_path / "questions.txt").write_text("one\n")
    fakes.write(tmp_path / "documents", doc="one")
    words = [
        command,
        "configs/document_qa.yaml",
        "--documents",
        str(tmp_path / "documents"),
        "--machine",
        "h200",
    ]
    words += ["--questions", str(tmp_path / "questions.txt")] if command == "run" else []
    found = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert isinstance(found.exception, PlanError)
    assert "this computer cannot be 'h200'" in str(found.exception)
