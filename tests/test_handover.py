"""The way of a value follows from who makes and reads it, and where they live."""

from __future__ import annotations

from pipeline.graph import Graph, Loop, node
from pipeline.handover import ARENA, BYTES, CLIENT, REFERENCE, Home, carriers
from pipeline.machine import Device, Machine
from pipeline.plan import Placement, Plan
from pipeline.program import flatten
from tests.toys import Collatz, Numbers, Plus, Strip

MACHINE = Machine((Device("cpu:0"), Device("cpu:1")))
GRAPH = Graph(
    {"docs": Numbers},
    (node("a", Plus(), a="docs"), node("b", Plus(2), a="a"), node("c", Plus(3), a="b")),
    {"out": "c"},
)
HERE, BESIDE, FAR = Home("h", "1"), Home("h", "2"), Home("other", "1")


def ways(homes: dict[str, Home], **lanes: str) -> dict[str, str]:
    placed = {step: Placement(tuple(names.split()), 4) for step, names in lanes.items()}
    return carriers(flatten(GRAPH), Plan(MACHINE, placed), homes)


def test_in_one_process_all_goes_by_reference() -> None:
    homes = {"cpu:0": HERE, "cpu:1": HERE, CLIENT: HERE}
    found = ways(homes, a="cpu:0", b="cpu:1", c="cpu:0 cpu:1")
    assert set(found.values()) == {REFERENCE}


def test_between_processes_of_a_host_it_is_shared_memory_and_within_one_a_reference() -> None:
    homes = {"cpu:0": HERE, "cpu:1": BESIDE, CLIENT: HERE}
    assert ways(homes, a="cpu:0", b="cpu:0", c="cpu:1") == {"a": REFERENCE, "b": ARENA, "c": ARENA}


def test_between_hosts_it_is_bytes() -> None:
    homes = {"cpu:0": HERE, "cpu:1": FAR, CLIENT: HERE}
    assert ways(homes, a="cpu:0", b="cpu:0", c="cpu:1") == {"a": REFERENCE, "b": BYTES, "c": BYTES}


def test_a_step_with_lanes_in_two_processes_is_read_across_them() -> None:
    homes = {"cpu:0": HERE, "cpu:1": BESIDE, CLIENT: HERE}
    assert ways(homes, a="cpu:0 cpu:1", b="cpu:0", c="cpu:0")["a"] == ARENA


def test_an_output_is_read_by_the_client() -> None:
    homes = {"cpu:0": BESIDE, "cpu:1": BESIDE, CLIENT: HERE}
    assert ways(homes, a="cpu:0", b="cpu:0", c="cpu:0") == {"a": REFERENCE, "b": REFERENCE, "c": ARENA}


def test_what_goes_round_a_loop_is_read_where_the_loop_reads_and_where_it_ends() -> None:
    halving = (node("halve", Collatz(), a="x"), node("strip", Strip(), a="halve"))
    body = Graph({"x": Numbers}, halving, {"next": "strip", "flag": "halve"})
    loop = node("turn", Loop(body, {"x": "next"}, "flag", 3), x="a")
    graph = Graph({"docs": Numbers}, (node("a", Plus(), a="docs"), loop), {"out": "turn.next"})
    placed = {s: Placement(("cpu:1",), 4) for s in ("turn/halve", "turn/strip")} | {
        "a": Placement(("cpu:0",), 4)
    }
    homes = {"cpu:0": HERE, "cpu:1": BESIDE, CLIENT: BESIDE}
    found = carriers(flatten(graph), Plan(MACHINE, placed), homes)
    assert found == {"a": ARENA, "turn/halve": REFERENCE, "turn/strip": REFERENCE}
