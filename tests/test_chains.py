"""The planner of chains is exact: equal to trying every placement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.chains import MOST_DEVICES, Chain, Chained, Objective, Short, place_chain, shortage
from pipeline.errors import PlanError

Run = tuple[int, int, int]
OBJECTIVES: tuple[Objective, ...] = ("bottleneck", "latency")
numbers = st.integers(0, 20).map(float)
some_infinite = st.one_of(numbers, numbers, numbers, st.just(math.inf))


def block(values: st.SearchStrategy[float], *shape: int) -> st.SearchStrategy[tuple[object, ...]]:
    """Nested tuples of a shape."""
    inner = block(values, *shape[1:]) if len(shape) > 1 else values
    return st.tuples(*[inner] * shape[0])


@st.composite
def chains(draw: st.DrawFn, most: int = 5, links: st.SearchStrategy[float] = some_infinite) -> Chain:
    n, m = draw(st.integers(1, most)), draw(st.integers(1, 4))
    return Chain(
        draw(block(some_infinite, n, m)),  # type: ignore[arg-type]
        draw(block(numbers, n)),  # type: ignore[arg-type]
        draw(block(st.integers(0, 60).map(float), m)),  # type: ignore[arg-type]
        draw(block(links, n - 1, m, m)) if n > 1 else (),  # type: ignore[arg-type]
    )


def every(chain: Chain) -> Iterator[list[Run]]:
    """All ways to divide the stages into runs, on distinct devices in any order."""
    n, m = len(chain.memory), len(chain.capacity)
    for count in range(1, min(n, m) + 1):
        for cuts in itertools.combinations(range(1, n), count - 1):
            bounds = [0, *cuts, n]
            for devices in itertools.permutations(range(m), count):
                yield list(zip(devices, bounds, bounds[1:], strict=False))


def parts(chain: Chain, runs: list[Run]) -> list[float]:
    """Seconds of every run and every link."""
    found = [sum(chain.seconds[k][u] for k in range(i, j)) for u, i, j in runs]
    return found + [chain.links[i - 1][a][b] for (a, _, _), (b, i, _) in itertools.pairwise(runs)]


def lack(chain: Chain, runs: list[Run]) -> float:
    return sum(max(0.0, sum(chain.memory[i:j]) - chain.capacity[u]) for u, i, j in runs)


def brute(chain: Chain, objective: Objective) -> float:
    join = max if objective == "bottleneck" else sum
    values = [join(parts(chain, runs)) for runs in every(chain) if not lack(chain, runs)]
    return min(values, default=math.inf)


def value(chain: Chain, objective: Objective) -> float:
    """What the planner reaches; infinite where it refuses."""
    try:
        found = place_chain(chain, objective)
    except PlanError:
        return math.inf
    return found.bottleneck if objective == "bottleneck" else found.latency


def runs_of(found: Chained) -> list[Run]:
    starts = [i for i, u in enumerate(found.devices) if not i or found.devices[i - 1] != u]
    ends = [*starts[1:], len(found.devices)]
    return [(found.devices[i], i, j) for i, j in zip(starts, ends, strict=True)]


@given(chains(), st.sampled_from(OBJECTIVES))
def test_no_placement_is_better(chain: Chain, objective: Objective) -> None:
    assert value(chain, objective) == brute(chain, objective)


@given(chains(), st.sampled_from(OBJECTIVES))
def test_the_placement_is_possible_and_takes_what_is_said(chain: Chain, objective: Objective) -> None:
    assume(math.isfinite(brute(chain, objective)))
    found = place_chain(chain, objective)
    runs = runs_of(found)
    assert len({u for u, _, _ in runs}) == len(runs)
    assert lack(chain, runs) == 0
    assert (found.bottleneck, found.latency) == (max(parts(chain, runs)), sum(parts(chain, runs)))


@given(chains())
def test_of_equal_bottlenecks_the_smallest_latency_is_taken(chain: Chain) -> None:
    best = brute(chain, "bottleneck")
    assume(math.isfinite(best))
    possible = [parts(chain, runs) for runs in every(chain) if not lack(chain, runs)]
    assert place_chain(chain).latency == min(sum(p) for p in possible if max(p) == best)


@given(chains(), st.sampled_from(OBJECTIVES), st.data())
def test_one_more_device_never_makes_it_worse(
    chain: Chain, objective: Objective, data: st.DataObject
) -> None:
    m = len(chain.capacity)
    wider = Chain(
        tuple((*row, data.draw(some_infinite)) for row in chain.seconds),
        chain.memory,
        (*chain.capacity, data.draw(numbers)),
        tuple(
            (*((*row, data.draw(numbers)) for row in cut), tuple(data.draw(numbers) for _ in range(m + 1)))
            for cut in chain.links
        ),
    )
    assert value(wider, objective) <= value(chain, objective)


@given(chains())
def test_what_binds_takes_the_seconds_of_the_bottleneck(chain: Chain) -> None:
    assume(math.isfinite(brute(chain, "bottleneck")))
    found = place_chain(chain)
    kind, at = found.bound_by
    if kind == "link":
        taken = chain.links[at][found.devices[at]][found.devices[at + 1]]
    else:
        taken = sum(row[u] for row, u in zip(chain.seconds, found.devices, strict=True) if u == at)
    assert taken == found.bottleneck


TWO = Chain(
    seconds=((4.0, 1.0), (2.0, 6.0), (2.0, 6.0)),
    memory=(1.0, 1.0, 1.0),
    capacity=(3.0, 1.0),
    links=(((0.0, 1.0), (1.0, 0.0)),) * 2,
    stages=("embed", "rerank", "answer"),
    devices=("cuda:0", "cpu:0"),
)


def test_a_pipeline_is_divided_where_its_slowest_part_is_fastest() -> None:
    assert place_chain(TWO) == Chained((1, 0, 0), 4.0, 6.0, ("device", 0))


def test_a_slow_link_keeps_the_stages_together() -> None:
    slow = replace(TWO, links=(((0.0, 9.0), (9.0, 0.0)),) * 2)
    assert place_chain(slow).devices == (0, 0, 0)


def test_a_slow_link_that_must_be_used_is_the_bottleneck() -> None:
    slow = replace(TWO, links=(((0.0, 9.0), (9.0, 0.0)),) * 2, capacity=(2.0, 1.0))
    assert place_chain(slow) == Chained((1, 0, 0), 9.0, 14.0, ("link", 0))


def test_the_objectives_differ() -> None:
    chain = replace(TWO, seconds=((3.0, 4.0), (3.0, 6.0), (3.0, 6.0)))
    assert place_chain(chain, "bottleneck").devices == (1, 0, 0)
    assert place_chain(chain, "latency").devices == (0, 0, 0)


def test_reaching_farther_is_not_always_better() -> None:
    """Device 0 could take two stages within the bottleneck, but from there on the link is slow."""
    chain = Chain(
        seconds=((1.0, math.inf), (1.0, 1.0), (math.inf, 1.0)),
        memory=(0.0, 0.0, 0.0),
        capacity=(1.0, 1.0),
        links=(((0.0, 1.0), (1.0, 0.0)), ((0.0, 9.0), (9.0, 0.0))),
    )
    assert place_chain(chain) == Chained((0, 1, 1), 2.0, 4.0, ("device", 1))


def test_of_placements_as_good_the_one_with_fewer_devices_is_taken() -> None:
    chain = Chain(((0.0,) * 3,) * 4, (1.0,) * 4, (2.0, 2.0, 4.0), (((0.0,) * 3,) * 3,) * 3)
    assert place_chain(chain).devices == (2, 2, 2, 2)


def test_forty_stages_on_eight_devices_are_divided_evenly() -> None:
    """All alike: the optimum is known, five stages each, and links cost nothing."""
    chain = Chain(((1.0,) * 8,) * 40, (1.0,) * 40, (5.0,) * 8, (((0.0,) * 8,) * 8,) * 39)
    found = place_chain(chain)
    assert (found.bottleneck, found.latency) == (5.0, 40.0)


# what does not fit


@given(chains(4, numbers))
def test_the_shortage_is_the_fewest_bytes_that_help(chain: Chain) -> None:
    possible = [lack(chain, runs) for runs in every(chain) if math.isfinite(max(parts(chain, runs)))]
    assume(possible)
    short = shortage(chain)
    assert sum(s.nbytes for s in short) == min(possible)
    more = {s.device: s.nbytes for s in short}
    place_chain(replace(chain, capacity=tuple(c + more.get(u, 0) for u, c in enumerate(chain.capacity))))


def test_a_stage_that_fits_nowhere_is_named_with_the_bytes_that_would_help() -> None:
    chain = replace(TWO, memory=(1.0, 1.0, float(3 << 30)), capacity=(float(1 << 30), float(2 << 30)))
    assert shortage(chain) == (Short(1, (2, 2), float(1 << 30)),)
    with pytest.raises(PlanError, match=r"1.0 GiB \(1073741824 bytes\) more on cpu:0, for 'answer'"):
        place_chain(chain, "latency")


def test_stages_that_fit_only_one_by_one_are_named_together() -> None:
    with pytest.raises(PlanError, match=r"1 bytes\) more on cuda:0, for 'rerank' to 'answer'"):
        place_chain(replace(TWO, capacity=(1.0, 1.0)))


def test_a_stage_that_no_device_can_run_is_named() -> None:
    nowhere = replace(TWO, seconds=(TWO.seconds[0], (math.inf, math.inf), TWO.seconds[2]))
    with pytest.raises(PlanError, match="'rerank' can run on none of the devices cuda:0, cpu:0"):
        place_chain(nowhere)


def test_a_stage_that_would_need_its_device_a_second_time_is_named() -> None:
    back = replace(TWO, seconds=((1.0, math.inf), (math.inf, 1.0), (1.0, math.inf)))
    with pytest.raises(PlanError, match="'answer' cannot run behind the stages before it"):
        place_chain(back)


def test_stages_without_names_are_numbered() -> None:
    with pytest.raises(PlanError, match="stage 1 can run on none of the devices device 0"):
        place_chain(Chain(((1.0,), (math.inf,)), (0.0, 0.0), (1.0,), (((0.0,),),)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seconds": ((1.0, 1.0),)}, r"seconds of a chain must be of shape \(3, 2\), found \(1, 2\)"),
        ({"links": ()}, r"links of a chain must be of shape \(2, 2, 2\), found \(0,\)"),
        ({"capacity": (1.0, -1.0)}, "capacity of a chain must be numbers of 0 or more"),
        ({"seconds": ((1.0, math.nan),) * 3}, "seconds of a chain must be numbers of 0 or more"),
        ({"memory": (1.0, math.inf, 1.0)}, "'rerank' cannot keep endless bytes"),
        ({"memory": ()}, "1 or more stages"),
        ({"capacity": (1.0,) * (MOST_DEVICES + 1)}, f"1 to {MOST_DEVICES} devices, found 3 and"),
    ],
)
def test_numbers_that_are_no_chain_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        replace(TWO, **change)  # type: ignore[arg-type]
