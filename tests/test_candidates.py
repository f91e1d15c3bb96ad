"""What policies are told of a step follows from its formula and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from pipeline.candidates import job
from pipeline.machine import Device, Link, Machine
from pipeline.policy import Job
from pipeline.roofline import Cost, Flow, Work
from tests.costed import Busy, Case, One, chain, lanes, linked, profile
from tests.toys import Numbers


@dataclass(frozen=True, slots=True)
class Attend:
    """A FLOP for each unit of length, and `square` for each pair of them."""

    square: float = 0.0

    accelerated: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def cost(self, work: Work) -> Cost:
        a = work.port("a")
        return Cost(Flow(work.rows, a.length), a.rows * (a.length + self.square * a.length**2))

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def told(case: Case, step: str = "s0") -> Job:
    return job(step, case.plan().placements, case.estimates())


@pytest.mark.parametrize(("square", "bend"), [(0.0, 0.0), (0.25, 0.5), (1e9, 1.0)])
def test_the_bend_is_the_share_that_grows_with_the_square_of_the_length(square: float, bend: float) -> None:
    """Rows of length 4: 4 FLOP by length, 16 times `square` by its square."""
    found = told(Case(chain(Attend(square), batch=8), Machine(lanes(1)), 40, 4.0))
    assert found.lanes["cpu:0"].bend == pytest.approx(bend)


def test_where_rows_have_no_lengths_or_are_not_padded_nothing_bends() -> None:
    assert told(Case(chain(Busy(1.0, by_length=1.0)), Machine(lanes(1)), 40, 4.0)).lanes["cpu:0"].bend == 0
    assert told(Case(chain(Attend(1.0)), Machine(lanes(1)), 40)).lanes["cpu:0"].bend == 0


def test_a_row_moves_with_its_bytes_over_the_slowest_link_between_planned_lanes() -> None:
    """20 bytes and 0.5 s of latency for a batch of 4, at 10 bytes a second: 2.125 s a row."""
    near, far, cuda = Device("cpu:0"), Device("cpu:1", share="far"), Device("cuda:0")
    links = {("host", "far"): Link(10.0, 0.5), ("host", "cuda:0"): Link(1e9, 0.0)}
    machine = Machine(tuple(Device(d.name, 1, profile(), share=d.share) for d in (near, far, cuda)), links)
    case = Case(chain(Busy(1.0), batch=4), machine, 40, nbytes=20.0)
    assert told(case).transfer == pytest.approx((0.5 + 80 / 10) / 4)


def test_between_lanes_of_one_memory_nothing_moves() -> None:
    assert told(Case(chain(Busy(1.0)), Machine(lanes(3)), 40, nbytes=20.0)).transfer == 0
    alone = Case(
        chain(Busy(1.0)), linked(*lanes(1), *lanes(1, kind="cuda")), 40, nbytes=20.0, at={"s0": ("cuda:0",)}
    )
    assert told(alone).transfer == 0


def test_a_group_moves_with_the_bytes_of_all_its_rows() -> None:
    machine = linked(*lanes(1), *lanes(1, kind="cuda"), bandwidth=10.0)
    assert told(Case(chain(One(1.0)), machine, 40, nbytes=20.0)).transfer == pytest.approx(40 * 20 / 10)


def test_a_lane_knows_the_way_to_it_from_where_the_step_before_is_planned() -> None:
    """20 bytes a row at 5 bytes a second."""
    machine = linked(*lanes(1), *lanes(1, kind="cuda"), bandwidth=5.0)
    for home, expected in (("cpu:0", (0.0, 4.0)), ("cuda:0", (4.0, 0.0))):
        case = Case(chain(Busy(nbytes=20.0), Busy(2.0)), machine, 40, at={"s0": (home,)})
        made = told(case, "s1").lanes
        assert (made["cpu:0"].link, made["cuda:0"].link) == expected
        assert made["cuda:0"].seconds(3) == 3 * (2.0 + expected[1])
