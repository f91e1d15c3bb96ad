from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.policies.deadline import Recurring, Segment, admit, fewest, response


def tasks(*found: tuple[float, float], on: str = "cpu") -> list[Recurring]:
    """Recurring work from (seconds, period)."""
    return [Recurring(on, c, t) for c, t in found]


class Clock:
    """Recurring work tick by tick; without `luck` all starts at once and takes its worst case."""

    def __init__(self, others: list[Recurring], luck: random.Random | None) -> None:
        self.others, self.luck = others, luck
        self.began = luck.randrange(30) if luck else 0
        self.release = [luck.randrange(30) if luck else 0 for _ in others]
        self.todo = [0.0] * len(others)

    def start(self, now: int) -> None:
        for i, o in enumerate(self.others):
            if now == self.release[i]:
                self.todo[i] += self.luck.randint(0, int(o.seconds)) if self.luck else o.seconds
                self.release[i] += int(o.period) + (self.luck.randrange(3) if self.luck else 0)

    def urgent(self, resource: str) -> list[int]:
        return [i for i, o in enumerate(self.others) if o.resource == resource and self.todo[i]]

    def work(self, resources: set[str]) -> None:
        for found in filter(None, map(self.urgent, resources)):
            self.todo[found[0]] -= 1


def simulate(segments: list[Segment], others: list[Recurring], luck: random.Random | None) -> int:
    """How long a job takes, below urgent work and after a blocking piece where one could start."""
    clock, resources = Clock(others, luck), {"cpu", "link", "gpu"}
    for before in range(clock.began):
        clock.start(before)
        clock.work(resources)
    now = clock.began
    for s in segments:
        clock.start(now)
        blocking = 0.0 if luck and clock.urgent(s.resource) else s.blocking
        left = s.seconds[0]
        while left:
            clock.start(now)
            free = not blocking and not clock.urgent(s.resource)
            clock.work(resources - {s.resource} if blocking else resources)
            blocking, left, now = max(0.0, blocking - 1), left - free, now + 1
    return now - clock.began


@pytest.mark.parametrize(
    ("seconds", "others", "expected"),
    [
        # Burns and Wellings, Real-Time Systems and Programming Languages: (C, T) = (3, 7), (3, 12), (5, 20)
        (3, [], 3),
        (3, [(3, 7)], 6),
        (5, [(3, 7), (3, 12)], 20),
        # the same book: (5, 20), (10, 40), (40, 80)
        (10, [(5, 20)], 15),
        (40, [(5, 20), (10, 40)], 80),
        # Lehoczky, Sha, Ding 1989: (40, 100), (40, 150), (100, 350)
        (40, [(40, 100)], 80),
        (100, [(40, 100), (40, 150)], 300),
    ],
)
def test_the_response_times_of_the_textbooks(
    seconds: float, others: list[tuple[float, float]], expected: float
) -> None:
    assert response(seconds, tasks(*others)) == expected


def test_blocking_counts_once() -> None:
    assert response(3, tasks((3, 7)), blocking=1) == 7
    assert response(3, tasks((3, 7)), blocking=2) == 11


def test_work_below_a_full_lane_never_ends() -> None:
    assert math.isinf(response(1, tasks((1, 2), (2, 4))))
    assert response(0, tasks((1, 2), (2, 4))) == 0


def test_a_nearly_full_lane_gets_a_safe_bound() -> None:
    found = response(1.0, tasks((1.0, 1.0 + 1e-9)))
    assert 1e9 < found < 3e9  # R - ceil(R / T) C = 1 first where R = 1e9 or so


some = st.builds(Recurring, st.sampled_from(["cpu", "link"]), st.integers(1, 4), st.integers(4, 15))
small = st.lists(some, max_size=4).filter(
    lambda found: all(
        sum(o.seconds / o.period for o in found if o.resource == r) < 0.95 for r in ("cpu", "link")
    )
)
jobs = st.lists(
    st.builds(
        Segment,
        name=st.sampled_from(["parse", "copy", "encode"]),
        resource=st.sampled_from(["cpu", "link", "gpu"]),
        seconds=st.tuples(st.integers(1, 6)),
        blocking=st.sampled_from([0, 0, 3]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 9), small, st.sampled_from([0, 2]))
def test_the_response_time_is_that_of_the_worst_moment(
    seconds: int, others: list[Recurring], blocking: int
) -> None:
    others = [o for o in others if o.resource == "cpu"]
    job = [Segment("parse", "cpu", (seconds,), blocking)]
    assert response(seconds, others, blocking) == simulate(job, others, None)


@settings(max_examples=300, deadline=None)
@given(jobs, small, st.integers(1, 60), st.integers(0, 10**6))
def test_a_job_that_was_admitted_never_misses_its_deadline(
    job: list[Segment], others: list[Recurring], deadline: int, seed: int
) -> None:
    found = admit(deadline, job, others)
    took = simulate(job, others, random.Random(seed))
    assert took <= found.seconds
    assert not found.ok or took <= deadline


def test_segments_on_lanes_of_their_own_take_their_worst_case() -> None:
    job = [
        Segment("encode", "gpu", (5.0,)),
        Segment("parse", "cpu", (3.0,)),
        Segment("answer", "gpu", (2.0,)),
    ]
    found = admit(13, job, tasks((3, 7)))
    assert (found.ok, found.seconds, found.binding) == (True, 5 + 6 + 2, "parse")
    assert "needs 13 s at worst, has 13 s; segment 'parse' takes 6 s" in found.why


def test_the_fewest_lanes_that_meet_the_deadline_are_granted() -> None:
    job = [Segment("encode", "gpu", (8.0, 4.5, 3.0, 2.5)), Segment("parse", "cpu", (3.0, 2.0))]
    free = {"gpu": 4, "cpu": 2}
    assert [dict(admit(d, job, free=free).lanes) for d in (11, 10, 7.5, 5)] == [
        {"gpu": 1, "cpu": 1},
        {"gpu": 2, "cpu": 1},
        {"gpu": 2, "cpu": 1},
        {"gpu": 3, "cpu": 2},
    ]


def test_lanes_beyond_what_a_segment_can_use_bring_it_nothing() -> None:
    job = [Segment("encode", "gpu", (8.0, 4.0)), Segment("rank", "gpu", (2.0,))]
    assert admit(6, job, free={"gpu": 9}) == admit(6, job, free={"gpu": 2})
    assert admit(6, job, free={"gpu": 9}).ok


def test_a_shared_resource_is_one_lane() -> None:
    found = admit(5, [Segment("parse", "cpu", (5.0, 2.0))], tasks((1, 10)), free={"cpu": 2})
    assert (found.ok, found.seconds, dict(found.lanes)) == (False, 6, {"cpu": 1})


options = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1
)


