"""Lanes in processes of their own: the same answers by every way of handing over, and nothing left behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
from distributed import Client

from pipeline import hands
from pipeline.cluster import local_client
from pipeline.executor import Run, run
from pipeline.graph import Graph, node
from pipeline.handover import CLIENT, Home
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.values import Embeddings, Queries, Rows
from tests import fakes
from tests.big import Big, Half, Same
from tests.test_executor import FIXED, many
from tests.toys import Numbers

pytestmark = pytest.mark.slow

LANES = Machine((Device("cpu:0", 1, cores=(0,)), Device("cpu:1", 1, cores=(0,))))
WIDTH = 50_000
"""Of a vector, in float32: 200 kB for each row, which is no small value."""
WAYS = ("arena", "file", "bytes")


def queries(n: int) -> dict[str, Rows]:
    return {"q": Queries(tuple((f"q{i}",) for i in range(n)), ("?",) * n, ("",) * n)}


def arrays() -> Graph:
    """Arrays through two lanes, and through a stage that gives what it got; read twice."""
    nodes = (
        node("big", Big(WIDTH), queries="q", batch=2, device="cpu:0"),
        node("same", Same(), rows="big", batch=2, device="cpu:1"),
        node("half", Half(), rows="same", batch=3, device="cpu:0"),
        node("again", Same(), rows="half", batch=1, device="cpu:1"),
        node("other", Half(), rows="big", batch=1),
    )
    return Graph({"q": Queries}, nodes, {"out": "again", "other": "other"})


def plain(outcome: Outcome) -> Any:
    """What two ways to run a graph must agree on, arrays to the bit."""
    results = {(r.output, r.id): (_columns(r.rows), bool(r.failures)) for r in outcome.results}
    assert len(results) == len(outcome.results), "an input left twice"
    return results, Counter((f.id, f.stage, f.category) for f in outcome.failures)


def _columns(rows: Rows) -> tuple[Any, ...]:
    return tuple(_plain(getattr(rows, f.name)) for f in fields(rows))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def outcome(under_way: Run) -> Outcome:
    results = tuple(under_way)
    return Outcome(results, tuple(under_way.failures))


def planned(graph: Graph, inputs: Mapping[str, Rows], client: Client, window: int = 8 << 20) -> Run:
    return run(graph, inputs, client, plan=place(flatten(graph), LANES, window))


@pytest.fixture(scope="module")
def apart() -> Iterator[Client]:
    with local_client(LANES, apart=True) as made:
        yield made


@pytest.fixture
def _way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "file":
        monkeypatch.setattr("pipeline.buffers.segment.attachable", lambda: False)
    if way == "bytes":
        found = {"cpu:0": Home("here", "1"), "cpu:1": Home("there", "1"), CLIENT: Home("at home", "1")}
        monkeypatch.setattr(hands, "homes", lambda client, addresses: found)


def left() -> tuple[list[str], list[str], int]:
    """Our shared memory, our folders among the temporary ones, and the descriptors that we have of them."""
    folders = [p.name for p in Path(tempfile.gettempdir()).glob("ridgeway-*")]
    return sorted(n for n in os.listdir("/dev/shm") if "ridgeway" in n), sorted(folders), _descriptors()


def _descriptors() -> int:
    paths = [Path("/proc/self/fd") / n for n in os.listdir("/proc/self/fd")]
    return sum("ridgeway" in str(p.readlink()) for p in paths if p.is_symlink())


# the same answers


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FIXED)
def test_a_graph_gives_the_same_by_every_way(apart: Client, name: str, way: str) -> None:
    made = outcome(planned(FIXED[name], many(12), apart))
    assert plain(made) == plain(run_local(FIXED[name], many(12)))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("way", WAYS)
def test_arrays_are_the_same_by_every_way(apart: Client, way: str) -> None:
    before = left()
    under_way = planned(arrays(), queries(12), apart)
    assert plain(outcome(under_way)) == plain(run_local(arrays(), queries(12)))
    shared, copied = (sum(getattr(c, n) for c in under_way.handed.values()) for n in ("shared", "copied"))
    assert copied >= 12 * 4 * WIDTH
    assert (shared > copied) == (way != "bytes")
    assert left() == before


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("way", ["bytes"])
def test_where_loss_is_allowed_vectors_go_as_int8_between_stages_and_no_output_does(apart: Client) -> None:
    plan = place(flatten(arrays()), LANES, 8 << 20)
    exact, lossy = (run(arrays(), queries(12), apart, plan=replace(plan, lossy=b)) for b in (False, True))
    right, found = ({(r.output, r.id): r.rows for r in each} for each in (exact, lossy))
    assert sum(c.saved for c in exact.handed.values()) == 0
    assert {step for step, c in lossy.handed.items() if c.saved} == {"big", "same", "half"}
    assert 0 < max(c.error for c in lossy.handed.values()) <= 1.001 / 254
    sent = [sum(c.copied for c in each.handed.values()) for each in (exact, lossy)]
    assert sent[1] < sent[0] / 1.5
    for key, rows in right.items():
        one, two = (getattr(r, "vectors") for r in (rows, found[key]))  # noqa: B009
        assert key[0] != "out" or not np.array_equal(one, two), "the other may stay within a process"
        assert np.abs(one - two).max() <= 3 * np.abs(one).max() / 254 * 1.01


def test_arrays_are_the_same_by_reference() -> None:
    with local_client(LANES) as client:
        under_way = planned(arrays(), queries(12), client)
        made = plain(outcome(under_way))
    assert made == plain(run_local(arrays(), queries(12)))
    assert sum(c.shared + c.copied for c in under_way.handed.values()) == 0


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("way", WAYS)
def test_documents_are_answered_the_same_by_every_way(apart: Client, way: str, tmp_path: Path) -> None:
    documents = fakes.write(tmp_path / "in", a="one two\nthree", b="torn\nfour", bad="five")
    asked = {"documents": documents, "questions": Queries((("q0",), ("q1",)), ("three", "four"), ("", ""))}
    made = outcome(planned(fakes.graph(tmp_path / "run"), asked, apart))
    expected = run_local(fakes.graph(tmp_path / "run"), asked)
    assert made.results
    assert repr(plain(made)) == repr(plain(expected)), "scores are nan, which equals nothing"


def test_values_stay_right_while_their_memory_is_used_again_and_again(apart: Client) -> None:
    """A window of a few values: each slot is used by dozens of them, and some move to disk."""
    under_way = planned(arrays(), queries(30), apart, window=5 * 4 * WIDTH)
    assert plain(outcome(under_way)) == plain(run_local(arrays(), queries(30)))


def test_a_value_that_is_larger_than_all_shared_memory_travels_as_bytes(apart: Client) -> None:
    under_way = planned(arrays(), queries(4), apart, window=1000)
    assert plain(outcome(under_way)) == plain(run_local(arrays(), queries(4)))


def test_two_runs_on_one_cluster_keep_out_of_each_others_memory(apart: Client) -> None:
    one, two = planned(arrays(), queries(20), apart), planned(arrays(), queries(15), apart)
    first = iter(one)
    results = [next(first)]
    assert plain(outcome(two)) == plain(run_local(arrays(), queries(15)))
    results += first
    assert plain(Outcome(tuple(results), ())) == plain(run_local(arrays(), queries(20)))


def test_a_run_that_is_abandoned_leaves_no_memory_behind(apart: Client) -> None:
    for _ in range(3):
        results = iter(planned(arrays(), queries(40), apart))
        next(results)
        results.close()
    assert plain(outcome(planned(arrays(), queries(4), apart))) == plain(run_local(arrays(), queries(4)))
    assert wait(lambda: set(apart.run(_maps).values()) == {0})


def _maps() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text("utf-8").count("memfd:ridgeway")


def wait(holds: Any, seconds: float = 10) -> bool:
    """Whether it comes to hold in time."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds())


