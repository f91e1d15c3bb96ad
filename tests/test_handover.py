"""The way of a value follows from who makes and reads it, where they live, and whether it is on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline.buffers.device import UNKNOWN, Gpu, View, refusal
from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, node
from pipeline.handover import (
    ARENA,
    BYTES,
    CLIENT,
    CUDA,
    CUDA_IPC,
    PEER,
    REFERENCE,
    STAGED,
    Home,
    carriers,
    differences,
    edge_ways,
    lossy,
    planned_homes,
    settled,
)
from pipeline.machine import Device, Link, Machine
from pipeline.plan import Placement, Plan, Way
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
    return names(carriers(flatten(GRAPH), Plan(MACHINE, placed), homes))


def names(found: Mapping[str, Way]) -> dict[str, str]:
    """Of the steps."""
    return {step: way.name for step, way in found.items() if step != "docs"}


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
    graph = looping()
    placed = {s: Placement(("cpu:1",), 4) for s in ("turn/halve", "turn/strip")} | {
        "a": Placement(("cpu:0",), 4)
    }
    homes = {"cpu:0": HERE, "cpu:1": BESIDE, CLIENT: BESIDE}
    found = carriers(flatten(graph), Plan(MACHINE, placed), homes)
    assert names(found) == {"a": ARENA, "turn/halve": REFERENCE, "turn/strip": REFERENCE}


# what comes in, and what is planned


def test_what_comes_in_is_sent_by_dask_where_it_does_not_stay_in_the_process() -> None:
    plan = Plan(MACHINE, {s: Placement(("cpu:0",), 4) for s in "abc"})
    assert settled(flatten(GRAPH), plan).ways["docs"] == Way(REFERENCE)
    assert settled(flatten(GRAPH), plan, apart=True).ways["docs"] == Way(BYTES)


def test_a_plan_that_is_settled_has_a_way_for_each_step_and_says_whether_lanes_are_apart() -> None:
    plan = Plan(MACHINE, {"a": Placement(("cpu:0",), 4), **dict.fromkeys("bc", Placement(("cpu:1",), 4))})
    together, apart = (settled(flatten(GRAPH), plan, apart=a) for a in (False, True))
    assert (together.apart, names(together.ways)) == (False, dict.fromkeys("abc", REFERENCE))
    assert (apart.apart, names(apart.ways)) == (True, {"a": ARENA, "b": REFERENCE, "c": ARENA})


@pytest.mark.parametrize(
    ("lane", "home"),
    [
        ("cpu:0", Home("here", "cpu:0")),
        ("tcp://10.0.0.2:4000", Home("10.0.0.2", "tcp://10.0.0.2:4000")),
        ("tls://[fe80::1]:4000", Home("[fe80::1]", "tls://[fe80::1]:4000")),
        ("inproc://10.0.0.2/12/1", Home("here", "here")),
    ],
)
def test_a_lane_that_is_called_by_its_address_lives_there(lane: str, home: Home) -> None:
    assert planned_homes(Machine((Device(lane),)), apart=True) == {CLIENT: Home("here", "here"), lane: home}


def test_lanes_on_several_hosts_are_sent_bytes() -> None:
    machine = Machine((Device("tcp://10.0.0.2:1"), Device("tcp://10.0.0.3:1")))
    placed = {
        s: Placement((d.name,), 4) for s, d in zip("abc", (*machine.devices, machine.devices[1]), strict=True)
    }
    found = settled(flatten(GRAPH), Plan(machine, placed), apart=True)
    assert names(found.ways) == {"a": BYTES, "b": REFERENCE, "c": BYTES}


def test_what_is_not_as_planned_is_told_with_the_reason() -> None:
    planned = {"a": Way(CUDA_IPC), "b": Way(ARENA)}
    real = {"a": Way(ARENA, "because"), "b": Way(ARENA), "c": Way(BYTES)}
    assert differences(planned, real) == ["values of a go by arena, not by cuda-ipc as planned: because"]


# values on a GPU


@dataclass(frozen=True, slots=True)
class Left(Plus):
    """Leaves what it makes on the device."""

    leaves: ClassVar[str] = "device"


@dataclass(frozen=True, slots=True)
class Lost(Plus):
    leaves: ClassVar[str] = "nowhere"


ON_GPUS = Graph({"docs": Numbers}, (node("a", Left(), a="docs"), node("b", Plus(2), a="a")), {"out": "b"})
GPUS = Machine(
    (Device("cpu:0"), Device("cuda:0"), Device("cuda:1"), Device("cuda:2", share="cuda:0")),
    {("cuda:0", "cuda:1"): Link(1e9, 0.0)},
)
SEEN = View("this kernel", (Gpu("GPU-a"), Gpu("GPU-b")))


def way(a: str, b: str, apart: bool = False, seen: View | None = None, machine: Machine = GPUS) -> Way:
    """Of the values that `a` leaves on its device, and `b` reads; the lanes of the two."""
    placed = {"a": Placement(tuple(a.split()), 4), "b": Placement(tuple(b.split()), 4)}
    return settled(flatten(ON_GPUS), Plan(machine, placed), apart, seen).ways["a"]


def test_on_one_gpu_in_one_process_the_tensors_themselves_are_handed_on() -> None:
    assert way("cuda:0", "cuda:0") == Way(CUDA, device=True)
    assert way("cuda:0", "cuda:2") == Way(CUDA, device=True), "two lanes of a GPU"
    assert way("cuda:0", "cuda:0", apart=True) == Way(CUDA, device=True)


def test_between_gpus_of_a_process_they_are_copied_where_a_link_goes() -> None:
    assert way("cuda:0", "cuda:1") == way("cuda:1", "cuda:0 cuda:1") == Way(PEER, device=True)
    apart = replace(GPUS, links={})
    told = Way(STAGED, "cuda:0 and cuda:1 have no link but through the host", True)
    assert way("cuda:0", "cuda:1", machine=apart) == told


def test_to_a_reader_on_the_host_they_are_staged() -> None:
    assert way("cuda:0", "cpu:0") == Way(STAGED, "cpu:0 has no GPU", True)


def test_between_processes_on_one_gpu_its_memory_is_mapped() -> None:
    assert way("cuda:0", "cuda:2", apart=True) == Way(CUDA_IPC, device=True)
    assert way("cuda:0", "cuda:2", apart=True, seen=SEEN) == Way(CUDA_IPC, device=True)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("cuda:0", "cuda:1", "cuda:0 and cuda:1 are on several GPUs"),
        ("cuda:0", "cpu:0", "cpu:0 has no GPU"),
        ("cpu:0 cuda:0", "cuda:2", "cpu:0 has no GPU"),
    ],
)
def test_between_processes_on_other_devices_the_host_shares_memory(a: str, b: str, says: str) -> None:
    found = way(a, b, apart=True, seen=SEEN)
    assert (found.name, found.device) == (ARENA, True)
    assert says in found.why


@pytest.mark.parametrize(
    "seen",
    [
        replace(SEEN, expandable="PYTORCH_ALLOC_CONF=expandable_segments:True"),
        View("h", (Gpu("GPU-a", UNKNOWN),)),
    ],
    ids=["expandable", "mig"],
)
def test_what_forbids_to_map_memory_is_kept_as_the_reason(seen: View) -> None:
    found = way("cuda:0", "cuda:2", apart=True, seen=seen)
    assert found == Way(ARENA, refusal(seen, seen, "GPU-a"), True)
    assert found.why
    assert way("cuda:0", "cuda:2", seen=seen) == Way(CUDA, device=True), "within a process nothing is mapped"


def test_a_gpu_that_a_process_does_not_see_is_none() -> None:
    found = way("cuda:1", "cuda:1", seen=View("h", (Gpu("GPU-a"),)))
    assert found == Way(REFERENCE), "nothing can be left there"


def homes(**found: Home) -> dict[str, Home]:
    return {CLIENT: HERE, **{name.replace("_", ":"): home for name, home in found.items()}}


def real(cuda_0: Home, cuda_2: Home) -> Way:
    placed = {"a": Placement(("cuda:0",), 4), "b": Placement(("cuda:2",), 4)}
    return carriers(flatten(ON_GPUS), Plan(GPUS, placed), homes(cuda_0=cuda_0, cuda_2=cuda_2))["a"]


def test_on_a_cluster_the_views_of_its_processes_decide() -> None:
    one, two = (Home("h", p, "GPU-a", View("h", (Gpu("GPU-a"),))) for p in "12")
    assert real(one, two) == Way(CUDA_IPC, device=True)
    elsewhere = replace(two, view=View("a container", (Gpu("GPU-a"),)))
    assert "--ipc=host" in real(one, elsewhere).why
    assert real(one, replace(two, view=None)) == Way(
        ARENA, "nobody has said which GPUs cuda:0 and cuda:2 see", True
    )
    assert real(one, replace(two, host="far", gpu="GPU-c")).name == BYTES


def test_a_step_on_a_cpu_leaves_nothing_on_a_gpu() -> None:
    assert way("cpu:0", "cuda:0") == Way(REFERENCE)


def test_where_values_are_left_is_one_of_two_places() -> None:
    graph = Graph({"docs": Numbers}, (node("a", Lost(), a="docs"),), {"out": "a"})
    with pytest.raises(GraphError, match='Lost: `leaves` is "host" or "device", not \'nowhere\''):
        settled(flatten(graph), Plan(GPUS, {"a": Placement(("cuda:0",), 4)}))


def looping() -> Graph:
    halving = (node("halve", Collatz(), a="x"), node("strip", Strip(), a="halve"))
    body = Graph({"x": Numbers}, halving, {"next": "strip", "flag": "halve"})
    loop = node("turn", Loop(body, {"x": "next"}, "flag", 3), x="a")
    return Graph({"docs": Numbers}, (node("a", Plus(), a="docs"), loop), {"out": "turn.next"})


def test_an_edge_into_a_loop_has_the_ways_of_all_who_made_its_rows() -> None:
    program = flatten(looping())
    ways = {"docs": Way(BYTES), "a": Way(ARENA), "turn/halve": Way(BYTES), "turn/strip": Way(REFERENCE)}
    (edge,) = next(s for s in program.steps if s.name == "turn/halve").edges
    assert edge_ways(program, ways, edge.producer) == [Way(ARENA), Way(REFERENCE)]
    assert edge_ways(program, ways, "docs") == [Way(BYTES)]


def test_to_decide_takes_no_torch() -> None:
    """A machine file may name GPUs that are not here."""
    code = """
import sys
from tests.test_handover import GPUS, SEEN, settled, way
assert way("cuda:0", "cuda:2", apart=True, seen=SEEN).name == "cuda-ipc"
assert way("cuda:0", "cuda:1", apart=True).name == "arena"
from pipeline.buffers.device import seen
assert seen(["cpu:0", "pim:0"]) is None
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)


def test_only_what_goes_by_bytes_and_to_no_output_may_lose() -> None:
    by = {step: Way(BYTES) for step in "abc"}
    assert lossy(flatten(GRAPH), by) == {"a", "b"}
    assert lossy(flatten(GRAPH), by | {"a": Way(ARENA), "b": Way(REFERENCE)}) == set()
