"""What stages choose by themselves is told with the plan, once for each kind of lane that it uses."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.choices import choices
from pipeline.gates import Decision
from pipeline.graph import Graph, node
from pipeline.machine import Device, Machine
from pipeline.planner import Planned, Planner
from pipeline.program import flatten
from pipeline.reasons import reasons
from pipeline.roofline import Cost, Flow, Work
from tests.costed import Busy, lanes, linked
from tests.toys import Numbers


@dataclass(frozen=True, slots=True)
class Choosy:
    """As much work as `Busy`, in one of two ways."""

    def cost(self, work: Work) -> Cost:
        return Busy().cost(work)

    def choices(self, device: Device) -> tuple[Decision, ...]:
        return (Decision("way", device.kind, f"on {device.name} that is faster", {}),)

    def run(self, state: None, a: Numbers) -> Numbers:
        return a


def planned(machine: Machine) -> Planned:
    nodes = (node("plain", Busy(), a="rows"), node("s", Choosy(), a="plain"))
    graph = Graph({"rows": Numbers}, nodes, {"out": "s"})
    return Planner(flatten(graph), machine, {"rows": Flow(40, 0.0, 1.0)}, divide=False).best()


def test_a_step_says_what_it_would_do_on_its_lane() -> None:
    found = planned(linked(*lanes(1)))
    (told,) = choices(found)
    assert (told.what, told.chosen, told.why) == ("way of s", "cpu", "s: on cpu:0 that is faster")
    assert told in reasons(found)


def test_lanes_of_a_kind_are_told_once() -> None:
    found = planned(linked(*lanes(3)))
    kinds = {name.partition(":")[0] for name in found.plan.placements["s"].devices}
    assert [d.chosen for d in choices(found)] == sorted(kinds)
