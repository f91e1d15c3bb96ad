"""Rows that nobody computed: right in sum, under ids that the Scheduler expects."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from pipeline.estimate import Estimates
from pipeline.events import Done, Emit, Event, Fail, Lost, Meta, Start, Submit
from pipeline.graph import Graph, Loop, node
from pipeline.invent import SKEW, Inventor, given, popular
from pipeline.learned import Learned
from pipeline.machine import Machine
from pipeline.plan import place
from pipeline.program import Program, flatten
from pipeline.roofline import Flow
from pipeline.scheduler import Scheduler
from pipeline.values import Documents
from tests.costed import Busy, Case, Many, One, Round, chain, lanes
from tests.graphs import graphs
from tests.toys import Numbers, Strip


def task(step: str, *owed: Any) -> Submit:
    return Submit(1, step, "cpu:0", (), owed)


def inventor(*stages: Any, rows: float = 8, length: float = 0.0) -> Inventor:
    return Inventor(Case(chain(*stages), Machine(lanes(1)), rows, length).estimates())


def test_a_stage_gives_the_rows_it_owes_with_their_bytes() -> None:
    made = inventor(Busy(nbytes=2.5)).made(task("s0", ("a",), ("b",)), [])
    assert made == Meta((("a",), ("b",)), 5)


def test_a_gathering_stage_gives_one_row() -> None:
    assert inventor(One(nbytes=7)).made(task("s0", ()), [3, 4, 5]) == Meta(((),), 7)


@pytest.mark.parametrize("fan", [0.0, 0.4, 1.0, 2.5, 7.3])
def test_children_are_right_in_sum_wherever_batches_end(fan: float) -> None:
    invent = inventor(Many(fan=fan))
    made = [invent.made(task("s0", (i,)), []) for i in range(40)]
    made += [invent.made(task("s0", *((i,) for i in range(40, 100))), [])]
    ids = [i for m in made for i in m.ids]
    assert len(ids) == len(set(ids)) == round(100 * fan)
    assert all(i[:-1] in {(n,) for n in range(100)} for i in ids)


@hypothesis_given(st.lists(st.integers(1, 500), min_size=2, max_size=60), st.floats(0.1, 9))
def test_children_follow_lengths_however_skewed(lengths: list[int], fan: float) -> None:
    mean = sum(lengths) / len(lengths)
    made = inventor(Many(fan=fan), rows=len(lengths), length=mean).made(
        task("s0", *((i,) for i in range(len(lengths)))), lengths
    )
    assert len(made.ids) == pytest.approx(fan * len(lengths), abs=1)
    counts = [sum(i[0] == k for i in made.ids) for k in range(len(lengths))]
    assert all(c == pytest.approx(fan * n / mean, abs=1) for c, n in zip(counts, lengths, strict=True))


@hypothesis_given(st.floats(0.05, 50), st.integers(1, 200))
def test_lengths_are_right_in_sum(mean: float, rows: int) -> None:
    made = inventor(Busy(), rows=rows, length=mean).made(task("s0", *((i,) for i in range(rows))), [])
    assert made.lengths is not None
    assert sum(made.lengths) == pytest.approx(mean * rows, abs=1)
    assert max(made.lengths) - min(made.lengths) <= 1


def test_a_long_row_stays_long() -> None:
    made = inventor(Busy(), rows=2, length=4.0).made(task("s0", ("a",), ("b",)), [6, 2])
    assert made.lengths == (6, 2)


def loop(most: int = 4) -> Program:
    nodes = (node("go", Round(), a="n"), node("bare", Strip(), a="go"))
    body = Loop(Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"}), {"n": "next"}, "flags", most)
    return flatten(Graph({"rows": Numbers}, (node("l", body, n="rows"),), {"out": "l.next"}))


@pytest.mark.parametrize(("mean", "expected"), [(1.0, 100), (1.5, 150), (2.25, 225), (9.0, 400)])
def test_rounds_are_right_in_sum_and_never_more_than_may_be(mean: float, expected: int) -> None:
    known = Learned(rounds={"l": mean})
    invent = Inventor(Estimates(loop(), Machine(lanes(1)), {"rows": Flow(100)}, known))
    inside, rounds = [(i,) for i in range(100)], 0
    while inside:
        done = invent.made(task("l/go", *inside), []).done
        assert done is not None
        rounds += len(inside)
        inside = [i for i, out in zip(inside, done, strict=True) if not out]
    assert rounds == expected


def test_only_the_step_that_ends_a_loop_says_who_is_done() -> None:
    invent = Inventor(Estimates(loop(), Machine(lanes(1)), {"rows": Flow(1)}))
    assert invent.made(task("l/bare", ("a",)), []).done is None
    assert [invent.made(task("l/go", ("a",)), []).done for _ in range(4)] == [(False,)] * 3 + [(True,)]


# what rows would share a lane for


@dataclass(frozen=True, slots=True)
class Said(Numbers):
    """Numbers that stand for documents."""

    @property
    def keys(self) -> tuple[Any, ...]:
        return tuple(i[0] for i in self.ids)


@dataclass(frozen=True, slots=True)
class Ask:
    """Two ports: all documents, and the questions; gives what has keys."""

    def run(self, state: Any, a: Numbers) -> Said:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Drop:
    """What has keys, in; what has none, out."""

    def run(self, state: Any, a: Said) -> Numbers:
        raise NotImplementedError


def keyed(documents: int) -> Inventor:
    graph = Graph(
        {"files": Documents, "rows": Numbers},
        (node("read", Read(), a="files"), node("s0", Ask(), a="rows"), node("s1", Drop(), a="s0")),
        {"out": "s1", "read": "read"},
    )
    sources = {"files": Flow(documents), "rows": Flow(1000)}
    return Inventor(Estimates(flatten(graph), Machine(lanes(1)), sources))


@dataclass(frozen=True, slots=True)
class Read:
    """Documents, in."""

    def run(self, state: Any, a: Documents) -> Numbers:
        raise NotImplementedError


IDS = tuple((f"rows-{i}",) for i in range(1000))


def test_rows_have_keys_where_the_real_values_have() -> None:
    invent = keyed(10)
    assert invent.made(task("s1", *IDS), []).keys is None
    assert invent.made(task("read", *IDS), []).keys is None
    assert len(invent.made(task("s0", *IDS), []).keys or ()) == 1000


def test_keys_are_skewed_as_documents_are() -> None:
    """Of ten documents the most asked for has 1 of sum(r ** -0.8) = 3.6 rows, and the least 0.16."""
    counts = Counter(keyed(10).made(task("s0", *IDS), []).keys or ())
    assert len(counts) == 10
    total = sum(rank**-SKEW for rank in range(1, 11))
    assert max(counts.values()) == pytest.approx(1000 / total, rel=0.15)
    assert min(counts.values()) == pytest.approx(1000 * 10**-SKEW / total, rel=0.35)


def test_a_row_has_the_same_key_whatever_runs_before_it() -> None:
    one, two = keyed(50), keyed(50)
    forth = [one.made(task("s0", i), []).keys for i in IDS[:50]]
    back = [two.made(task("s0", i), []).keys for i in reversed(IDS[:50])]
    assert forth == back[::-1]


@hypothesis_given(st.integers(1, 3000))
def test_shares_rise_to_one_and_each_is_less_than_the_one_before(count: int) -> None:
    shares = [0.0, *popular(count)]
    parts = [b - a for a, b in itertools.pairwise(shares)]
    assert shares[-1] == 1
    assert all(a > b > 0 for a, b in itertools.pairwise(parts))


# sources


def test_sources_have_the_rows_bytes_and_lengths_of_their_flows() -> None:
    made = given({"rows": Flow(4, 2.5, 10.0), "all": Flow(1, 1000.0, 240.0)}, {"rows": False, "all": True})
    assert made["rows"] == Meta(tuple((f"rows-{i}",) for i in range(4)), 40, (2, 3, 2, 3))
    assert made["all"] == Meta(((),), 240, (1000,))


def test_a_source_without_rows_or_lengths_has_none() -> None:
    made = given({"rows": Flow(0, 3.0, 10.0), "bare": Flow(1)}, {"rows": False, "bare": False})
    assert (made["rows"].ids, made["rows"].lengths, made["bare"].lengths) == ((), (), None)


# with the Scheduler


@hypothesis_given(graphs(), st.integers(0, 6), st.integers(0, 12), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_every_input_leaves_once_and_whole(graph: Graph, count: int, loss: int, random: Any) -> None:
    """Tasks end in any order, and at some point a lane is lost: what leaves is what came in."""
    program, machine = flatten(graph), Machine(lanes(3))
    sources = {n: Flow(1 if kind.whole else count, 2.0, 8.0) for n, kind in program.sources.items()}
    invent = Inventor(Estimates(program, machine, sources))
    rows = given(sources, {n: kind.whole for n, kind in program.sources.items()})
    scheduler = Scheduler(program, place(program, machine))
    tasks: list[Submit] = []
    left: list[Emit] = []

    def tell(event: Event) -> None:
        said = scheduler.handle(event)
        assert not any(isinstance(s, Fail) for s in said)
        tasks.extend(s for s in said if isinstance(s, Submit))
        left.extend(s for s in said if isinstance(s, Emit))

    tell(Start(tuple(rows.items())))
    for moment in range(1 << 30):
        if moment == loss:
            tasks = [t for t in tasks if t.device != "cpu:1"]
            tell(Lost("cpu:1"))
        if not tasks:
            break
        task = tasks.pop(random.randrange(len(tasks)))
        tell(Done(task.task, invent.made(task, [])))
    assert scheduler.finished
    for output, root in program.roots.items():
        assert [e.root for e in left if e.output == output] == list(rows[root].ids if root else ((),))
    assert all(not e.failures for e in left)
