"""The plan is the best of all placements, or near it; what cannot be planned is an error at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.candidates import shrunk
from pipeline.errors import PlanError
from pipeline.graph import Graph, node
from pipeline.invent import given as rows_of
from pipeline.machine import Device, Link, Machine
from pipeline.plan import Placement, Plan
from pipeline.planner import Planned, Planner
from pipeline.program import flatten
from pipeline.roofline import Cost, Flow, Work
from pipeline.simulate import simulate
from pipeline.spaces import batch
from tests.costed import Busy, Case, One, Plain, chain, lanes, linked, profile, random_case
from tests.toys import Numbers

ENUMERABLE = 81
"""Placements that a test simulates."""


def planned(case: Case, divide: bool = False, **options: Any) -> Planned:
    return Planner(case.program, case.machine, case.sources, divide=divide, **options).best()


def placements(case: Case) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every set of lanes for every step."""
    estimates = case.estimates()
    each = []
    for step in case.program.steps:
        able = [d.name for d in case.machine.devices if estimates.can_run(step.name, d)]
        each.append([found for n in range(1, len(able) + 1) for found in combinations(able, n)])
    return product(*each) if prod(len(found) for found in each) <= ENUMERABLE else iter(())


def seconds(case: Case, chosen: tuple[tuple[str, ...], ...]) -> float:
    estimates, steps = case.estimates(), case.program.steps
    placed = {s.name: Placement(at, batch(s, at, estimates)) for s, at in zip(steps, chosen, strict=True)}
    return simulate(
        Plan(case.machine, placed), estimates, rows_of(case.sources, {"rows": False})
    ).timeline.seconds


SMALL = [
    s for s in range(40) if next(placements(random_case(s)), None) and len(random_case(s).machine.devices) > 1
]


@pytest.mark.parametrize("seed", SMALL)
def test_no_placement_is_faster_by_more_than_a_twentieth(seed: int) -> None:
    case = random_case(seed)
    best = min(seconds(case, chosen) for chosen in placements(case))
    assert planned(case).seconds <= 1.05 * best


def test_what_is_predicted_is_what_a_simulation_of_the_plan_gives() -> None:
    case = random_case(3)
    found = planned(case)
    again = simulate(found.plan, found.estimates, rows_of(case.sources, {"rows": False}))
    assert found.seconds == again.timeline.seconds == found.simulated.timeline.seconds


def test_dividing_the_cpu_is_chosen_where_batches_cost_overhead_alone() -> None:
    """Two lanes pay the overhead side by side; the work itself takes as long on one lane of two threads."""
    wide = Device("cpu:0", 2, profile(2.0, overhead=1.0))
    case = Case(chain(Busy(0.2)), Machine((wide,)), 20)
    assert planned(case, divide=True).plan.placements["s0"].devices == ("cpu:0", "cpu:1")
    assert planned(case, divide=False).plan.placements["s0"].devices == ("cpu:0",)


@pytest.mark.parametrize("seed", range(12))
def test_one_more_device_makes_no_run_longer(seed: int) -> None:
    case = random_case(seed)
    name = f"pim:{sum(d.kind == 'pim' for d in case.machine.devices)}"
    more = (*case.machine.devices, Device(name, profile=profile(4.0)))
    links = {**case.machine.links, ("host", name): Link(20.0, 0.0)}
    wider = replace(case, machine=replace(case.machine, devices=more, links=links))
    assert planned(wider).seconds <= 1.05 * planned(case).seconds


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_ordinary_code_never_goes_to_an_accelerator(seed: int) -> None:
    case = random_case(seed)
    placed = planned(case).plan.placements
    plain = [s.name for s in case.program.steps if isinstance(s.stage, Plain)]
    assert all(d.startswith("cpu:") for name in plain for d in placed[name].devices)