# threads


@dataclass(frozen=True, slots=True)
class Threads:
    """The process, the threads that torch takes, and the cores that it may use."""

    batch: ClassVar[int] = 1

    def run(self, state: Any, a: Numbers) -> Numbers:
        import torch

        return Numbers(a.ids, ((os.getpid(), torch.get_num_threads(), *os.sched_getaffinity(0)),) * len(a))  # type: ignore[arg-type]


def test_each_process_has_the_threads_and_the_cores_of_its_lane() -> None:
    own = tuple(sorted(os.sched_getaffinity(0)))
    lanes = Machine((Device("cpu:0", 1, cores=own[:1]), Device("cpu:1", len(own), cores=own)))
    nodes = tuple(node(f"s{i}", Threads(), a="docs", device=f"cpu:{i}") for i in range(2))
    graph = Graph({"docs": Numbers}, nodes, {"s0": "s0", "s1": "s1"})
    plan = replace(place(flatten(graph), lanes), apart=True)
    found = {r.output: r.rows.x[0] for r in run(graph, many(1), plan=plan)}  # type: ignore[attr-defined]
    assert found["s0"][1:] == (1, own[0])
    assert found["s1"][1:] == (len(own), *own)
    assert len({os.getpid(), found["s0"][0], found["s1"][0]}) == 3


