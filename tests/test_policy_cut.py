"""Rows go where their document is, as long as no lane gets too much."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies.cut import SLACK, Cut, CutQueue, choose
from pipeline.policy import Job, Lane, Waiting

pairs = st.tuples(st.integers(0, 5), st.integers(0, 8))
weighed = st.lists(st.tuples(pairs, st.integers(1, 9)), min_size=1, max_size=40)


def zipf(seed: int, count: int = 4000) -> list[tuple[int, int]]:
    """Pairs of a document and a question; few documents have most of the questions."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(400)]
    documents = draw.choices(range(400), weights, k=count)
    return [(document, draw.randrange(1200)) for document in documents]


def assign(pairs: Sequence[tuple[int, int]], weights: Sequence[float], lanes: int) -> list[int]:
    """The lane that each pair waits for, where all come before any lane is free."""
    rows: CutQueue[int] = CutQueue(job(*[1.0] * lanes, batch=4))
    for number, ((document, question), weight) in enumerate(zip(pairs, weights, strict=True)):
        rows.add(Waiting(number, int(weight), (question,), document))
    at = {row.what: lane for lane, line in enumerate(rows._lines) for _, row in line}
    return [at[number] for number in range(len(pairs))]


def copies(ends: Iterable[Hashable], lanes: Iterable[int]) -> dict[Hashable, int]:
    """On how many lanes each end is; their mean is the replication factor."""
    return Counter(end for end, _ in set(zip(ends, lanes, strict=True)))


def imbalance(lanes: Sequence[int], weights: Sequence[float], count: int) -> float:
    loads = [0.0] * count
    for lane, weight in zip(lanes, weights, strict=True):
        loads[lane] += weight
    return max(loads) / (sum(loads) / count)


def stored(pairs: Sequence[tuple[int, int]], lanes: Sequence[int]) -> int:
    """Bytes of all copies: a document weighs 100 times what a question does."""
    documents = sum(copies((d for d, _ in pairs), lanes).values())
    return 100 * documents + sum(copies((q for _, q in pairs), lanes).values())


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_stores_less_than_hashing_pairs_and_is_as_even(seed: int, lanes: int) -> None:
    graph = zipf(seed)
    weights = [1.0] * len(graph)
    cut, hashed = assign(graph, weights, lanes), [hash(pair) % lanes for pair in graph]
    assert stored(graph, cut) < 0.75 * stored(graph, hashed)
    assert imbalance(cut, weights, lanes) <= 1 + SLACK + lanes / len(graph)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_is_more_even_than_keeping_documents_whole(seed: int, lanes: int) -> None:
    graph = zipf(seed)
    weights = [1.0] * len(graph)
    loads, home = [0] * lanes, {}
    for document in sorted({d for d, _ in graph}):  # the most popular first, each to the least loaded lane
        home[document] = loads.index(min(loads))
        loads[home[document]] += sum(1 for d, _ in graph if d == document)
    whole = [home[d] for d, _ in graph]
    assert imbalance(assign(graph, weights, lanes), weights, lanes) < imbalance(whole, weights, lanes)


@settings(deadline=None)
@given(weighed, st.integers(2, 4))
def test_every_pair_has_a_lane_and_no_load_is_above_the_bound(
    graph: list[tuple[tuple[int, int], int]], lanes: int
) -> None:
    weights = [weight for _, weight in graph]
    found = assign([pair for pair, _ in graph], weights, lanes)
    assert len(found) == len(graph)
    assert set(found) <= set(range(lanes))
    mean = sum(weights) / lanes
    for lane in range(lanes):
        load = sum(w for at, w in zip(found, weights, strict=True) if at == lane)
        assert load <= max((1 + SLACK) * mean, mean + max(weights), 4 * max(weights)) + 1e-9


def test_documents_that_share_no_questions_are_not_copied() -> None:
    graph = [(d, 10 * d + q) for q in range(5) for d in range(8)]
    assert set(copies((d for d, _ in graph), assign(graph, [1.0] * 40, 4)).values()) == {1}


def test_what_has_many_pairs_is_copied_rather_than_what_has_few() -> None:
    graph = [(q, q) for q in range(1, 9)] + [(0, q) for q in range(1, 9)]
    found = assign(graph, [1.0] * 16, 4)
    assert copies((d for d, _ in graph), found)[0] == 4
    assert sum(copies((q for _, q in graph), found).values()) <= 1.5 * 8, "degrees are those seen so far"


def test_a_document_and_a_question_of_one_name_are_two_things() -> None:
    assert assign([(1, 2), (2, 3)], [1.0, 1.0], 2) == [0, 1]


