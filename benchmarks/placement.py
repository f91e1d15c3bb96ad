"""Whether the planner chooses well: against all static placements, and against people on this machine.

In the simulator, for every scenario of `benchmarks.scenarios`: the chosen plan, simulated in full, against
every static placement on every layout of the CPU, the gate of `pipeline.spaces` left aside. A step may be
on any set of lanes; where that is too many, on any set of groups of like lanes, or on the first or last of
a group; and where that is too many still, on any set of groups. Then the policies, alone and in pairs, on
the chosen plan, for several numbers of rows: what wins at one number only has won by chance.

With `--real`, on this CPU: the plan chosen for the demo against those that one would write by hand, in
paired runs, in float32, the answers checked equal first.

    python -m benchmarks.placement [--only SCENARIO] [--real] [--pairs 3]

Exits 0 only where every chosen plan is within 5 % of the best, found with at most a quarter of the
simulations, and no default policy costs more than 2 % anywhere.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import prod

from benchmarks.scenarios import Scenario, scenarios
from pipeline.candidates import Candidate
from pipeline.errors import PlanError
from pipeline.estimate import Estimates
from pipeline.machine import Device, layouts
from pipeline.plan import Plan
from pipeline.planner import Planned, Planner
from pipeline.planning import DEFAULT_POLICIES
from pipeline.policies import POLICIES
from pipeline.simulate import simulate
from pipeline.spaces import Choice, groups

SIZES = (0.25, 0.5, 1.0)
"""Shares of the rows for which policies are compared."""
WORST = 1.02
"""The most that a default policy may cost in any scenario."""
PAIRS = (
    ("ends", "guided"),
    ("lengths", "guided"),
    ("pack", "guided"),
    ("ends", "steal"),
    ("lengths", "steal"),
)
"""Policies that may help each other: one for how rows wait, one for which lanes take them."""
TARGET = 1.05
SHARE = 0.25
Names = tuple[str, ...]
MOST = 2500
"""Placements of a scenario that are simulated in full."""


@dataclass(frozen=True, slots=True)
class Static:
    """All placements of a scenario: what each was allowed, and seconds in full, the least first."""

    what: str
    count: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The chosen plan, in full, against all static ones."""

    seconds: float
    static: Static
    evaluations: float

    @property
    def ratio(self) -> float:
        """Chosen by best."""
        return self.seconds / self.static.seconds[0]

    @property
    def holds(self) -> bool:
        """Whether it is within 5 % of the best, with a quarter of the simulations."""
        return self.ratio <= TARGET and self.evaluations <= SHARE * self.static.count


def makespan(scenario: Scenario, plan: Plan, estimates: Estimates) -> float:
    """Simulated seconds with all rows."""
    return simulate(plan, estimates, scenario.metas).timeline.seconds


def judge(scenario: Scenario, planner: Planner, planned: Planned, most: int = MOST) -> Verdict:
    """The chosen plan against the best of all static placements."""
    chosen = makespan(scenario, planned.plan, planned.estimates)
    return Verdict(chosen, static(scenario, planner, most), planned.evaluations)


def static(scenario: Scenario, planner: Planner, most: int = MOST) -> Static:
    """Every placement that fits into memory, simulated in full."""
    what, spaces = _spaces(scenario, planner, most)
    found, count = [], 0
    for layout, choices in enumerate(spaces):
        for chosen in product(*choices):
            count += 1
            try:
                plan = planner.plan(Candidate(layout, chosen))
            except PlanError:
                continue  # it does not fit
            found.append(makespan(scenario, plan, planner.estimates(layout)))
    return Static(what, count, tuple(sorted(found)))


def _spaces(scenario: Scenario, planner: Planner, most: int) -> tuple[str, list[list[list[Choice]]]]:
    """The choices of every step on every layout, from the largest space that is small enough."""
    machines = list(enumerate(layouts(scenario.machine)))
    steps = [s.name for s in scenario.program.steps]
    able = [
        [[d for d in m.devices if planner.estimates(i).can_run(s, d)] for s in steps] for i, m in machines
    ]
    for what, rule in RULES.items():
        spaces = [[list(islice(rule(lanes), most + 1)) for lanes in layout] for layout in able]
        if sum(prod(map(len, choices)) for choices in spaces) <= most:
            return what, spaces
    raise ValueError(f"{scenario.name}: more than {most} placements of groups of lanes")


