"""How long Dask takes from a batch to the next: one real, short chain."""

from __future__ import annotations

import pytest

from pipeline import handoff


def test_a_batch_follows_another_within_a_second_and_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "STEPS", 4)
    assert 0 < handoff.seconds() < 1
