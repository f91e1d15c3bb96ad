from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from pipeline.errors import PlanError
from pipeline.graph import Graph, node
from pipeline.machine import Device, Machine, cores
from pipeline.plan import Plan, place
from pipeline.program import flatten
from tests.toys import Fan, Numbers, Plus, Total

CPU = Machine((Device("cpu:0", 4),))
CUDA = Machine((Device("cpu:0", 4), Device("cuda:0"), Device("cuda:1")))


@dataclass(frozen=True, slots=True)
class Heavy:
    """Gains from an accelerator."""

    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 7

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def plan(stage: Any, machine: Machine, **options: Any) -> Plan:
    graph = Graph({"docs": Numbers}, (node("s", stage, a="docs", **options),), {"out": "s"})
    return place(flatten(graph), machine)


def test_what_gains_from_an_accelerator_runs_on_all_of_them() -> None:
    assert plan(Heavy(), CUDA).placements["s"].devices == ("cuda:0", "cuda:1")


def test_without_an_accelerator_it_runs_on_the_cpu() -> None:
    assert plan(Heavy(), CPU).placements["s"].devices == ("cpu:0",)


def test_everything_else_stays_on_the_cpu() -> None:
    assert plan(Plus(), CUDA).placements["s"].devices == ("cpu:0",)


def test_a_cluster_of_accelerators_alone_runs_everything() -> None:
    machine = Machine((Device("cuda:0"), Device("cuda:1")))
    assert plan(Plus(), machine).placements["s"].devices == ("cuda:0", "cuda:1")


def test_a_pinned_step_runs_where_it_is_pinned() -> None:
    assert plan(Plus(), CUDA, device="cuda:1").placements["s"].devices == ("cuda:1",)
    assert plan(Heavy(), CUDA, device="cpu:0").placements["s"].devices == ("cpu:0",)


def test_a_device_that_is_not_there_is_refused_before_the_run() -> None:
    with pytest.raises(PlanError, match="step 's' is pinned to device 'cuda:0': no device 'cuda:0' on this"):
        plan(Heavy(), CPU, device="cuda:0")


def test_a_device_that_is_nearly_there_is_proposed() -> None:
    with pytest.raises(PlanError, match="did you mean 'cuda:1'"):
        plan(Heavy(), Machine((Device("cpu:0"), Device("cuda:1"))), device="cuda1")


def test_the_batch_is_the_nodes_else_the_stages_else_64() -> None:
    assert plan(Heavy(), CPU, batch=3).placements["s"].batch == 3
    assert plan(Heavy(), CPU).placements["s"].batch == 7
    assert plan(Plus(), CPU).placements["s"].batch == 64


def test_a_gathering_step_takes_a_group_at_a_time() -> None:
    nodes = (node("f", Fan(), a="docs"), node("t", Total(1), a="f"))
    made = place(flatten(Graph({"docs": Numbers}, nodes, {"out": "t"})), CPU)
    assert made.placements["t"].batch == 1
    assert made.table()[1] == ("t", "cpu:0 (4 threads)", "1")


def test_the_table_shows_devices_threads_and_batches() -> None:
    assert plan(Plus(), CPU).table() == [("s", "cpu:0 (4 threads)", "64")]
    assert plan(Heavy(), CUDA).table() == [("s", "cuda:0 (1 threads), cuda:1 (1 threads)", "7")]


def test_one_lane_owns_all_cores_that_the_process_may_use() -> None:
    assert cores() == len(os.sched_getaffinity(0)) <= (os.cpu_count() or 1)


def test_a_machine_needs_devices_with_distinct_names() -> None:
    with pytest.raises(PlanError, match="devices with distinct names"):
        Machine((Device("cpu:0"), Device("cpu:0")))
    with pytest.raises(PlanError, match="devices with distinct names"):
        Machine(())
