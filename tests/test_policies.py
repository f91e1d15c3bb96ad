"""What every policy in the table owes that says how rows wait: each row is taken once, by some lane."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.lookup import find, load
from pipeline.machine import Device
from pipeline.policies import POLICIES
from pipeline.policy import Job, Lane, Queue, Queues, Waiting, build

KNOWN = [
    Lane(Device("cpu:0"), 1e-3, 8e-3),
    Lane(Device("cpu:1"), 1e-3, 8e-3),
    Lane(Device("cuda:0"), 2e-3, 1e-3),
]
UNKNOWN = [Lane(lane.device) for lane in KNOWN]
JOBS = (
    Job("known", 8, ("cpu:0", "cuda:0"), {lane.name: lane for lane in KNOWN}, transfer=2e-2),
    Job("unknown", 8, ("cpu:0", "cpu:1", "cuda:0"), {lane.name: lane for lane in UNKNOWN}),
    Job("alone", 8, ("cpu:1",), {lane.name: lane for lane in KNOWN}),
)
NAMES = sorted(name for name, path in POLICIES.items() if hasattr(load(path), "queue"))

adds = st.tuples(
    st.integers(0, 60) | st.sampled_from([1, 7, 500, 10**6]),
    st.integers(0, 4),
    st.none() | st.sampled_from("aaabcdef"),
)
takes = st.tuples(st.integers(1, 12), st.sampled_from(["cpu:0", "cpu:1", "cuda:0", "pim:7"]))
traces = st.lists(st.lists(adds, max_size=30) | takes, max_size=25)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def queue(name: str, step: str = "known") -> Queue[Any]:
    made: Queue[Any] = find(name, POLICIES, "policy")(JOBS).queue(step)
    return made


def play(rows: Queue[Any], trace: list[Any]) -> list[list[int]]:
    """The batches of a trace, and after it of all that is left; checks each as it comes."""
    numbers = itertools.count()
    batches, waiting = [], set[int]()
    ending = itertools.takewhile(lambda _: waiting, itertools.repeat((3, "cpu:0")))
    for does in itertools.chain(trace, ending):
        if isinstance(does, list):
            for length, root, key in does:
                number = next(numbers)
                rows.add(Waiting(number, length, (root,), key))
                waiting.add(number)
        else:
            most, lane = does
            taken = rows.take(most, lane)
            assert min(1, len(waiting)) <= len(taken) <= most
            assert len(set(taken)) == len(taken)
            assert waiting >= set(taken), "taken twice, or never added"
            waiting -= set(taken)
            batches.append(taken)
        assert len(rows) == len(waiting)
    return batches


@settings(max_examples=60, deadline=None)
@given(trace=traces, step=st.sampled_from([job.name for job in JOBS]))
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_taken_once_and_the_same_trace_gives_the_same_batches(
    name: str, trace: list[Any], step: str
) -> None:
    assert play(queue(name, step), trace) == play(queue(name, step), trace)


def test_an_empty_queue_gives_nothing(name: str) -> None:
    rows = queue(name)
    assert len(rows) == 0
    assert rows.take(4, "cpu:0") == []


def test_the_queues_of_two_steps_are_apart(name: str) -> None:
    policy = find(name, POLICIES, "policy")(JOBS)
    one, two = policy.queue("known"), policy.queue("unknown")
    one.add(Waiting("a", 3, ("x",), "k"))
    assert (len(one), len(two)) == (1, 0)
    assert two.take(4, "cpu:0") == []


def test_a_queue_that_was_empty_goes_on(name: str) -> None:
    rows = queue(name)
    for batch in range(5):
        rows.add(Waiting(batch, 10 * batch, (batch,), "k"))
        assert rows.take(4, "cuda:0") == [batch]


def test_is_built_by_name_and_says_how_rows_wait(name: str) -> None:
    (policy,) = build([name], POLICIES, JOBS)
    assert isinstance(policy, Queues)


def test_rows_that_are_alike_come_first_come_first_served(name: str) -> None:
    rows = queue(name, "alone")
    for number in range(20):
        rows.add(Waiting(number))
    assert [i for _ in range(5) for i in rows.take(4, "cpu:1")] == list(range(20))
