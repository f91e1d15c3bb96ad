"""What a planner may choose from: lanes, batch sizes, and what fits into memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.estimate import Estimates
from pipeline.graph import Graph, node
from pipeline.machine import Device, Machine
from pipeline.plan import Placement
from pipeline.roofline import Cost, Flow, Work
from pipeline.spaces import batch, fitted, groups, resident, space
from tests.costed import Busy, Case, One, Plain, chain, lanes, linked, profile
from tests.toys import Numbers

CPUS, CARDS = lanes(3), lanes(2, 8.0, kind="cuda")
MIXED = linked(*CPUS, *CARDS, bandwidth=1e9)
C, G = ("cpu:0", "cpu:1", "cpu:2"), ("cuda:0", "cuda:1")


@dataclass(frozen=True, slots=True)
class Heavy(Busy):
    """Keeps `stays` bytes open and takes `row` bytes for each row of a batch."""

    stays: float = 0.0
    row: float = 0.0

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows), work.rows, resident=self.stays, scratch=work.rows * self.row)


def pinned(device: str, stage: Busy) -> Graph:
    return Graph({"rows": Numbers}, (node("s0", stage, device=device, a="rows"),), {"out": "s0"})


def test_a_stage_for_processors_has_all_of_them_or_the_first_or_the_last() -> None:
    found = space(Case(chain(Plain()), MIXED, 9).estimates())
    assert (found.choices, found.size) == (((C, C[:1], C[2:]),), 3)


def test_lanes_that_are_unlike_share_a_step_where_a_part_is_worth_handing_over() -> None:
    found = space(Case(chain(Busy()), MIXED, 90).estimates()).choices[0]
    assert {C, G, ("cpu:0",), ("cuda:1",)} <= set(found)
    assert C + G in found
    alone = space(Case(chain(Busy()), MIXED, 1).estimates()).choices[0]
    assert C + G not in alone, "nothing is queued for the slower ones"


def test_choices_multiply() -> None:
    found = space(Case(chain(Plain(), Plain(2.0)), MIXED, 9).estimates())
    assert (found.steps, found.size) == (("s0", "s1"), 9)


def test_a_pinned_step_has_what_it_names() -> None:
    for device, expected in (("cuda:1", ("cuda:1",)), ("cuda", G)):
        assert space(Case(pinned(device, Busy()), MIXED, 9).estimates()).choices == ((expected,),)


def test_a_step_that_nothing_can_run_is_told_with_what_helps() -> None:
    with pytest.raises(PlanError, match="pinned to 'cuda:0', but Plain runs on CPUs only; remove `device`"):
        space(Case(pinned("cuda:0", Plain()), MIXED, 9).estimates())
    cards = linked(*CARDS)
    with pytest.raises(PlanError, match="'s0' can run on none of cuda:0, cuda:1: add a CPU lane"):
        space(Case(chain(Plain()), cards, 9).estimates())


def test_groups_are_of_lanes_that_deliver_the_same() -> None:
    other = Device("cpu:3", 1, profile(2.0))
    wide = Device("cpu:4", 2, profile())
    assert groups((*CPUS, other, wide, *CARDS)) == [CPUS, (other,), (wide,), CARDS]


# batches


def size(stage: Busy, overhead: float, rows: float = 1e6, default: int | None = None, count: int = 1) -> int:
    graph = Graph({"rows": Numbers}, (node("s0", stage, batch=default, a="rows"),), {"out": "s0"})
    estimates = Case(graph, Machine(lanes(count, overhead=overhead)), rows).estimates()
    return batch(estimates.steps["s0"], tuple(f"cpu:{i}" for i in range(count)), estimates)


def test_a_batch_grows_where_a_row_then_costs_clearly_less() -> None:
    assert size(Busy(), overhead=100.0) == 4 * 64
    assert size(Busy(), overhead=0.0) == 64
    assert size(Busy(), overhead=2.0) == 64, "3 % of a row's time"


def test_every_lane_gets_some() -> None:
    assert size(Busy(), overhead=100.0, rows=256) == 128
    assert size(Busy(), overhead=100.0, rows=256, count=4) == 64


def test_what_the_node_says_stands_and_so_do_groups_and_ordinary_code() -> None:
    assert size(Busy(), overhead=100.0, default=7) == 7
    assert size(One(), overhead=100.0) == 1
    assert size(Plain(), overhead=100.0) == 64


# memory


def room(
    stage: Heavy, nbytes: float, window: int = 0, rows: float = 64, count: int = 1
) -> dict[str, Placement]:
    devices = tuple(replace(d, profile=replace(d.profile, memory=nbytes)) for d in lanes(count))
    estimates = Case(chain(stage, batch=16), Machine(devices), rows).estimates()
    return fitted(space(estimates), (tuple(d.name for d in devices),), estimates, window)


@pytest.mark.parametrize(("nbytes", "expected"), [(260, 16), (259, 8), (180, 8), (179, 4), (110, 1)])
def test_a_batch_is_halved_until_it_fits(nbytes: float, expected: int) -> None:
    assert room(Heavy(stays=100.0, row=10.0), nbytes)["s0"].batch == expected


def test_what_waits_between_steps_has_its_part() -> None:
    stage = Heavy(stays=100.0, row=10.0)
    assert room(stage, 1000, window=125)["s0"].batch == 16
    assert room(stage, 290, window=30)["s0"].batch == 16
    assert room(stage, 290, window=36)["s0"].batch == 8
    assert room(stage, 300, window=10**9)["s0"].batch == 16, "an eighth at most"


def test_what_cannot_fit_is_told_at_once() -> None:
    with pytest.raises(PlanError, match=r"step 's0' needs .* for one row"):
        room(Heavy(stays=100.0, row=10.0), 109)


def test_each_lane_of_a_memory_has_its_own_copy() -> None:
    assert room(Heavy(stays=100.0, row=10.0), 260 + 100, count=2)["s0"].batch == 16
    assert room(Heavy(stays=100.0, row=10.0), 259 + 100, count=2)["s0"].batch == 8


def held(*stages: Heavy, on: tuple[str, ...] = ("cpu:0",)) -> dict[str, float]:
    estimates = Case(chain(*stages), MIXED, 9).estimates()
    return resident({s.name: Placement(on, 1) for s in estimates.program.steps}, estimates)


def test_what_stays_is_counted_once_for_each_lane_and_state() -> None:
    one, other = Heavy(stays=100.0), Heavy(stays=70.0, name="other")
    assert held(one, one) == {"host": 100}
    assert held(one, other) == {"host": 170}
    assert held(one, on=("cpu:0", "cpu:1")) == {"host": 200}
    assert held(one, other, on=("cpu:0", "cuda:1")) == {"host": 170, "cuda:1": 170}


@given(st.floats(0, 1e3), st.floats(0.1, 100), st.floats(1, 1e4), st.integers(0, 10**4))
def test_whatever_is_planned_fits(stays: float, row: float, nbytes: float, window: int) -> None:
    try:
        found = room(Heavy(stays=stays, row=row), nbytes, window)["s0"].batch
    except PlanError:
        assert stays + row > nbytes - min(window, nbytes / 8)
    else:
        assert stays + found * row <= nbytes - min(window, nbytes / 8)
        assert found == 16 or stays + 2 * found * row > nbytes - min(window, nbytes / 8)


def test_estimates_of_a_stage_without_cost_need_no_memory() -> None:
    from tests.toys import Plus

    estimates: Estimates = Case(chain(Plus()), Machine(CPUS), 9).estimates()
    assert resident({"s0": Placement(C, 1)}, estimates) == {"host": 0}
