"""Search by words: scores, ties, what is no hit, and reading back."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest

from pipeline.machine import Device
from retrieval.bm25 import Bm25Index

CPU = Device("cpu:0", 2)
TEXTS = [
    "The ridge point divides the roofline.",
    "Decode is bound by bandwidth, prefill by arithmetic.",
    "A roofline has one ridge point and one roof.",
    "",
    "Vector search reads every vector.",
]


def read_back(folder: Path, texts: list[str]) -> Bm25Index:
    folder.mkdir()
    return Bm25Index.load(folder, Bm25Index.build(texts).save(folder), CPU)


def test_the_text_with_the_words_comes_first(tmp_path: Path) -> None:
    [(positions, scores)] = read_back(tmp_path / "i", TEXTS).search(["what bounds decode bandwidth?"], 3)
    assert positions[0] == 1
    assert positions.dtype == np.int64
    assert scores.dtype == np.float32


def test_the_score_is_bm25_in_the_lucene_form() -> None:
    texts = ["red green", "red red blue yellow", "blue"]
    [(positions, scores)] = Bm25Index.build(texts).search(["red"], 3)
    idf, mean = log(1 + (3 - 2 + 0.5) / (2 + 0.5)), 7 / 3
    expected = {0: 1 / (1 + 1.5 * (0.25 + 0.75 * 2 / mean)), 1: 2 / (2 + 1.5 * (0.25 + 0.75 * 4 / mean))}
    assert dict(zip(positions.tolist(), scores.tolist(), strict=True)) == pytest.approx(
        {p: idf * s for p, s in expected.items()}, rel=1e-5
    )


def test_texts_without_a_common_word_are_no_hits() -> None:
    """Case B32: no invented documents."""
    [(positions, scores)] = Bm25Index.build(TEXTS).search(["ridge"], 5)
    assert sorted(positions) == [0, 2]
    assert (scores > 0).all()


@pytest.mark.parametrize("text", ["", "  \n", "?!", "zzz unknown", "a"])
def test_queries_without_a_known_word_have_no_hits(text: str) -> None:
    [(positions, scores)] = Bm25Index.build(TEXTS).search([text], 5)
    assert (len(positions), len(scores)) == (0, 0)


@pytest.mark.parametrize("texts", [[], [""], ["", " "], ["?"]])
def test_an_index_without_words_has_no_hits(tmp_path: Path, texts: list[str]) -> None:
    assert [len(p) for p, _ in read_back(tmp_path / "i", texts).search(["ridge", ""], 3)] == [0, 0]


def test_equal_texts_tie_and_are_ranked_by_position() -> None:
    """Case B38."""
    [(positions, scores)] = Bm25Index.build(["same words", "other", *["same words"] * 9]).search(["same"], 4)
    assert positions.tolist() == [0, 2, 3, 4]
    assert len(set(scores.tolist())) == 1


def test_only_allowed_texts_are_found() -> None:
    allowed = np.array([False, True, True, True, True])
    [(positions, _)] = Bm25Index.build(TEXTS).search(["ridge point"], 5, allowed)
    assert positions.tolist() == [2]


def test_reading_back_changes_nothing_and_maps_the_scores(tmp_path: Path) -> None:
    read = read_back(tmp_path / "i", TEXTS)
    for (a, b), (c, d) in zip(Bm25Index.build(TEXTS).search(TEXTS, 3), read.search(TEXTS, 3), strict=True):
        assert (a.tolist(), b.tolist()) == (c.tolist(), d.tolist())
    assert isinstance(read._model.scores["data"], np.memmap)


def test_a_result_does_not_depend_on_the_other_queries() -> None:
    index = Bm25Index.build(TEXTS)
    queries = ["roofline ridge", "point of the roofline", "vector"]
    together = index.search(queries, 3)
    for query, (positions, scores) in zip(queries, together, strict=True):
        [(a, b)] = index.search([query], 3)
        assert (a.tolist(), b.tolist()) == (positions.tolist(), scores.tolist())


def test_case_and_compatibility_forms_do_not_matter() -> None:
    index = Bm25Index.build(["the speciﬁcation of workﬂows", "other"])
    assert [p.tolist() for p, _ in index.search(["SPECIFICATION", "workflows"], 2)] == [[0], [0]]
