"""Beyond the conformance suite: what is inside an IVF index, how it is opened, restrictions, threads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.machine import Device
from retrieval import faiss_index, index
from retrieval.exact import reference_search
from retrieval.faiss_index import FlatIndex, HnswIndex, IvfIndex

CPU = Device("cpu:0", 2)


def unit(rows: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


@pytest.fixture
def lists_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists at a size that trains in milliseconds."""
    monkeypatch.setattr(faiss_index, "SMALLEST", 600)


def options(folder: Path, rows: int) -> dict[str, object]:
    ids = [("a", 1, i) for i in range(rows)]
    index.save_index(folder, ids, IvfIndex.build(unit(rows), CPU), "faiss-ivf", index.VECTORS, 8)
    found: dict[str, object] = json.loads((folder / "index.json").read_text())["options"]
    return found


def test_a_small_ivf_index_is_flat_inside_and_says_so(tmp_path: Path) -> None:
    found = options(tmp_path / "i", 100)
    assert (found["inside"], found["lists"]) == ("IndexFlatIP", 0)


@pytest.mark.parametrize(("rows", "lists"), [(700, 17), (1700, 43), (6400, 160)])
@pytest.mark.usefixtures("lists_early")
def test_a_large_one_has_about_two_root_n_lists_and_enough_rows_to_train_each(
    tmp_path: Path, rows: int, lists: int
) -> None:
    found = options(tmp_path / "i", rows)
    assert (found["inside"], found["lists"]) == ("IndexIVFScalarQuantizer", lists)


@pytest.mark.usefixtures("lists_early")
def test_lists_are_memory_mapped(tmp_path: Path) -> None:
    options(tmp_path / "i", 1600)
    opened = index.open_index(tmp_path / "i", CPU).index
    import faiss

    assert isinstance(faiss.downcast_InvertedLists(opened._index.invlists), faiss.OnDiskInvertedLists)


@pytest.mark.usefixtures("lists_early")
def test_visiting_every_list_finds_what_the_reference_finds() -> None:
    vectors, queries = unit(1600), unit(20, seed=1)
    found = IvfIndex.build(vectors, CPU).search(queries, 5, nprobe=10_000)
    for (positions, scores), (expected, exact) in zip(
        found, reference_search(vectors, queries, 5), strict=True
    ):
        assert positions.tolist() == expected.tolist()
        assert scores.tolist() == exact.tolist()


@pytest.mark.usefixtures("lists_early")
def test_few_lists_find_less_than_many() -> None:
    vectors, queries = unit(1600), unit(50, seed=1)
    expected = reference_search(vectors, queries, 10)
    built = IvfIndex.build(vectors, CPU)

    def recall(nprobe: int) -> float:
        found = built.search(queries, 10, nprobe=nprobe)
        return sum(len(set(a) & set(b)) for (a, _), (b, _) in zip(found, expected, strict=True)) / 500

    assert recall(1) < 0.7 < 0.95 < recall(64)


@pytest.mark.usefixtures("lists_early")
def test_a_narrow_restriction_is_searched_exactly_even_where_one_list_is_visited() -> None:
    vectors, queries = unit(1600), unit(10, seed=1)
    allowed = np.zeros(1600, np.bool_)
    allowed[100:140] = True
    found = IvfIndex.build(vectors, CPU).search(queries, 40, allowed, nprobe=1)
    for (positions, _), (expected, _) in zip(
        found, reference_search(vectors, queries, 40, allowed), strict=True
    ):
        assert positions.tolist() == expected.tolist()


def test_the_same_rows_give_the_same_graph_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        HnswIndex.build(unit(600), CPU).save(tmp_path / name)
    assert (tmp_path / "a" / "index.faiss").read_bytes() == (tmp_path / "b" / "index.faiss").read_bytes()


@pytest.mark.parametrize("kind", [FlatIndex, HnswIndex])
def test_flat_and_graph_store_the_vectors_once(tmp_path: Path, kind: type[FlatIndex]) -> None:
    built = kind.build(unit(50), CPU)
    read = kind.load(tmp_path, built.save(tmp_path), CPU)
    assert [p.name for p in tmp_path.iterdir()] == ["index.faiss"]
    np.testing.assert_array_equal(read._exact.vectors, unit(50))


def test_threads_are_those_of_the_device() -> None:
    one = Device("cpu:0", 1)
    FlatIndex.build(unit(10), one).search(unit(1), 1)
    assert faiss_index._faiss(one).omp_get_max_threads() == 1
    HnswIndex.build(unit(10), CPU)
    assert faiss_index._faiss(CPU).omp_get_max_threads() == 2