@given(options, st.integers(0, 60))
def test_the_lanes_are_those_of_a_search_of_the_grid(found: dict[str, list[float]], deadline: int) -> None:
    grid = [
        (sum(found[r][n - 1] for r, n in zip(found, ns, strict=True)), sum(ns))
        for ns in itertools.product(*(range(1, len(s) + 1) for s in found.values()))
    ]
    meets = [(lanes, seconds) for seconds, lanes in grid if seconds <= deadline]
    seconds, lanes = fewest(deadline, found)
    assert seconds == sum(found[r][n - 1] for r, n in lanes.items())
    if meets:
        assert (sum(lanes.values()), seconds) == min(meets)
    else:
        assert (seconds, sum(lanes.values())) == min(grid)


def test_a_rejection_names_the_binding_segment_and_a_deadline_that_would_do() -> None:
    job = [Segment("parse", "cpu", (3.0,)), Segment("encode", "gpu", (8.0,))]
    found = admit(10, job, [])
    assert found.binding == "encode"
    assert (
        found.why == "needs 11 s at worst, has 10 s; segment 'encode' takes 8 s; would do: a deadline of 11 s"
    )
    assert admit(11, job).ok


def test_a_rejection_says_how_many_more_lanes_would_do() -> None:
    job = [Segment("encode", "gpu", (8.0, 4.0, 3.0)), Segment("parse", "cpu", (3.0, 2.0))]
    assert admit(6.5, job, [], free={"gpu": 2}).why.endswith("a deadline of 7 s, or 1 more of 'cpu'")
    assert admit(5, job, [], free={"gpu": 2}).why.endswith("or 1 more of 'gpu' and 1 more of 'cpu'")
    assert admit(5, job, free={"gpu": 3, "cpu": 2}).ok


def test_a_rejection_says_where_urgent_work_is_in_the_way() -> None:
    job = [Segment("parse", "cpu", (5.0,)), Segment("encode", "gpu", (8.0,))]
    found = admit(15, job, tasks((3, 7), (3, 12)))
    assert (found.ok, found.binding) == (False, "parse")
    assert found.why.endswith("would do: a deadline of 28 s, or 'cpu' without more urgent work")


def test_a_full_resource_is_named_and_no_deadline_is_promised() -> None:
    found = admit(15, [Segment("parse", "cpu", (5.0,))], tasks((2, 2)))
    assert found.why == (
        "segment 'parse' may never end: more urgent work takes all of 'cpu'; "
        "would do: 'cpu' without more urgent work"
    )


@settings(max_examples=100, deadline=None)
@given(jobs, small, st.integers(1, 60))
def test_the_deadline_that_a_rejection_names_is_met(
    job: list[Segment], others: list[Recurring], deadline: int
) -> None:
    found = admit(deadline, job, others)
    assert admit(found.seconds, job, others).ok
    assert found.ok or not admit(found.seconds - 0.5, job, others).ok


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Segment("parse", "cpu", ()), "segment 'parse' needs seconds of 0 or more"),
        (lambda: Segment("parse", "cpu", (-1.0,)), "segment 'parse' needs seconds of 0 or more"),
        (lambda: Recurring("cpu", 1, 0), "a period above 0"),
        (lambda: admit(1, []), "without segments"),
        (lambda: admit(0, [Segment("parse", "cpu", (1.0,))]), "a deadline is above 0 s"),
        (lambda: admit(math.inf, [Segment("parse", "cpu", (1.0,))]), "and finite"),
        (lambda: admit(1, [Segment("parse", "cpu", (1.0,))], free={"cpu": 0}), "'cpu', and none is free"),
    ],
)
def test_what_is_no_job_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(PlanError, match=message):
        make()
