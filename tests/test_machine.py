"""Devices, links and the ways of dividing a CPU into lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.machine import (
    ASSUMED,
    HOST,
    MAX_LAYOUTS,
    NOMINAL,
    Device,
    Link,
    Machine,
    cores,
    detect,
    layouts,
)
from pipeline.profiles import scaled

GPU = replace(NOMINAL, bandwidth=1e12)


def cpu(threads: int, ids: tuple[int, ...] = ()) -> Machine:
    profile = replace(NOMINAL, idle_watts=30, price=0.4)
    return Machine((Device("cpu:0", threads, profile, ids), Device("cuda:0", 1, GPU)))


# what a machine is


def test_a_value_stays_in_its_pool_for_nothing_and_goes_by_links_elsewhere() -> None:
    a, b, c = Device("cpu:0"), Device("cpu:1"), Device("cuda:0")
    machine = Machine((a, b, c), {(HOST, "cuda:0"): Link(1e9, 0.5)})
    assert machine.seconds(a, b, 1e9) == 0
    assert machine.seconds(a, c, 1e9) == machine.seconds(c, a, 1e9) == 1.5


def test_two_devices_without_a_link_go_through_the_host() -> None:
    machine = Machine((Device("cuda:0"), Device("cuda:1")), {(HOST, "cuda:0"): Link(1e9, 0.5)})
    assert machine.path("cuda:0", "cuda:1") == (Link(1e9, 0.5), ASSUMED)


def test_the_source_of_a_link_does_not_make_it_another() -> None:
    assert Link(1e9, 0, "measured: here") == Link(1e9, 0)


def test_a_link_to_nowhere_is_an_error_with_the_near_miss() -> None:
    with pytest.raises(PlanError, match="did you mean 'cuda:0'"):
        Machine((Device("cuda:0"),), {(HOST, "cuda0"): ASSUMED})


def test_devices_with_one_name_are_an_error() -> None:
    with pytest.raises(PlanError, match="distinct"):
        Machine((Device("cpu:0"), Device("cpu:0")))


def test_this_machine_has_one_lane_with_the_cores_that_may_be_used() -> None:
    lane = detect().lanes[0]
    assert lane.threads == len(lane.cores) == cores()


# lanes by their number of threads


def measured(*threads: int) -> Machine:
    curve = {n: replace(NOMINAL, bandwidth=1e9 * n**0.5, memory=8e9) for n in threads}
    return replace(cpu(max(threads)), by_threads=curve)


def test_a_lane_of_a_measured_width_delivers_what_was_measured() -> None:
    machine = measured(1, 2, 4)
    assert machine.lane_profile(2) is machine.by_threads[2]


def test_between_two_measured_widths_a_lane_lies_between_them() -> None:
    assert measured(1, 4).lane_profile(2).bandwidth == pytest.approx(1e9 * (1 + 1 / 3))


@pytest.mark.parametrize(("threads", "bandwidth"), [(1, 1e9 * 2**0.5 / 2), (8, 4e9)])
def test_beyond_what_was_measured_a_lane_is_in_proportion(threads: int, bandwidth: float) -> None:
    found = measured(2, 4).lane_profile(threads)
    assert found.bandwidth == pytest.approx(bandwidth)
    assert found.memory == 8e9


def test_where_nobody_measured_a_lane_has_its_share_of_the_first() -> None:
    machine = cpu(8)
    assert machine.lane_profile(2).peaks == scaled(NOMINAL, 0.25, "").peaks
    assert machine.lane_profile(8) is machine.lanes[0].profile


def test_a_machine_without_a_cpu_has_no_lane_to_divide() -> None:
    with pytest.raises(PlanError, match="no CPU lane"):
        Machine((Device("cuda:0"),)).lane_profile(1)


# layouts


@pytest.mark.parametrize(
    ("threads", "lanes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (6, [1, 2, 3, 6]),
        (7, [1, 7]),
        (16, [1, 2, 4, 8, 16]),
        (64, [1, 2, 4, 16, 32, 64]),
    ],
)
def test_the_cpu_is_divided_into_equal_lanes(threads: int, lanes: list[int]) -> None:
    assert [len(m.lanes) for m in layouts(cpu(threads))] == lanes


@given(st.integers(1, 256))
def test_lanes_share_all_cores_out_and_name_none_twice(threads: int) -> None:
    ids = tuple(range(100, 100 + threads))
    found = layouts(cpu(threads, ids))
    assert 1 <= len(found) <= MAX_LAYOUTS
    for machine in found:
        assert sorted(core for d in machine.lanes for core in d.cores) == list(ids)
        assert {d.threads for d in machine.lanes} == {threads // len(machine.lanes)}
        assert machine.device("cuda:0").profile is GPU


@given(st.integers(1, 64))
def test_power_and_price_of_all_lanes_are_those_of_the_cpu(threads: int) -> None:
    for machine in layouts(cpu(threads)):
        assert sum(d.profile.idle_watts for d in machine.lanes) == pytest.approx(30)
        assert sum(d.profile.price for d in machine.lanes) == pytest.approx(0.4)


@given(st.integers(1, 64))
def test_lanes_that_share_cores_are_a_wide_one_beside_each_division(threads: int) -> None:
    plain, both = layouts(cpu(threads)), layouts(cpu(threads), shared=True)
    assert both[: len(plain)] == plain
    assert len(both) == 2 * len(plain) - 1
    for machine, parts in zip(both[len(plain) :], plain[1:], strict=True):
        wide, *narrow = machine.lanes
        assert wide.cores == plain[0].lanes[0].cores
        assert [(d.cores, d.profile) for d in narrow] == [(d.cores, d.profile) for d in parts.lanes]
        assert machine.device("cuda:0").profile is GPU
        assert sum(d.profile.price for d in machine.lanes) == pytest.approx(0.4)
        assert len(machine.crowds) == len(narrow)


def test_crowds_are_the_lanes_at_each_core_that_several_have() -> None:
    lanes = (
        Device("cpu:0", 3, cores=(0, 1, 2)),
        Device("cpu:1", 2, cores=(0, 1)),
        Device("cpu:2", cores=(3,)),
    )
    assert Machine(lanes).crowds == (("cpu:0", "cpu:1"),)
    assert cpu(4, (0, 1, 2, 3)).crowds == ()


def test_lanes_that_share_cores_stay_as_they_were_declared() -> None:
    machine = layouts(cpu(4), shared=True)[-1]
    assert layouts(machine) == (machine,)


def test_lanes_that_were_divided_can_be_divided_again() -> None:
    once = layouts(cpu(8))[2]
    again = layouts(once)
    assert [len(m.lanes) for m in again] == [1, 2, 4, 8]
    assert again[0].lanes[0].profile == cpu(8).lanes[0].profile


def test_links_and_the_measured_curve_outlive_a_division() -> None:
    machine = replace(measured(1, 2), links={(HOST, "cuda:0"): ASSUMED})
    for found in layouts(machine):
        assert (found.links, found.by_threads) == (machine.links, machine.by_threads)


def test_a_machine_without_a_cpu_has_one_layout() -> None:
    machine = Machine((Device("cuda:0"),))
    assert layouts(machine) == (machine,)
