"""Lanes that come and go, seen through a client that is made up."""

from __future__ import annotations

from typing import Any

from pipeline.cluster import GRACE, LOOK, Pulse


class Workers:
    """A client that says which workers there are: address to name."""

    def __init__(self, **there: str) -> None:
        self.there = there
        self.asked = 0
        self.now = 0.0
        self.scheduler = self
        self.identity = None

    def sync(self, call: Any, **options: Any) -> dict[str, Any]:
        self.asked += 1
        return {"workers": {a: {"name": name} for a, name in self.there.items()}}

    def pulse(self) -> Pulse:
        return Pulse(self, {"cpu:0": "a", "cpu:1": "b"}, lambda: self.now)


def later(client: Workers, pulse: Pulse, seconds: float) -> list[str]:
    client.now += seconds
    return pulse.gone()


def test_a_lane_whose_worker_stays_away_is_gone_once() -> None:
    client = Workers(a="one", b="two")
    pulse = client.pulse()
    del client.there["b"]
    assert later(client, pulse, LOOK) == []
    assert later(client, pulse, GRACE) == ["cpu:1"]
    assert later(client, pulse, GRACE) == []
    assert pulse.addresses == {"cpu:0": "a"}


def test_a_worker_that_was_started_anew_takes_the_place_of_the_old_one() -> None:
    client = Workers(a="one", b="two")
    pulse = client.pulse()
    client.there = {"a": "one", "c": "two"}
    assert later(client, pulse, LOOK) == []
    assert pulse.addresses == {"cpu:0": "a", "cpu:1": "c"}
    assert later(client, pulse, GRACE) == []


def test_a_worker_that_comes_back_in_time_was_never_gone() -> None:
    client = Workers(a="one", b="two")
    pulse = client.pulse()
    del client.there["b"]
    assert later(client, pulse, LOOK) == []
    client.there["b"] = "two"
    assert later(client, pulse, LOOK) == []
    del client.there["b"]
    assert later(client, pulse, GRACE) == [], "the time away begins again"


def test_workers_are_not_asked_for_after_every_batch() -> None:
    client = Workers(a="one", b="two")
    pulse = client.pulse()
    asked = client.asked
    for _ in range(100):
        later(client, pulse, LOOK / 200)
    assert client.asked == asked
