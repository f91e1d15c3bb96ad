"""`run` gives what `run_local` gives, on our own lanes and on a cluster of the user's."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster import lanes, local_client
from pipeline.errors import GraphError, ModelError, PlanError
from pipeline.executor import Run, run
from pipeline.graph import Graph, Loop, node
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine, cores
from pipeline.stage import check_portable
from pipeline.values import Rows
from tests.graphs import graphs, inputs_for
from tests.test_scheduler import essence
from tests.toys import Collatz, Fan, Join, Numbers, Picky, Plus, Strip, Total, numbers

LANES = Machine((Device("cpu:0"), Device("cpu:1")))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_client(LANES) as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    """Two processes; Dask leaves thread counts in the environment, which are taken out again."""
    before = dict(os.environ)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with (
                LocalCluster(
                    n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
                ) as made,
                Client(made, set_as_default=False) as connected,
            ):
                yield connected
    finally:
        os.environ.clear()
        os.environ.update(before)


def outcome(run_: Run) -> Outcome:
    results = tuple(run_)
    return Outcome(results, tuple(run_.failures))


def chain(*stages: Any, **options: Any) -> Graph:
    """The stages one after the other, from `docs` to `out`."""
    names = ["docs", *(f"s{i}" for i in range(len(stages)))]
    nodes = tuple(node(names[i + 1], s, a=names[i], **options) for i, s in enumerate(stages))
    return Graph({"docs": Numbers}, nodes, {"out": names[-1]})


def many(n: int) -> dict[str, Rows]:
    return {"docs": numbers(**{f"r{i}": i for i in range(n)})}


# it means what the plain loop means


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_run_gives_what_the_plain_loop_gives(client: Client, data: st.DataObject) -> None:
    graph = data.draw(graphs())
    inputs = data.draw(inputs_for(graph))
    made = outcome(run(graph, inputs, client, ordered=data.draw(st.booleans())))
    assert essence(made) == essence(run_local(graph, inputs))


def turn() -> Graph:
    nodes = (node("fan", Fan(3), a="n"), node("j", Join(), a="fan", b="k"), node("t", Total(1), a="j"),
             node("go", Collatz(8), a="t"), node("bare", Strip(), a="go"))  # fmt: skip
    body = Graph({"n": Numbers, "k": Numbers}, nodes, {"next": "bare", "flags": "go"})
    loop = node("turn", Loop(body, {"n": "next"}, "flags", 4), n="docs", k="docs")
    return Graph({"docs": Numbers}, (loop,), {"out": "turn.next"})


FIXED = {
    "mapped, with a bad row": chain(Plus(1), Plus(1, bad=4), Picky(3)),
    "many rows and one again": chain(Plus(1), Fan(4, bad=9), Plus(0, bad=31), Total(1)),
    "all to one": chain(Fan(4), Total(0)),
    "round and round": turn(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED)
def test_a_cluster_of_processes_gives_what_the_plain_loop_gives(cluster: Client, name: str) -> None:
    made = outcome(run(FIXED[name], many(12), cluster))
    assert essence(made) == essence(run_local(FIXED[name], many(12)))


def test_nothing_goes_in_and_nothing_comes_out(client: Client) -> None:
    assert list(run(chain(Plus()), many(0), client)) == []


# streaming


def test_results_come_in_the_order_of_the_inputs(client: Client) -> None:
    results = run(chain(Plus(), Plus(), batch=1), many(9), client)
    assert [r.id for r in results] == [(f"r{i}",) for i in range(9)]


@dataclass
class Gate:
    """Opened by the test when it has seen a result; `passed` counts who came by."""

    passed: int = 0
    open: threading.Event = field(default_factory=threading.Event)


GATE = Gate()


@dataclass(frozen=True, slots=True)
class Gated:
    """All but the first row wait at the gate."""

    batch: ClassVar[int] = 1

    def run(self, state: Any, a: Numbers) -> Numbers:
        GATE.passed += 1
        if GATE.passed > 1 and not GATE.open.wait(20):
            raise RuntimeError("no result was seen")
        return a


def test_a_result_can_be_used_while_others_are_made(client: Client) -> None:
    """All rows are for one lane: what became of the first must not wait for the second."""
    results = iter(run(chain(Gated(), device="cpu:0"), many(3), client, ordered=False))
    first = next(results)
    GATE.open.set()
    assert [r.failures for r in (first, *results)] == [(), (), ()]


def test_a_run_can_be_awaited(client: Client) -> None:
    async def ask() -> list[Any]:
        return await run(chain(Plus()), many(3), client)

    assert [r.rows for r in asyncio.run(ask())] == [numbers(r0=1), numbers(r1=2), numbers(r2=3)]


def test_a_run_can_be_iterated_asynchronously(client: Client) -> None:
    async def ask() -> list[Any]:
        return [r.id async for r in run(chain(Plus()), many(3), client)]

    assert asyncio.run(ask()) == [("r0",), ("r1",), ("r2",)]


def test_two_runs_can_share_a_client(client: Client) -> None:
    async def ask() -> tuple[Any, Any]:
        return await asyncio.gather(run(chain(Plus()), many(5), client), run(chain(Plus(2)), many(5), client))

    one, two = asyncio.run(ask())
    assert [r.rows for r in one] == [numbers(**{f"r{i}": i + 1}) for i in range(5)]
    assert [r.rows for r in two] == [numbers(**{f"r{i}": i + 2}) for i in range(5)]


@pytest.mark.parametrize("seen", [1, 10, 50])
def test_a_run_that_is_abandoned_leaves_the_client_usable(client: Client, seen: int) -> None:
    results = run(chain(Plus(), Plus(), batch=1), many(60), client).__iter__()
    for _ in range(seen):
        next(results)
    results.close()
    assert len(list(run(chain(Plus()), many(3), client))) == 3


def test_a_run_can_be_repeated(client: Client) -> None:
    again = run(chain(Plus()), many(2), client)
    assert [r.rows for r in again] == [r.rows for r in again]


def test_no_value_is_left_on_the_workers(client: Client) -> None:
    list(run(chain(Plus(), Fan(4), Total(1)), many(20), client))
    gc.collect()
    left = ["?"]
    for _ in range(1000):  # what is released arrives soon
        left = left and client.run_on_scheduler(lambda dask_scheduler: [str(k) for k in dask_scheduler.tasks])
    assert left == []


# errors


@dataclass(frozen=True, slots=True)
class Unopened:
    def open(self, device: Device) -> Any:
        raise ModelError("no model of this name: install it")

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_what_the_user_can_mend_ends_the_run_with_that_error(client: Client) -> None:
    with pytest.raises(ModelError, match="no model of this name: install it"):
        list(run(chain(Plus(), Unopened()), many(3), client))
    assert len(list(run(chain(Plus()), many(3), client))) == 3


def test_failures_and_spans_can_be_seen(client: Client) -> None:
    under_way = run(chain(Plus(0, bad=1)), many(4), client)
    results = list(under_way)
    assert [f.id for f in under_way.failures] == [("r1",)]
    assert [len(r.failures) for r in results] == [0, 1, 0, 0]
    assert {(s.step, s.device in LANES.names) for s in under_way.spans} == {("s0", True)}
    assert all(0 <= s.start <= s.end for s in under_way.spans)


def test_inputs_that_do_not_fit_are_refused_before_anything_starts() -> None:
    with pytest.raises(GraphError, match="input 'docs' is missing"):
        run(chain(Plus()), {})


@dataclass(frozen=True, slots=True)
class Dies:
    """Takes its process with it."""

    bad: int

    def run(self, state: Any, a: Numbers) -> Numbers:
        if self.bad in a.x:
            os._exit(3)
        return a


@pytest.mark.slow
def test_the_row_that_kills_its_worker_fails_and_the_run_ends() -> None:
    """Dask suspects what waited on the dead worker too, so that others may be blamed with it."""
    before = dict(os.environ)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with (
                LocalCluster(
                    n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
                ) as made,
                Client(made, set_as_default=False) as own,
            ):
                outcome_ = outcome(run(chain(Plus(0), Dies(3), Plus(1)), many(6), own))
    finally:
        os.environ.clear()
        os.environ.update(before)
    failures = {f.id: f.category for f in outcome_.failures}
    assert failures["r3",] == "worker died"
    assert set(failures.values()) == {"worker died"}
    assert len(failures) <= 3
    assert [r.id for r in outcome_.results] == [(f"r{i}",) for i in range(6)]


@pytest.mark.slow
def test_a_lane_that_goes_for_good_is_left_out_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cluster.LOOK", 0.0)
    monkeypatch.setattr("pipeline.cluster.GRACE", 0.0)
    with local_client(LANES) as client:
        under_way = run(chain(Plus(0), Plus(1), batch=1), many(40), client)
        results = iter(under_way)
        found = [next(results)]
        client.sync(client.cluster.workers["cpu:1"].close)
        before = len(under_way.spans)
        found += results
    assert [r.id for r in found] == [(f"r{i}",) for i in range(40)]
    assert not under_way.failures
    assert {s.device for s in under_way.spans[before + 8 :]} == {"cpu:0"}


def unreadable() -> Any:
    raise ModuleNotFoundError("No module named 'mine'")


class Foreign:
    """Arrives where its module is not."""

    def __reduce__(self) -> Any:
        return unreadable, ()


@dataclass(frozen=True, slots=True)
class Holding:
    what: Foreign

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_a_task_that_cannot_be_read_where_it_arrives_is_no_dead_worker(client: Client) -> None:
    made = outcome(run(chain(Holding(Foreign())), many(1), client))
    assert [f.category for f in made.failures] == ["bug"]


def test_warnings_of_the_user_are_heard_while_our_lanes_run() -> None:
    before = list(warnings.filters)
    with local_client(LANES):
        assert list(warnings.filters) == before


# what goes to the workers


def test_a_stage_that_closes_over_a_lock_is_found_before_the_run() -> None:
    """B53."""
    lock = threading.Lock()

    @dataclass(frozen=True, slots=True)
    class Locked:
        def run(self, state: Any, a: Numbers) -> Numbers:
            with lock:
                return a

    with pytest.raises(GraphError, match=r"stage 's0' \(.*Locked\): its methods use 'lock', a lock"):
        chain(Locked())


@pytest.mark.slow
def test_a_class_from_a_function_runs_on_other_processes(cluster: Client) -> None:
    more = 5

    @dataclass(frozen=True, slots=True)
    class Local:
        def run(self, state: Any, a: Numbers) -> Numbers:
            return Numbers(a.ids, tuple(x + more for x in a.x))

    check_portable(Local(), "it")
    assert [r.rows for r in run(chain(Local()), many(2), cluster)] == [numbers(r0=5), numbers(r1=6)]


@pytest.mark.slow
def test_thousands_of_rows_give_no_large_graph(client: Client) -> None:
    """B56. Warnings are errors here, and Dask warns of a large graph."""
    assert len(list(run(chain(Plus(), Plus()), many(5000), client))) == 5000


def test_a_stage_is_small_when_it_travels() -> None:
    assert len(pickle.dumps(Plus())) < 200


@dataclass(frozen=True, slots=True)
class Appending:
    """A stage that changes what it got."""

    def run(self, state: Any, a: Numbers) -> Numbers:
        a.x.append(1)  # type: ignore[attr-defined]
        return a


def test_a_branch_cannot_change_what_its_sibling_sees(client: Client) -> None:
    """B57."""
    nodes = (node("p", Plus(0), a="docs"), node("one", Appending(), a="p"), node("two", Plus(), a="p"))
    graph = Graph({"docs": Numbers}, nodes, {"one": "one", "two": "two"})
    made = outcome(run(graph, many(2), client))
    assert {f.message for f in made.failures} == {"AttributeError: 'tuple' object has no attribute 'append'"}
    assert [r.rows for r in made["two"]] == [numbers(r0=1), numbers(r1=2)]
    assert essence(made) == essence(run_local(graph, many(2)))


# lanes


@pytest.mark.parametrize("device", ["cuda:7", "cpu:1000"])
def test_a_device_that_is_not_there_is_refused_at_once(client: Client, device: str) -> None:
    """B60."""
    with pytest.raises(PlanError, match=f"step 's0' is pinned to device '{device}': no device '{device}'"):
        next(iter(run(chain(Plus(), device=device), many(2), client)))


def test_lanes_are_named_after_their_devices(client: Client) -> None:
    assert set(lanes(client)[0].names) == {"cpu:0", "cpu:1"}


@dataclass(frozen=True, slots=True)
class Where:
    """The process and the thread, and the threads that the stage may use."""

    batch: ClassVar[int] = 1

    def open(self, device: Device) -> Device:
        return device

    def run(self, state: Device, a: Numbers) -> Numbers:
        return Numbers(a.ids, (os.getpid() * 1000 + state.threads,))


def test_our_own_lanes_are_threads_of_this_process(client: Client) -> None:
    """B63: nothing is forked, so no tokenizer and no CUDA context is either."""
    made: list[Any] = [r.rows for r in run(chain(Where()), many(8), client)]
    assert {x // 1000 for rows in made for x in rows.x} == {os.getpid()}


@pytest.mark.slow
def test_workers_of_a_cluster_are_spawned(cluster: Client) -> None:
    """B63."""
    methods = cluster.run(lambda: __import__("multiprocessing").get_start_method(allow_none=True))
    assert "fork" not in methods.values()
    made: list[Any] = [r.rows for r in run(chain(Where()), many(8), cluster)]
    assert os.getpid() not in {x // 1000 for rows in made for x in rows.x}


@pytest.mark.slow
def test_without_a_client_threads_times_lanes_stay_within_the_cores() -> None:
    """B64."""
    under_way = run(chain(Where()), many(2))
    made: list[Any] = [r.rows for r in under_way]
    assert under_way.plan is not None
    cpus = [d for d in under_way.plan.machine.devices if d.kind == "cpu"]
    assert sum(d.threads for d in cpus) <= cores()
    assert {x % 1000 for rows in made for x in rows.x} == {cores()}
    assert under_way.plan.table() == [("s0", f"cpu:0 ({cores()} threads)", "1")]


@pytest.mark.slow
def test_lanes_of_a_cluster_have_its_threads(cluster: Client) -> None:
    """B64."""
    machine, addresses = lanes(cluster)
    assert [d.threads for d in machine.devices] == [1, 1]
    assert set(addresses) == set(machine.names)


SCRIPT = """
from dataclasses import dataclass
from typing import Any
from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.values import Queries

@dataclass(frozen=True)
class Shout:
    def run(self, state: Any, a: Queries) -> Queries:
        return Queries(a.ids, tuple(t.upper() for t in a.texts), a.documents)

graph = Graph({"q": Queries}, (node("shout", Shout(), a="q"),), {"out": "shout"})
for result in run(graph, {"q": Queries((("a",),), ("hello",), ("",))}):
    print(result.rows.texts[0])
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_works(tmp_path: Path) -> None:
    """B68."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": root}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO\n", "")
