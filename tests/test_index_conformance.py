"""What every backend in the INDEXES table owes, on indexes as built and as read back from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import IndexMismatchError
from pipeline.lookup import find
from pipeline.machine import Device
from retrieval import index as store
from retrieval.exact import reference_search

CPU = Device("cpu:0", 2)
WIDTH = 16


def unit(rows: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def numbered(rows: int) -> list[tuple[str | int, ...]]:
    """Ids in order; five documents, one after the other."""
    return [(f"{'abcde'[5 * i // rows]}.txt", 1, i) for i in range(rows)]


@pytest.fixture(params=sorted(store.INDEXES))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored(folder: Path, vectors: NDArray[np.float32], backend: str) -> store.OpenIndex:
    built = find(backend, store.INDEXES, "backend").build(vectors, CPU)
    store.save_index(folder, numbered(len(vectors)), built, backend, store.VECTORS, vectors.shape[1])
    return store.open_index(folder, CPU)


def test_finds_what_the_reference_finds(tmp_path: Path, backend: str) -> None:
    vectors, queries = unit(300), unit(20, seed=1)
    found = stored(tmp_path / "i", vectors, backend).index.search(queries, 8)
    for (positions, scores), (expected, exact) in zip(
        found, reference_search(vectors, queries, 8), strict=True
    ):
        np.testing.assert_array_equal(positions, expected)
        np.testing.assert_array_equal(scores, exact)
        assert positions.dtype == np.int64
        assert scores.dtype == np.float32


def test_reading_back_changes_nothing(tmp_path: Path, backend: str) -> None:
    vectors, queries = unit(300), unit(5, seed=1)
    built = find(backend, store.INDEXES, "backend").build(vectors, CPU).search(queries, 3)
    read = stored(tmp_path / "i", vectors, backend).index.search(queries, 3)
    for (a, b), (c, d) in zip(built, read, strict=True):
        assert (a.tolist(), b.tolist()) == (c.tolist(), d.tolist())


def test_fewer_vectors_than_k_give_fewer_hits_and_never_minus_one(tmp_path: Path, backend: str) -> None:
    """Case B32."""
    [(positions, scores)] = stored(tmp_path / "i", unit(3), backend).index.search(unit(1), 10)
    assert sorted(positions) == [0, 1, 2]
    assert len(scores) == 3


def test_an_empty_index_has_no_hits(tmp_path: Path, backend: str) -> None:
    """Case B32."""
    for width in (0, WIDTH):
        opened = stored(tmp_path / str(width), np.zeros((0, width), np.float32), backend)
        assert [ids for ids, _ in opened.search(unit(2), 3)] == [(), ()]
        assert [ids for ids, _ in opened.search(unit(2), 3, "*.pdf")] == [(), ()]


def test_no_queries_give_no_results(tmp_path: Path, backend: str) -> None:
    assert stored(tmp_path / "i", unit(3), backend).index.search(unit(0), 3) == []


def test_a_vector_finds_itself_first_and_a_threshold_would_keep_it(tmp_path: Path, backend: str) -> None:
    """Case B37: larger is better, and the same text scores 1 with every backend."""
    vectors = unit(200)
    for row, (positions, scores) in enumerate(
        stored(tmp_path / "i", vectors, backend).index.search(vectors, 5)
    ):
        assert positions[0] == row
        assert scores[0] == pytest.approx(1, abs=1e-6)
        assert (np.diff(scores) <= 0).all()


def test_equal_vectors_tie_and_are_ranked_by_position(tmp_path: Path, backend: str) -> None:
    """Case B38."""
    vectors = unit(100)
    vectors[[90, 40, 7, 66]] = vectors[23]
    opened = stored(tmp_path / "i", vectors, backend)
    [(positions, scores)] = opened.index.search(vectors[23:24], 3)
    assert positions.tolist() == [7, 23, 40]
    assert len(set(scores.tolist())) == 1


def test_a_crowd_of_equal_vectors_gives_the_first_positions(tmp_path: Path, backend: str) -> None:
    """Case B38, with more ties than there are candidates."""
    vectors = np.repeat(unit(2), 150, axis=0)
    [(positions, _)] = stored(tmp_path / "i", vectors, backend).index.search(vectors[200:201], 4)
    assert positions.tolist() == [150, 151, 152, 153]


def test_the_result_does_not_depend_on_the_batch(tmp_path: Path, backend: str) -> None:
    """Case B38."""
    vectors, queries = unit(500), unit(33, seed=1)
    vectors[::50] = vectors[0]
    opened = stored(tmp_path / "i", vectors, backend).index
    together = opened.search(queries, 6)
    alone = [opened.search(queries[i : i + 1], 6)[0] for i in range(len(queries))]
    for (a, b), (c, d) in zip(together, alone, strict=True):
        assert (a.tolist(), b.tolist()) == (c.tolist(), d.tolist())


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_only_allowed_rows_are_found_and_all_that_k_asks_for(
    tmp_path: Path, backend: str, share: float
) -> None:
    vectors, queries = unit(400), unit(9, seed=1)
    allowed = np.random.default_rng(2).random(400) < share
    found = stored(tmp_path / "i", vectors, backend).index.search(queries, 12, allowed)
    for (positions, _), (expected, _) in zip(
        found, reference_search(vectors, queries, 12, allowed), strict=True
    ):
        assert positions.tolist() == expected.tolist()


def test_nothing_allowed_gives_no_hits(tmp_path: Path, backend: str) -> None:
    opened = stored(tmp_path / "i", unit(40), backend)
    assert len(opened.index.search(unit(1), 3, np.zeros(40, np.bool_))[0][0]) == 0


def test_queries_of_another_width_are_refused_with_both_widths_and_the_folder(
    tmp_path: Path, backend: str
) -> None:
    """Case B33."""
    opened = stored(tmp_path / "some index", unit(5), backend)
    with pytest.raises(IndexMismatchError, match=r"some index.* of width 16, .* have width 24"):
        opened.search(np.zeros((1, 24), np.float32), 3)


def test_a_glob_restricts_to_documents(tmp_path: Path, backend: str) -> None:
    opened = stored(tmp_path / "i", unit(50), backend)
    [(ids, _)] = opened.search(unit(1, seed=3), 50, "B.TXT, d*")
    assert {i[0] for i in ids} == {"b.txt", "d.txt"}
    assert len(ids) == 20


@pytest.mark.parametrize(("name", "recall"), [("faiss-ivf", 0.9), ("faiss-hnsw", 0.95)])
def test_approximate_backends_find_nearly_all_at_a_size_that_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, recall: float
) -> None:
    monkeypatch.setattr("retrieval.faiss_index.SMALLEST", 600)
    vectors, queries = unit(2000), unit(40, seed=1)
    opened = stored(tmp_path / "i", vectors, name).index
    allowed = np.arange(2000) % 2 == 0
    for mask in (None, allowed):
        found = opened.search(queries, 8, mask, nprobe=24)
        expected = reference_search(vectors, queries, 8, mask)
        hit = [len(set(a) & set(b)) / 8 for (a, _), (b, _) in zip(found, expected, strict=True)]
        assert np.mean(hit) >= recall
        assert mask is None or all(mask[positions].all() for positions, _ in found)