@given(st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_the_same_question_has_the_same_answer(seed: int) -> None:
    one, two = (planned(random_case(seed)) for _ in range(2))
    assert (one.plan, one.seconds, one.others) == (two.plan, two.seconds, two.others)


def machine(**memory: float) -> Machine:
    """A slow CPU, and a fast device on a fast link."""
    slow, fast = profile(1.0), profile(100.0)
    cpu = Device("cpu:0", 1, replace(slow, memory=memory.get("cpu", 1e15)))
    cuda = Device("cuda:0", 1, replace(fast, memory=memory.get("cuda", 1e15)))
    return linked(cpu, cuda, bandwidth=1e9)


def one_step(stage: Any, at: Machine, rows: float = 8, **options: Any) -> Planned:
    graph = Graph({"rows": Numbers}, (node("s", stage, a="rows", **options),), {"out": "s"})
    return Planner(flatten(graph), at, {"rows": Flow(rows)}).best()


def test_a_step_is_where_it_is_fastest_unless_it_is_pinned() -> None:
    assert one_step(Busy(), machine()).plan.placements["s"].devices == ("cuda:0",)
    assert one_step(Busy(), machine(), device="cpu:0").plan.placements["s"].devices == ("cpu:0",)


def test_a_step_pinned_to_a_kind_has_all_lanes_of_it() -> None:
    at = linked(*lanes(1), *lanes(3, 2.0, kind="cuda"))
    assert one_step(Busy(), at, device="cuda").plan.placements["s"].devices == ("cuda:0", "cuda:1", "cuda:2")
    assert one_step(Busy(), at, device="cpu").plan.placements["s"].devices == ("cpu:0",)


@pytest.mark.parametrize("device", ["cuda:0", "cuda"])
def test_a_step_pinned_to_what_cannot_run_it_is_an_error_that_says_what_to_do(device: str) -> None:
    with pytest.raises(PlanError, match=f"'s' is pinned to '{device}', but Plain runs on CPUs only; remove"):
        one_step(Plain(), machine(), device=device)


def test_a_device_that_is_not_there_is_an_error_with_the_near_miss() -> None:
    with pytest.raises(PlanError, match=r"'s' is pinned to device 'cuda:1': .* did you mean 'cuda:0'\?"):
        one_step(Busy(), machine(), device="cuda:1")


def test_ordinary_code_on_a_machine_without_a_cpu_is_an_error() -> None:
    with pytest.raises(PlanError, match="'s' can run on none of cuda:0: add a CPU lane"):
        one_step(Plain(), Machine(lanes(1, kind="cuda")))


@dataclass(frozen=True, slots=True)
class Model:
    """`weights` bytes that stay, and `each` for every row of a batch."""

    weights: float = 0.0
    each: float = 0.0

    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 16

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows), flops=work.rows, resident=self.weights, scratch=work.rows * self.each)

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


GIB = 2**30


def test_weights_that_fit_nowhere_are_an_error_that_names_the_smallest_change() -> None:
    with pytest.raises(PlanError, match=r"step 's' needs .* a device with [\d.]+ GiB more, or .* smaller"):
        one_step(Model(weights=10 * GIB), machine(cpu=8 * GIB, cuda=8 * GIB))


def test_weights_that_fit_only_into_the_slower_memory_are_put_there() -> None:
    found = one_step(Model(weights=10 * GIB), machine(cpu=16 * GIB, cuda=8 * GIB))
    assert found.plan.placements["s"].devices == ("cpu:0",)


def test_two_models_that_do_not_fit_together_are_apart() -> None:
    graph = Graph(
        {"rows": Numbers},
        (node("a", Model(6 * GIB), a="rows"), node("b", Model(7 * GIB), a="a")),
        {"out": "b"},
    )
    at = machine(cpu=16 * GIB, cuda=10 * GIB)
    placed = Planner(flatten(graph), at, {"rows": Flow(8)}).best().plan.placements
    assert {placed["a"].devices, placed["b"].devices} == {("cpu:0",), ("cuda:0",)}