# death


@dataclass(frozen=True, slots=True)
class Slow:
    """Half of each vector, in its time."""

    batch: ClassVar[int] = 1

    def run(self, state: Any, rows: Embeddings) -> Embeddings:
        time.sleep(0.03)
        return Half().run(state, rows)


def slowly() -> Graph:
    nodes = (
        node("big", Big(WIDTH), queries="q", batch=2, device="cpu:0"),
        node("one", Slow(), rows="big", device="cpu:1"),
        node("two", Slow(), rows="one", device="cpu:0"),
    )
    return Graph({"q": Queries}, nodes, {"out": "two"})


def workers() -> list[psutil.Process]:
    """Our children, down to the last, without those that only keep books for Python."""
    return [p for p in psutil.Process().children(recursive=True) if _works(p)]


def _works(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" not in " ".join(process.cmdline()) and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def lanes_of(client: Client) -> list[int]:
    return [n.pid for n in client.cluster.workers.values() if n.pid]


def test_workers_may_be_killed_at_any_moment() -> None:
    """Dask gives a task up when the fourth worker that had it dies; here none has so much bad luck."""
    rng = random.Random(2)
    rows = 60
    before = (left(), workers())
    with local_client(LANES, apart=True) as client:
        under_way = planned(slowly(), queries(rows), client)
        kills = sorted(rng.sample(range(1, rows - 5), 5))
        results = []
        for result in under_way:
            results.append(result)
            if kills and len(results) >= kills[0]:
                kills.pop(0)
                os.kill(rng.choice(lanes_of(client)), signal.SIGKILL)
    died = {f.id for f in under_way.failures}
    assert {f.category for f in under_way.failures} <= {"worker died"}
    expected = run_local(slowly(), queries(rows)).results
    assert [r.id for r in results] == [r.id for r in expected]
    for found, right in zip(results, expected, strict=True):
        assert found.id in died or _columns(found.rows) == _columns(right.rows)
    gc.collect()
    assert wait(lambda: (left(), workers()) == before)


CLIENT_SCRIPT = """
import sys
from tests.test_apart import LANES, planned, queries, slowly
from pipeline.cluster import local_client

if __name__ == "__main__":
    with local_client(LANES, apart=True) as client:
        for result in planned(slowly(), queries(500), client):
            print(result.id[0], flush=True)
"""


def test_a_client_that_is_killed_takes_its_workers_with_it(tmp_path: Path) -> None:
    before = left()
    script = tmp_path / "script.py"
    script.write_text(CLIENT_SCRIPT)
    root = str(Path(__file__).parents[1])
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "q0\n"
        family = psutil.Process(client.pid).children(recursive=True)
        assert len(family) >= 2
        client.kill()
    assert wait(lambda: not any(p.is_running() and _works(p) for p in family))
    assert left() == before
