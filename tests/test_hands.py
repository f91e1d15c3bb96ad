"""The client's side of handing over, seen through a client that is made up."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.buffers import segment
from pipeline.buffers.device import Gpu, View, view
from pipeline.buffers.handles import Handle, Place
from pipeline.buffers.identity import own
from pipeline.buffers.leases import DATA
from pipeline.events import Submit
from pipeline.graph import Graph, node
from pipeline.handover import ARENA, BYTES, REFERENCE, settled
from pipeline.hands import FOLLOWERS, SPARE, Hands, give_back, homes
from pipeline.machine import Device, Machine
from pipeline.plan import Placement, Plan, Way
from pipeline.program import flatten
from pipeline.shelf import Shelf, token
from pipeline.timeline import Times
from pipeline.values import Embeddings
from pipeline.worker import Made
from tests.toys import Numbers, Plus

WINDOW = 1 << 20
GRAPH = Graph(
    {"docs": Numbers},
    (node("a", Plus(), a="docs"), node("b", Plus(2), a="a"), node("c", Plus(3), a="b")),
    {"out": "c"},
)
ADDRESSES = {"cpu:0": "one", "cpu:1": "two"}
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


def planned() -> Plan:
    return Plan(
        Machine((Device("cpu:0"), Device("cpu:1", 2))),
        {step: Placement((lane,), 4) for step, lane in LANES.items()},
        window=WINDOW,
    )


def hands(cluster: Cluster) -> Hands:
    return Hands(flatten(GRAPH), planned(), cluster, ADDRESSES)


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


def test_lanes_of_our_own_hand_over_as_planned_and_are_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    for apart, ways in ((False, [REFERENCE] * 3), (True, [REFERENCE, ARENA, ARENA])):
        cluster, plan = Cluster(), settled(flatten(GRAPH), planned(), apart)
        made = Hands(flatten(GRAPH), plan, cluster, ADDRESSES, ours=True)
        assert made.plan == plan
        assert [made.order(submit(i, s))[0].way for i, s in enumerate("abc")] == ways
        assert not cluster.told
        made._segments.clear()  # there are no workers to give them back
        made.close()
    assert caplog.text == ""


def test_a_plan_that_nobody_settled_is_settled_for_lanes_of_our_own() -> None:
    made = Hands(flatten(GRAPH), replace(planned(), apart=True), Cluster(), ADDRESSES, ours=True)
    assert made.plan.ways == settled(flatten(GRAPH), planned(), apart=True).ways
    made.close()


def test_on_a_cluster_lanes_decide_and_what_differs_from_the_plan_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = settled(flatten(GRAPH), planned(), apart=True)
    found = Cluster(home("7"), home("8", "elsewhere"))
    made = Hands(flatten(GRAPH), plan, found, ADDRESSES)
    assert made.plan.ways["b"] == Way(BYTES)
    assert caplog.messages == [f"values of {s} go by bytes, not by arena as planned" for s in "bc"]
    made.close()


def test_an_arena_warms_its_share_of_the_bytes_that_are_predicted_to_wait() -> None:
    plan = settled(flatten(GRAPH), replace(planned(), live=1001), apart=True)
    made = Hands(flatten(GRAPH), plan, Cluster(home("7"), home("8")), ADDRESSES)
    assert [made.order(submit(i, s))[0].warm for i, s in enumerate("abc")] == [0, 501, 501]
    made.close()


def test_when_a_worker_is_another_each_lane_is_told_once_to_free_what_the_dead_one_read(apart: Hands) -> None:
    def told() -> list[bool]:
        return [apart.order(submit(i, step))[0].bury for i, step in enumerate("abcc")]

    apart.bury(ADDRESSES)
    assert told() == [False] * 4, "nothing has changed"
    for addresses in ({"cpu:0": "one", "cpu:1": "three"}, {"cpu:0": "one"}):
        apart.bury(addresses)
        apart.bury(dict(addresses))
        assert told() == [True, False, True, False]


def test_cuda_lanes_of_a_cluster_say_what_they_see_and_others_are_not_asked() -> None:
    class Gpus(Cluster):
        def run(self, function: Any, *given: Any, **options: Any) -> Any:
            found = super().run(function, *given, **options)
            sees = View("h", (Gpu("GPU-a"), Gpu("GPU-b")))
            return dict.fromkeys(options["workers"], sees) if function is view else found

    cluster = Gpus(home("7"), home("8"))
    found = homes(cluster, {"cpu:0": "one", "cuda:1": "two"})
    assert (found["cpu:0"].gpu, found["cpu:0"].view) == ("", None)
    assert found["cuda:1"].gpu == "GPU-b"
    assert [(f, o["workers"]) for f, _, o in cluster.told] == [(own, ["one", "two"]), (view, ["two"])]


@pytest.mark.parametrize("allowed", [False, True])
def test_vectors_may_lose_between_hosts_where_the_user_allows_it_only(allowed: bool) -> None:
    plan = replace(planned(), lossy=allowed)
    for boot, bound in (("", []), ("elsewhere", ["b"])):
        made = Hands(flatten(GRAPH), plan, Cluster(home("7"), home("8", boot)), ADDRESSES)
        found = [step for i, step in enumerate("abc") if made.order(submit(i, step))[0].link]
        assert found == (bound if allowed else [])
        made.close()