def _any(lanes: Sequence[Device]) -> Iterator[Choice]:
    for size in range(1, len(lanes) + 1):
        for found in combinations(lanes, size):
            yield tuple(d.name for d in found)


def _groups(lanes: Sequence[Device]) -> Iterator[Choice]:
    alike = groups(lanes)
    for size in range(1, len(alike) + 1):
        for found in combinations(alike, size):
            yield tuple(d.name for d in lanes if any(d in g for g in found))


def _groups_or_one(lanes: Sequence[Device]) -> Iterator[Choice]:
    yield from _groups(lanes)
    yield from ((g[at].name,) for g in groups(lanes) if len(g) > 1 for at in (0, -1))


RULES: Mapping[str, Callable[[Sequence[Device]], Iterator[Choice]]] = {
    "any lanes": _any,
    "any groups of like lanes, or one lane": _groups_or_one,
    "any groups of like lanes": _groups,
}
"""What a step may be placed on, the most first."""


def gains(scenario: Scenario, tried: Sequence[Names]) -> dict[Names, float]:
    """Makespan of the chosen plan under each of `tried`, by that without any policy."""
    planned = Planner(scenario.program, scenario.machine, scenario.flows).best()
    seconds = {
        p: makespan(scenario, replace(planned.plan, policies=p), planned.estimates) for p in ((), *tried)
    }
    return {p: seconds[p] / seconds[()] for p in tried}


def tell_static(found: Sequence[Scenario]) -> bool:
    """Print how the plans compare; whether the targets hold for all."""
    held = []
    for s in found:
        planner = Planner(s.program, s.machine, s.flows)
        v = judge(s, planner, planner.best())
        held.append(v.holds)
        print(
            f"{s.name}: {v.seconds:.2f} s, best of {v.static.count} placements ({v.static.what}) "
            f"{v.static.seconds[0]:.2f} s, ratio {v.ratio:.3f}; {v.evaluations:.1f} simulations used"
            f"{'' if v.holds else ': does not hold'}",
            flush=True,
        )
    return all(held)


def tell_policies(found: Sequence[Scenario]) -> bool:
    """Print the worst of each scenario's sizes, and the mean of all; whether the defaults cost nothing."""
    tried = list(dict.fromkeys([*((name,) for name in sorted(POLICIES)), *PAIRS, DEFAULT_POLICIES]))
    cases = [[gains(s.shrunk(share), tried) for share in SIZES] for s in found]
    print(f"\nmakespan under a policy by that without: best and worst of {len(SIZES)} sizes, mean of all")
    for number, s in enumerate(found):
        print(f"  {number + 1}: {s.name}")
    print(" " * 16, *(f"{n + 1:>9}" for n in range(len(found))), "  worst   mean")
    for names in tried:
        each = [[case[names] for case in sizes] for sizes in cases]
        values = [v for sizes in each for v in sizes]
        cells = [
            f"{min(v):4.2f}-{max(v):4.2f}" if max(v) - min(v) + abs(v[0] - 1) > 1e-3 else "=" for v in each
        ]
        mark = " <- default" if names == DEFAULT_POLICIES else ""
        line = " ".join(f"{c:>9}" for c in cells)
        print(
            f"{'+'.join(names) or '(none)':16} {line} {max(values):7.3f} {statistics.mean(values):6.3f}{mark}"
        )
    return max(case[DEFAULT_POLICIES] for sizes in cases for case in sizes) <= WORST


def main() -> int:
    """Compare, print, and say whether the targets hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    parser.add_argument("--real", action="store_true", help="the demo on this machine, instead of scenarios")
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    if given.real:
        from benchmarks.demo_plans import tell_real

        holds = tell_real(given.pairs, TARGET)
    else:
        found = [s for s in scenarios() if given.only in s.name]
        holds = tell_static(found)
        holds = tell_policies(found) and holds
    print(
        f"the planner's choice {'holds' if holds else 'does not hold'}: within {TARGET - 1:.0%} of the best"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