@given(free=st.floats(1.0, 7.0))
@settings(max_examples=20, deadline=None)
def test_the_batch_is_the_largest_half_that_fits(free: float) -> None:
    """An eighth of a memory of 8 GiB or less is left for what waits between steps."""
    found = one_step(Model(each=GIB), machine(cpu=free * GIB * 8 / 7, cuda=GIB / 2), rows=64)
    size = found.plan.placements["s"].batch
    assert size in (1, 2, 4, 8, 16, 32, 64)
    assert size <= free
    assert 2 * size > free


def test_policies_and_window_are_those_of_the_plan() -> None:
    found = planned(random_case(1), policies=("steal",), window=12345)
    assert (found.plan.policies, found.plan.window) == (("steal",), 12345)


def test_a_policy_that_nobody_knows_is_an_error_with_the_near_miss() -> None:
    with pytest.raises(PlanError, match=r"no policy named 'stael'; did you mean 'steal'\?"):
        planned(random_case(1), policies=("stael",))


def test_forty_steps_on_eight_devices_need_few_simulations() -> None:
    at = linked(*lanes(4), *lanes(2, 4.0, kind="cuda"), *lanes(2, 2.0, kind="pim"), bandwidth=1e9)
    stages = [(Busy if i % 3 else Plain)(1.0 + i % 5, name=f"{i}") for i in range(40)]
    found = planned(Case(chain(*stages, batch=8), at, 1000), divide=True)
    assert found.evaluations <= 40
    assert found.considered <= 5000
    assert len(found.simulated.timeline.spans) <= 40 * 125


def test_a_run_too_long_to_simulate_is_predicted_from_a_part_of_it() -> None:
    case = Case(chain(Busy(1.0), Busy(2.0), batch=4), Machine(lanes(2)), 20_000)
    assert planned(case).seconds == pytest.approx(30_000, rel=0.02)


def test_a_share_of_rows_is_a_whole_number_of_them_and_one_at_least() -> None:
    assert shrunk(Flow(10), 0.25).rows == 2
    assert shrunk(Flow(10), 0.001).rows == 1
    assert shrunk(Flow(0), 0.5).rows == 0


def test_nothing_to_do_takes_no_time() -> None:
    assert planned(Case(chain(Busy()), Machine(lanes(1)), 0)).seconds == 0


@pytest.mark.parametrize(("rows", "told"), [(100, True), (20_000, True), (2_000_000, False)])
def test_the_predicted_timeline_has_all_rows_unless_they_are_very_many(rows: int, told: bool) -> None:
    program = flatten(chain(Busy(1.0), batch=64))
    found = Planner(program, Machine(lanes(2)), {"rows": Flow(rows)}).best()
    timeline = found.in_full()
    assert (timeline is not None) is told
    if timeline is not None:
        assert sum(s.rows for s in timeline.spans) == rows
        assert timeline.seconds == pytest.approx(found.seconds, rel=0.05)


def phases() -> Case:
    """Many small rows, which overhead makes faster on two narrow lanes, then one for which all cores are."""
    machine = Machine((Device("cpu:0", 2, profile(2.0, overhead=1.0)),))
    return Case(chain(Busy(1.0, name="many"), One(0.0), Busy(20.0, name="one")), machine, 20)


def test_lanes_that_share_cores_are_laid_out_for_the_policy_that_changes_between_them() -> None:
    case = phases()
    plain, modes = (planned(case, divide=True, policies=names) for names in ((), ("modes",)))
    assert plain.plan.machine.crowds == ()
    assert modes.plan.machine.crowds
    assert modes.seconds < 0.9 * plain.seconds
    spans = modes.simulated.timeline.spans
    assert {s.device for s in spans if s.step == "s0"} >= {"cpu:1", "cpu:2"}
    assert {s.device for s in spans if s.step == "s2"} == {"cpu:0"}


def test_lanes_that_share_cores_are_never_one_steps_together() -> None:
    planner = Planner(phases().program, phases().machine, phases().sources, policies=("modes",))
    shared = [s for s in planner.spaces if s.machine.crowds]
    assert shared
    for found in shared:
        chosen = {choice for choices in found.choices for choice in choices}
        assert not any("cpu:0" in choice and len(choice) > 1 for choice in chosen)
