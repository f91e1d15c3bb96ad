"""Every decision of a plan is told with its numbers, and never says what the plan does not do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import foresee
from pipeline.cuts import Shapes
from pipeline.gates import Decision
from pipeline.graph import Graph, node
from pipeline.knot import loaded
from pipeline.machine import Device, Link, Machine
from pipeline.planner import Planned, Planner
from pipeline.program import flatten
from pipeline.reasons import TOLD, reasons, short
from pipeline.roofline import Cost, Flow, Work
from tests.costed import Busy, Plain, chain, lanes, linked, profile, random_case
from tests.toys import Numbers

ROOT = Path(__file__).parents[1]


def planned(graph: Graph, machine: Machine, rows: float = 40) -> Planned:
    return Planner(flatten(graph), machine, {"rows": Flow(rows, 0.0, 1.0)}, divide=False).best()


def one(stage: Any, machine: Machine, rows: float = 40, **options: Any) -> Planned:
    return planned(
        Graph({"rows": Numbers}, (node("s", stage, a="rows", **options),), {"out": "s"}), machine, rows
    )


def about(found: Planned, what: str) -> list[Decision]:
    return [d for d in reasons(found) if d.what == what]


GPU = linked(*lanes(1), *lanes(1, 8.0, kind="cuda"), bandwidth=1e9)


def test_lanes_next_to_each_other_are_told_together() -> None:
    names = ("cpu:0", "cpu:1", "cpu:2", "cuda:1", "pim:0", "pim:2", "node-a", "node-b")
    assert short(names) == "cpu:0-2, cuda:1, pim:0, pim:2, node-a, node-b"
    assert short(()) == ""


@given(st.lists(st.tuples(st.sampled_from(["cpu", "cuda"]), st.integers(0, 9)), unique=True))
def test_short_names_lose_no_lane(lanes: list[tuple[str, int]]) -> None:
    told = [part for part in short(f"{kind}:{n}" for kind, n in lanes).split(", ") if part]
    found = []
    for part in told:
        kind, _, numbers = part.partition(":")
        first, _, last = numbers.partition("-")
        found += [(kind, n) for n in range(int(first), int(last or first) + 1)]
    assert found == lanes


def test_the_placement_is_told_with_the_next_best() -> None:
    found = one(Busy(), GPU)
    (decision,) = about(found, "placement")
    assert decision.chosen == "cuda:0"
    assert decision.numbers["seconds"] == found.seconds <= decision.numbers["next best"]
    assert decision.numbers["compared"] == found.considered
    assert all(why.endswith("predicted") for _, why in decision.rejected)


def test_a_rejected_plan_on_the_same_lanes_is_told_by_the_steps_that_it_has_elsewhere() -> None:
    found = planned(chain(Busy(3.0), Plain(1.0), Busy(2.0), batch=4), GPU)
    (decision,) = about(found, "placement")
    told = dict(decision.rejected)
    assert decision.chosen not in told
    assert 1 < len(told) <= TOLD
    assert any("s0 on " in other or "s2 on " in other for other in told)
    assert len(decision.rejected) == len(told), "each once"


def test_what_could_run_on_either_is_told_with_both_times() -> None:
    """H2: 8 rows take a second on the accelerator, and eight on the CPU."""
    decision = about(one(Busy(), GPU, batch=8), "s")[0]
    assert decision.chosen == "cuda:0"
    assert (decision.numbers["cuda:0"], decision.numbers["cpu:0"]) == pytest.approx((1.0, 8.0))
    assert decision.rejected == (("cpu:0", "7 s more"),)


def test_whether_two_devices_share_a_step_is_told_with_the_share_that_it_takes() -> None:
    """H1: where nothing waits beyond one batch, nothing is left to share."""
    decision = about(one(Busy(), GPU, rows=8, batch=8), "s")[1]
    assert (decision.chosen, "nothing waits for cpu:0" in decision.why) == ("device only", True)
    decision = about(one(Busy(), GPU, rows=400, batch=8), "s")[1]
    assert decision.numbers["share"] == pytest.approx(1 / 8)


def test_a_pinned_step_says_that_it_is() -> None:
    decision = about(one(Busy(), GPU, device="cpu:0"), "s")[0]
    assert decision.chosen == "cpu:0"
    assert decision.why.endswith("the plan has it on cpu:0: it is pinned to cpu:0")
    assert decision.rejected == (("cuda:0", "it is pinned to cpu:0"),)


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_what_is_said_to_be_chosen_is_what_the_plan_does(seed: int) -> None:
    case = random_case(seed)
    found = Planner(case.program, case.machine, case.sources, divide=False).best()
    for step, placement in found.plan.placements.items():
        kinds = {name.partition(":")[0] for name in placement.devices}
        for d in about(found, step):
            if d.chosen in ("split", "overlap"):
                assert len(kinds) > 1
            elif d.chosen != "device only":
                assert d.chosen.partition(":")[0] in kinds
            assert d.chosen not in dict(d.rejected)


def test_an_edge_between_memories_is_sent_or_made_again_whichever_is_faster() -> None:
    """B18: 8 rows of 10 bytes take 80 s on the link, and 8 s to make again."""
    cpu, cuda = lanes(1)[0], lanes(1, 8.0, kind="cuda")[0]
    slow = Machine((cpu, cuda), {("host", "cuda:0"): Link(1.0, 0.0)})
    nodes = (
        node("make", Busy(1.0, 10.0), a="rows", batch=8, device="cuda:0"),
        node("use", Plain(), a="make", batch=8),
    )
    graph = Graph({"rows": Numbers}, nodes, {"out": "use"})
    (decision,) = about(planned(graph, slow), "make for use")
    assert decision.chosen == "recompute"
    assert (decision.numbers["recompute"], decision.numbers["transfer"]) == pytest.approx((8.0, 80.0))
    assert decision.why.endswith("a run sends it: `device: cpu:0` makes make there")
    fast = replace(slow, links={("host", "cuda:0"): Link(1e3, 0.0)})
    assert about(planned(graph, fast), "make for use")[0].chosen == "transfer"


def test_within_a_memory_nothing_is_decided_about_edges() -> None:
    found = planned(chain(Plain(), Plain()), Machine(lanes(3)))
    assert {d.what for d in reasons(found)} <= {"placement", "runs of steps"}


def test_how_many_threads_a_stream_is_worth_is_told_where_it_was_measured() -> None:
    """A6: beyond two threads, bandwidth does not grow."""
    curve = {n: replace(profile(), bandwidth=min(n, 2)) for n in (1, 2, 4)}
    at = Machine((Device("cpu:0", 4, curve[4]),), by_threads=curve)
    (decision,) = [d for d in reasons(one(Busy(), at)) if "the CPU" in d.what]
    assert decision.chosen.startswith("2")


@dataclass(frozen=True, slots=True)
class Phased:
    """One FLOP a row, half of it before the cut; `patches`, `layers`: what would cross."""

    layers: int = 1
    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 4

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows), flops=work.rows)

    def cut(self, work: Work) -> tuple[Shapes, Cost, Cost]:
        half = Cost(Flow(work.rows), flops=work.rows / 2)
        streamed = Cost(Flow(work.rows), traffic=work.rows / 2)
        return Shapes(self.layers, 1, 1, 1, 0, 1, 1), half, streamed

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_a_model_with_phases_says_whether_to_cut_it() -> None:
    """B9: half of the second for a row is decode, which the other device, with more bandwidth, streams."""
    cpu = Device("cpu:0", 1, replace(profile(1.0), bandwidth=1e3))
    cuda = Device("cuda:0", 1, replace(profile(1.0), bandwidth=1.0))
    for bandwidth, chosen in ((1e3, "prefill/decode"), (1.0, "no split")):
        at = Machine((cpu, cuda), {("host", "cuda:0"): Link(bandwidth, 0.0)})
        (decision,) = about(one(Phased(), at), "cut of s")
        assert decision.chosen == chosen
        assert ("this stage runs whole" in decision.why) == (chosen != "no split")
        assert decision.numbers["link seconds of prefill/decode"] == 2 / bandwidth


@pytest.fixture(scope="module")
def document_qa() -> Graph:
    return loaded(ROOT / "configs" / "document_qa.yaml", Path("run"), [], [])


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "machine",
    ["cpu-gpu", "pim", pytest.param("big-small", marks=SLOW), pytest.param("slow-link", marks=SLOW)],
)
def test_the_shipped_pipeline_tells_why_on_machines_with_accelerators(
    document_qa: Graph, machine: str
) -> None:
    found = foresee.planned(document_qa, foresee.workload(document_qa, 100), machine)
    told = {d.what: d for d in reasons(found)}
    assert {"placement", "said", "answers", "vectors", "cut of said"} <= set(told)
    assert told["cut of said"].chosen == "no split"
    assert told["cut of said"].numbers["link seconds of prefill/decode"] > 0
    assert all(d.why and all(n == n for n in d.numbers.values()) for d in told.values())
    assert [d for d in reasons(found) if d.what == "said"][1].numbers["needed"] > 0


def test_of_a_chain_the_proven_best_of_single_devices_is_told() -> None:
    """B16: two steps of 8 seconds on two devices; the run cannot be better than one of them."""
    found = planned(chain(Plain(), Plain()), Machine(lanes(2)))
    (decision,) = [d for d in reasons(found) if d.what == "runs of steps"]
    assert decision.numbers["latency"] >= decision.numbers["bottleneck"] > 0
    assert decision.why.startswith("with each step on one device, neighbours together")