def test_rows_of_a_question_that_comes_again_go_where_it_was_before() -> None:
    rows: CutQueue[int] = CutQueue(job(1, 1, batch=1))
    for number, (question, length) in enumerate([("x", 10), ("y", 10), ("y", 1), ("x", 1)]):
        rows.add(Waiting(number, length, (question,), "a"))
    assert (rows.take(4, "cpu:1"), rows.take(4, "cpu:0")) == ([1, 2], [0, 3]), "the document is on both"


def test_a_choice_takes_the_first_tier_with_room_and_else_the_least_loaded() -> None:
    loads, paces = [5.0, 3.0, 0.0], [1.0, 1.0, 1.0]
    assert choose(((0,), (1, 2)), loads, 1, 6, paces) == 0
    assert choose(((0,), (1,)), loads, 1, 5, paces) == 1
    assert choose(((0,), (1,)), loads, 1, 3, paces) == 2
    assert choose((), loads, 1, 9, paces) == 2
    assert choose((), loads, 1, 9, [1.0, 1.0, 9.0]) == 1


# the queue


def job(*per_row: float, batch: int = 4) -> Job:
    lanes = {f"cpu:{i}": Lane(Device(f"cpu:{i}"), 0.0, seconds) for i, seconds in enumerate(per_row)}
    return Job("s", batch, tuple(lanes), lanes)


def queued(keys: Sequence[Hashable], of: Job) -> CutQueue[int]:
    rows: CutQueue[int] = CutQueue(of)
    for number, key in enumerate(keys):
        rows.add(Waiting(number, key=key))
    return rows


def served(
    rows: CutQueue[int], keys: Sequence[Hashable], lanes: Sequence[str], most: int
) -> dict[str, list[Hashable]]:
    """The keys that each lane had, all taking in turn."""
    found: defaultdict[str, list[Hashable]] = defaultdict(list)
    while rows:
        for lane in lanes:
            found[lane] += [keys[number] for number in rows.take(most, lane)]
    return found


def test_rows_of_a_document_stay_together() -> None:
    keys = [d for _ in range(10) for d in "abcd"]
    found = served(queued(keys, job(1, 1)), keys, ["cpu:0", "cpu:1"], 4)
    assert sum(len(set(had)) for had in found.values()) == 4
    assert [len(had) for had in found.values()] == [20, 20]


@pytest.mark.parametrize("seed", range(3))
def test_copies_less_than_first_come_first_served_and_is_as_even(seed: int) -> None:
    keys = [document for document, _ in zipf(seed)]
    names = [f"cpu:{i}" for i in range(4)]
    found = served(queued(keys, job(1, 1, 1, 1)), keys, names, 4)
    plain = served(queued([None] * len(keys), job(1, 1, 1, 1)), keys, names, 4)
    assert sum(len(set(x)) for x in found.values()) < 0.6 * sum(len(set(x)) for x in plain.values())
    assert max(map(len, found.values())) <= (1 + SLACK) * len(keys) / 4 + 4


def test_a_slow_lane_is_given_less() -> None:
    keys = list(range(400))
    rows = queued(keys, job(1, 3))
    assert len(rows._lines[0]) == pytest.approx(300, abs=2)


def test_where_a_pace_is_unknown_lanes_are_given_alike() -> None:
    rows = queued(list(range(400)), job(1, 0))
    assert [len(line) for line in rows._lines] == [200, 200]


def test_a_lane_with_nothing_to_do_takes_half_of_the_longest_line_and_then_has_its_documents() -> None:
    rows = queued(["a"] * 4, job(1, 1))
    assert rows.take(4, "cpu:1") == [2, 3]
    assert rows.take(4, "cpu:0") == [0, 1]
    for number in (4, 5):
        rows.add(Waiting(number, key="a"))
    assert [len(line) for line in rows._lines] == [1, 1]


def test_a_lane_beyond_the_plan_takes_what_there_is() -> None:
    rows = queued(["a"] * 3, job(1, 1))
    assert rows.take(1, "cuda:0") == [2]
    assert len(rows) == 2


def test_rows_without_a_key_go_to_whoever_comes_in_the_order_in_which_they_came() -> None:
    rows = queued([None, "a", None, "b", None], job(1, 1))
    assert rows.take(3, "cpu:0") == [0, 1, 2]
    assert rows.take(3, "cpu:1") == [3, 4]


def test_with_one_lane_all_is_first_come_first_served() -> None:
    rows = Cut([job(1)]).queue("s")
    for number in range(6):
        rows.add(Waiting(number, key=number % 2))
    assert [rows.take(4, "cpu:0") for _ in range(2)] == [[0, 1, 2, 3], [4, 5]]
