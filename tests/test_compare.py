from __future__ import annotations

import json
import math

import pytest

from pipeline.advice import Bottleneck
from pipeline.compare import HEAD, compare, error
from pipeline.timeline import Span, Timeline

PREDICTED = Timeline(
    12.0,
    (
        Span("parse", "cpu:0", 0, 5, 8),
        Span("parse", "cpu:0", 5, 11, 8),
        Span("embed", "cuda:0", 5, 7, 16),
        Span("rank", "cuda:0", 8, 12, 2),
    ),
)
MEASURED = Timeline(
    16.0,
    (
        Span("parse", "cpu:0", 0, 4, 6),
        Span("parse", "cpu:0", 4, 8, 6),
        Span("parse", "cpu:0", 8, 10, 4),
        Span("embed", "cuda:0", 4, 15, 16),
        Span("cite", "cpu:0", 15, 16, 2),
    ),
)


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"), [(8, 10, 0.2), (12, 10, 0.2), (0, 0, 0), (1, 0, math.inf)]
)
def test_the_error_is_relative_to_what_was_measured(
    predicted: float, measured: float, expected: float
) -> None:
    assert error(predicted, measured) == pytest.approx(expected)


def test_each_step_stands_beside_itself_and_the_run_below() -> None:
    assert compare(PREDICTED, MEASURED).rows() == [
        ("parse", "2 / 3", "16", "11.0", "10.0", "1.10"),
        ("embed", "1", "16", "2", "11.0", "0.18"),
        ("rank", "1 / -", "2 / -", "4", "-", "-"),
        ("cite", "- / 1", "- / 2", "-", "1", "-"),
        ("the run", "", "", "12.0", "16.0", "0.75"),
    ]


def test_a_row_has_a_cell_for_each_column() -> None:
    assert {len(row) for row in compare(PREDICTED, MEASURED).rows()} == {len(HEAD)}


def test_both_bottlenecks_are_named() -> None:
    found = compare(PREDICTED, MEASURED)
    assert found.predicted_bottleneck == Bottleneck("parse", "cpu:0", 11 / 12)
    assert found.measured_bottleneck == Bottleneck("embed", "cuda:0", 11 / 16)
    assert not found.is_bottleneck_right


def test_the_bottleneck_is_right_where_the_step_is_whatever_the_lane() -> None:
    elsewhere = Timeline(9.0, (Span("parse", "cpu:1", 0, 9, 1),))
    assert compare(PREDICTED, elsewhere).is_bottleneck_right


def test_a_timeline_is_no_error_away_from_itself() -> None:
    found = compare(MEASURED, MEASURED)
    assert found.error == 0
    assert [p.ratio for p in found.pairs] == [1, 1, 1]
    assert found.is_bottleneck_right


def test_batches_that_overlap_on_a_lane_count_once() -> None:
    both = Timeline(3.0, (Span("decode", "cuda:0", 0, 2, 1), Span("decode", "cuda:0", 1, 3, 1)))
    total = compare(both, both).pairs[0].measured
    assert total is not None
    assert (total.batches, total.rows, total.seconds) == (2, 2, 3)


def test_as_json_what_cannot_be_divided_is_null() -> None:
    found = json.loads(json.dumps(compare(PREDICTED, Timeline(0.0, ())).as_dict(), allow_nan=False))
    assert found["error"] is None
    assert found["measured_bottleneck"] is None
    assert found["steps"][0] == {
        "step": "parse", "ratio": None,
        "predicted_batches": 2, "predicted_rows": 16, "predicted_seconds": 11,
        "measured_batches": None, "measured_rows": None, "measured_seconds": None,
    }  # fmt: skip


def test_as_json_the_numbers_are_whole() -> None:
    found = compare(PREDICTED, MEASURED).as_dict()
    assert (found["predicted_seconds"], found["measured_seconds"], found["error"]) == (12, 16, 0.25)
    assert found["predicted_bottleneck"] == {"step": "parse", "device": "cpu:0", "share": 11 / 12}
    assert found["is_bottleneck_right"] is False
    assert [s["ratio"] for s in found["steps"]] == [1.1, 2 / 11, None, None]
