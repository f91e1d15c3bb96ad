"""The client's side of handing over, seen through a client that is made up."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.buffers import segment
from pipeline.buffers.handles import Handle, Place
from pipeline.buffers.identity import own
from pipeline.buffers.leases import DATA
from pipeline.events import Submit
from pipeline.graph import Graph, node
from pipeline.handover import ARENA, BYTES, REFERENCE
from pipeline.hands import FOLLOWERS, SPARE, Hands, give_back
from pipeline.machine import Device, Machine
from pipeline.plan import Placement, Plan
from pipeline.program import flatten
from pipeline.shelf import Shelf, token
from pipeline.values import Embeddings
from pipeline.worker import Made, Times
from tests.toys import Numbers, Plus

WINDOW = 1 << 20
GRAPH = Graph(
    {"docs": Numbers},
    (node("a", Plus(), a="docs"), node("b", Plus(2), a="a"), node("c", Plus(3), a="b")),
    {"out": "c"},
)
LANES = {"a": "cpu:0", "b": "cpu:0", "c": "cpu:1"}


class Cluster:
    """A client that says where its workers live, and remembers what it had them run."""

    def __init__(self, *homes: str) -> None:
        self.homes = homes
        self.told: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def run(self, function: Any, *given: Any, **options: Any) -> dict[str, str]:
        self.told.append((function, given, options))
        return dict(zip(("one", "two"), self.homes, strict=True))


def home(process: str, boot: str = "") -> str:
    found = own().split(":")
    return ":".join([boot or found[0], found[1], process, "1"])


def hands(cluster: Cluster) -> Hands:
    plan = Plan(
        Machine((Device("cpu:0"), Device("cpu:1", 2))),
        {step: Placement((lane,), 4) for step, lane in LANES.items()},
        window=WINDOW,
    )
    return Hands(flatten(GRAPH), plan, cluster, {"cpu:0": "one", "cpu:1": "two"})


@pytest.fixture
def apart() -> Iterator[Hands]:
    made = hands(Cluster(home("7"), home("8")))
    yield made
    made.close()


def submit(number: int, step: str) -> Submit:
    return Submit(number, step, LANES[step], (), ())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_way_of_a_step_is_in_its_orders(apart: Hands) -> None:
    ways = {step: apart.order(submit(i, step))[0].way for i, step in enumerate("abc")}
    assert ways == {"a": REFERENCE, "b": ARENA, "c": ARENA}


def test_lanes_on_other_hosts_are_sent_bytes_and_have_no_segments() -> None:
    cluster = Cluster(home("7"), home("8", "elsewhere"))
    made = hands(cluster)
    before = descriptors()
    assert [made.order(submit(i, s))[0].way for i, s in enumerate("abc")] == [REFERENCE, BYTES, BYTES]
    assert descriptors() == before
    made.close()
    assert [f for f, *_ in cluster.told] == [own], "nothing is to be given back"


def test_segments_are_made_once_for_each_lane_with_room_for_more_than_the_window(apart: Hands) -> None:
    before = descriptors()
    first, again = (apart.order(submit(i, "b"))[0] for i in (1, 2))
    other = apart.order(submit(3, "c"))[0]
    assert first.segments == again.segments
    assert not set(first.segments) & set(other.segments)
    assert descriptors() == before + 2 * FOLLOWERS
    sizes = {os.stat(place.path).st_size for place in (*first.segments, *other.segments)}
    assert sizes == {DATA + SPARE * WINDOW}
    assert (first.budget, first.threads, other.threads) == (SPARE * WINDOW, 1, 2)


def test_what_is_read_by_later_steps_is_needed_earlier(apart: Hands) -> None:
    assert apart.order(submit(1, "b"))[0].due > apart.order(submit(2, "c"))[0].due


def test_an_order_is_small(apart: Hands) -> None:
    assert len(pickle.dumps(apart.order(submit(1, "b")))) < 1000


def test_freed_values_ride_with_the_next_order_of_their_lane(apart: Hands) -> None:
    for number, step, name in ((1, "b", (5, 1)), (2, "b", (6, 1)), (3, "c", (5, 9)), (4, "b", None)):
        apart.order(submit(number, step))
        apart.made(submit(number, step), name)
    for number in (1, 2, 3, 4, 1):
        apart.free(number)
    apart.free("docs")
    assert apart.order(submit(5, "a"))[1] == ((5, 1), (6, 1))
    assert apart.order(submit(6, "b"))[1] == ()
    assert apart.order(submit(7, "c"))[1] == ((5, 9),)


def test_the_client_takes_what_workers_made(apart: Hands) -> None:
    rows = Embeddings((("a",),), np.ones((1, 5000), np.float32))
    shelf = Shelf()
    here, given = shelf.hand(rows, apart.order(submit(1, "b"))[0])
    assert isinstance(given, Handle)
    assert here is None
    found: Any = apart.take(Made(here, None, None, Times(0, 0), given))
    assert np.array_equal(found.vectors, rows.vectors)
    assert apart.take(rows) is rows
    shelf.close()


def test_at_the_end_workers_give_the_memory_of_this_run_back_and_ours_is_closed() -> None:
    before = descriptors()
    cluster = Cluster(home("7"), home("8"))
    made = hands(cluster)
    carries = [made.order(submit(i, s))[0] for i, s in enumerate("bc")]
    made.close()
    made.close()
    assert descriptors() == before
    (_, given, options), *more = cluster.told[1:]
    assert not more
    assert (cluster.told[1][0], options) == (give_back, {"on_error": "ignore"})
    assert given == (carries[0].run, {place for c in carries for place in c.segments})


def test_runs_have_names_of_their_own() -> None:
    """The path of a segment comes round again."""
    made = [hands(Cluster(home("7"), home("8"))) for _ in range(2)]
    assert len({m.order(submit(1, "b"))[0].run for m in made}) == 2
    for m in made:
        m.close()


def test_where_memory_cannot_be_shared_a_lane_has_one_file_which_goes_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pipeline.buffers.segment.attachable", lambda: False)
    before = descriptors()
    made = hands(Cluster(home("7"), home("8")))
    segments = [made.order(submit(i, s))[0].segments for i, s in enumerate("bc")]
    assert [[p.kind for p in s] for s in segments] == [["file"], ["file"]]
    assert len({p.path for s in segments for p in s}) == 2
    made.close()
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_segments_values_travel_as_bytes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, apart: Hands
) -> None:
    def full(nbytes: int, folder: Any) -> tuple[int, Place]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment, "create", full)
    carry, _ = apart.order(submit(1, "b"))
    assert carry.segments == ()
    assert "no room for shared memory: [Errno 28] No space left on device" in caplog.text
    given = Shelf().hand(Embeddings((("a",),), np.ones((1, 5000), np.float32)), carry)[1]
    assert isinstance(given, bytes)


def test_a_token_is_of_what_lies_in_shared_memory_only(apart: Hands) -> None:
    assert token(b"as it is") is None
    assert token(None) is None
