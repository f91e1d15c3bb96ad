"""Jobs beside each other: each gives what it gives alone, and they share calls."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.beside import beside, named
from pipeline.errors import GraphError
from pipeline.events import Submit
from pipeline.graph import Graph, Loop, node
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.values import Rows
from tests.driving import LANES, Driver, essence
from tests.graphs import graphs, inputs_for
from tests.toys import Collatz, Numbers, Plus, Strip, numbers


def job(*policies: str) -> Graph:
    """A step, and a loop behind it."""
    inner = (node("go", Collatz(), a="n"), node("bare", Strip(), a="go"))
    body = Graph({"n": Numbers}, inner, {"next": "bare", "flags": "go"})
    nodes = (node("plus", Plus(), a="asks"), node("turn", Loop(body, {"n": "next"}, "flags", 9), n="plus"))
    return Graph({"asks": Numbers}, nodes, {"ends": "turn.next", "asks": "asks"}, policies)


def of(outcome: Outcome, prefix: str) -> Outcome:
    """What a job has of what leaves, under its own names."""
    results = (
        replace(r, output=r.output[len(prefix) :]) for r in outcome.results if r.output.startswith(prefix)
    )
    failures = (
        replace(f, stage=f.stage[len(prefix) :]) for f in outcome.failures if f.stage.startswith(prefix)
    )
    return Outcome(tuple(results), tuple(failures))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_jobs_beside_each_other_give_what_each_gives_alone(data: st.DataObject) -> None:
    """Also where they have inputs of the same ids, and share calls."""
    first = data.draw(graphs())
    jobs = {"a": first, "b": data.draw(st.just(first) | graphs())}
    inputs = {name: data.draw(inputs_for(graph)) for name, graph in jobs.items()}
    both = beside(jobs)
    rng = random.Random(data.draw(st.integers(0, 99)))
    driver = Driver(both, plan=place(flatten(both), LANES, policies=("coalesce",)))
    given: dict[str, Rows] = {named(j, i): rows for j in jobs for i, rows in inputs[j].items()}
    found, local = driver.run(given, lambda w: rng.randrange(len(w))), run_local(both, given)
    for name, graph in jobs.items():
        prefix, alone = named(name, ""), essence(run_local(graph, inputs[name]))
        assert essence(of(found, prefix)) == alone
        assert essence(of(local, prefix)) == alone


def test_jobs_that_ask_the_same_model_share_calls() -> None:
    both = beside({"day": job(), "night": job("coalesce")})
    assert both.policies == ("coalesce",)
    driver = Driver(both, plan=place(flatten(both), Machine((Device("cpu:0"),)), policies=both.policies))
    outcome = driver.run({"day__asks": numbers(q=7, r=3), "night__asks": numbers(q=1)})
    assert [r.rows for r in outcome["night__ends"]] == [numbers(q=1)]
    tasks = [s for s in driver.log if isinstance(s, Submit)]
    assert [len(t.owed) for t in tasks if t.step.endswith("plus")] == [3]
    together = {s for t in tasks for s, _ in t.shares}
    assert together == {f"{j}__{s}" for j in ("day", "night") for s in ("plus", "turn/go", "turn/bare")}


def test_names_are_those_of_the_job_and_its_own() -> None:
    both = beside({"a": job("slices"), "b": job("ends", "slices")})
    assert list(both.inputs) == ["a__asks", "b__asks"]
    assert dict(both.outputs) == {
        "a__ends": "a__turn.next", "a__asks": "a__asks", "b__ends": "b__turn.next", "b__asks": "b__asks",
    }  # fmt: skip
    assert [n.name for n in both.nodes] == ["a__plus", "a__turn", "b__plus", "b__turn"]
    assert both.policies == ("slices", "ends")


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ({}, "there is no job"),
        ({"a b": "asks"}, "a name is letters, digits and _, found 'a b'"),
        ({"a": "b__c", "a__b": "c"}, "two jobs have something called 'a__b__c'"),
    ],
)
def test_jobs_that_cannot_be_told_apart_are_refused(jobs: dict[str, str], said: str) -> None:
    made = {
        name: Graph({ref: Numbers}, (node("x", Plus(), a=ref),), {"out": "x"}) for name, ref in jobs.items()
    }
    with pytest.raises(GraphError, match=said):
        beside(made)
