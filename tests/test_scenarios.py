"""The shipped scenarios, with fewer rows: the planner chooses well, and no policy loses a row."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.placement import TARGET, WORST, gains, judge, static
from benchmarks.scenarios import Scenario, pareto, scenarios
from pipeline.machine_file import shipped
from pipeline.planner import Planned, Planner
from pipeline.planning import DEFAULT_POLICIES
from pipeline.policies import POLICIES
from pipeline.simulate import Simulated, simulate

SCENARIOS = {s.name: s for s in scenarios()}
FEW = ("skewed pages", "many rounds", "big + small GPU")


def planner(scenario: Scenario) -> Planner:
    return Planner(scenario.program, scenario.machine, scenario.flows)


def simulated(scenario: Scenario, planned: Planned, *policies: str) -> Simulated:
    return simulate(replace(planned.plan, policies=policies), planned.estimates, scenario.metas)


def rows(found: Simulated) -> Counter[str]:
    """Rows that each step processed."""
    counts: Counter[str] = Counter()
    for span in found.timeline.spans:
        counts[span.step] += span.rows
    return counts


@pytest.fixture(scope="module", params=FEW)
def small(request: pytest.FixtureRequest) -> tuple[Scenario, Planned]:
    scenario = SCENARIOS[request.param].shrunk(0.1)
    return scenario, planner(scenario).best()


def test_there_are_six_kinds_of_machines_and_more() -> None:
    machines = {s.machine_name for s in SCENARIOS.values()}
    assert len(SCENARIOS) >= 6
    assert machines <= set(shipped())
    assert {"cpu-16", "cpu-gpu", "big-small", "cheap-large", "slow-link"} <= machines


@pytest.mark.parametrize(("name", "share"), [("skewed pages", 0.5), ("slow link", 0.1)])
def test_the_chosen_plan_is_near_the_best_of_all_static_placements(name: str, share: float) -> None:
    scenario = SCENARIOS[name].shrunk(share)
    choosing = planner(scenario)
    found = judge(scenario, choosing, choosing.best())
    assert found.ratio <= TARGET
    assert found.holds


def test_static_placements_are_those_of_lanes_of_groups_or_of_whole_groups() -> None:
    scenario = SCENARIOS["skewed pages"].shrunk(0.02)
    choosing = planner(scenario)
    few = static(scenario, choosing, most=40)
    more = static(scenario, choosing, most=200)
    assert few.what == "any groups of like lanes"
    assert few.count == 5 * 7  # layouts; one group for `write`, any of three for `encode`
    assert more.count == 7 + 4 * 3 * 9
    assert more.seconds[0] <= few.seconds[0]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_keeps_every_row(small: tuple[Scenario, Planned], policy: str) -> None:
    scenario, planned = small
    assert rows(simulated(scenario, planned, policy)) == rows(simulated(scenario, planned))


def test_default_policies_cost_nothing(small: tuple[Scenario, Planned]) -> None:
    assert gains(small[0], [DEFAULT_POLICIES])[DEFAULT_POLICIES] <= WORST


def test_a_gain_is_that_over_no_policy() -> None:
    """Where lengths are skewed, how rows wait decides the makespan, and by no fixed sign."""
    found = gains(SCENARIOS["skewed pages"].shrunk(0.5), [(), ("lengths",)])
    assert found[()] == 1.0
    assert found["lengths",] != 1.0


def test_the_planner_beats_all_lanes_of_a_machine_with_a_slow_link() -> None:
    """Moving pages over the link costs more than the accelerator saves on them."""
    scenario = SCENARIOS["slow link"]
    planned = planner(scenario).best()
    assert any(d.startswith("cpu") for d in planned.plan.placements["encode"].devices)
    assert planned.plan.placements["decode"].devices == ("cuda:0",)


def test_lengths_are_heavy_tailed_and_the_same_each_time() -> None:
    found = pareto(200, 300, 1.2, 60_000)
    assert found == pareto(200, 300, 1.2, 60_000)
    assert min(found) >= 300
    assert max(found) <= 60_000
    assert sum(sorted(found)[-20:]) > 0.4 * sum(found)
