"""Exact search equals its reference on every path: direct, tiled, bf16 candidates, crowds of ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.machine import Device
from retrieval import exact
from retrieval.exact import ExactIndex, inner_products, largest_norm, reference_search
from retrieval.index import Found

CPU = Device("cpu:0", 2)


class Bfloat16Index(ExactIndex):
    """As on hardware that multiplies bf16 fast; torch computes the same elsewhere, slowly."""

    def __init__(self, vectors: NDArray[np.float32], device: Device, norm: float) -> None:
        super().__init__(vectors, device, norm)
        self._fast = True


def same(found: list[Found], expected: list[Found]) -> None:
    for (a, b), (c, d) in zip(found, expected, strict=True):
        assert (a.tolist(), b.tolist()) == (c.tolist(), d.tolist())


def corpus(rows: int, width: int, distinct: int, scale: float, seed: int) -> NDArray[np.float32]:
    """Vectors with repeats: `rows` drawn from `distinct` ones."""
    rng = np.random.default_rng(seed)
    few = (scale * rng.standard_normal((distinct, width))).astype(np.float32)
    return few[rng.integers(0, distinct, rows)]


@pytest.mark.slow
@settings(deadline=None)
@given(
    rows=st.integers(1, 200),
    width=st.sampled_from([1, 3, 16]),
    distinct=st.integers(1, 200),
    scale=st.sampled_from([1e-3, 1.0, 100.0]),
    k=st.integers(1, 40),
    tile=st.sampled_from([1, 50, 700, 1 << 22]),
    half=st.booleans(),
    restricted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_reference(
    rows: int,
    width: int,
    distinct: int,
    scale: float,
    k: int,
    tile: int,
    half: bool,
    restricted: bool,
    seed: int,
) -> None:
    vectors = corpus(rows, width, distinct, scale, seed)
    queries = np.concatenate([corpus(5, width, 5, scale, seed + 1), vectors[:2]])
    allowed = np.random.default_rng(seed).random(rows) < 0.3 if restricted else None
    index = (Bfloat16Index if half else ExactIndex).build(vectors, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "TILE", tile)
        same(index.search(queries, k, allowed), reference_search(vectors, queries, k, allowed))


def test_the_reference_is_the_inner_product_best_first() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, 24)).astype(np.float32) for n in (90, 7))
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    for row, (positions, scores) in zip(products, reference_search(vectors, queries, 90), strict=True):
        np.testing.assert_array_equal(positions, np.argsort(-row))
        np.testing.assert_allclose(scores, np.sort(row)[::-1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 7, 16, 100, 384, 1000])
def test_a_score_depends_on_nothing_but_its_two_vectors(width: int) -> None:
    rng = np.random.default_rng(width)
    vectors, query = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, width), width))
    everything = inner_products(vectors, query, np.arange(70))
    for count in (1, 2, 5, 33):
        some = rng.permutation(70)[:count]
        np.testing.assert_array_equal(inner_products(vectors, query, some), everything[some])


def test_scores_that_bf16_cannot_tell_apart_are_still_ranked_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of near-equal vectors: the margin is not met, and the query goes the exact way."""
    vectors = np.ones((1000, 8), np.float32) + np.linspace(0, 1e-3, 1000, dtype=np.float32)[:, None]
    queries = np.ones((3, 8), np.float32)
    monkeypatch.setattr(exact, "TILE", 256)
    same(Bfloat16Index.build(vectors, CPU).search(queries, 5), reference_search(vectors, queries, 5))


def test_well_spread_scores_need_no_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, 64)).astype(np.float32) for n in (3000, 4))
    vectors[:8] += 3 * queries.sum(axis=0)
    index = Bfloat16Index.build(vectors, CPU)
    monkeypatch.setattr(exact, "TILE", 4096)
    expected = reference_search(vectors, queries, 4)
    monkeypatch.setattr(index, "_direct", None)  # calling it would raise
    same(index.search(queries, 4), expected)


def test_no_product_is_further_off_than_its_bound() -> None:
    import torch

    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, 48)).astype(np.float32) for n in (500, 20))
    truth = queries.astype(np.float64) @ vectors.astype(np.float64).T
    norms = np.linalg.norm(queries, axis=1, keepdims=True) * largest_norm(vectors)
    for dtype, unit in ((torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8)):
        product = torch.from_numpy(queries).to(dtype) @ torch.from_numpy(vectors).to(dtype).T
        assert (abs(product.double().numpy() - truth) <= exact.error_bound(norms, 48, unit)).all()


def test_reduced_precision_of_torch_is_reckoned_with() -> None:
    import torch

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert exact.single_unit() == 2.0**-8
    finally:
        torch.set_float32_matmul_precision(before)
    assert exact.single_unit() == 2.0**-24


def test_tiles_hold_every_allowed_row_and_skip_the_rest() -> None:
    allowed = np.zeros(100, np.bool_)
    allowed[[12, 15, 77]] = True
    assert exact._tiles(100, 10, allowed) == [(12, 16), (77, 78)]
    assert exact._tiles(25, 10, None) == [(0, 10), (10, 20), (20, 25)]


def test_read_only_vectors_and_queries_are_fine() -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((4, 8)).astype(np.float32)
    queries.flags.writeable = False
    vectors = rng.standard_normal((30, 8)).astype(np.float32)
    vectors.flags.writeable = False
    same(ExactIndex.build(vectors, CPU).search(queries, 3), reference_search(vectors, queries, 3))


@pytest.mark.gpu
def test_cuda_gives_what_the_cpu_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    vectors, queries = corpus(5000, 96, 3000, 1.0, 0), corpus(40, 96, 40, 1.0, 1)
    allowed = np.arange(5000) % 3 == 0
    index = ExactIndex.build(vectors, Device("cuda:0"))
    monkeypatch.setattr(exact, "TILE", 1 << 14)
    for mask in (None, allowed):
        same(index.search(queries, 8, mask), reference_search(vectors, queries, 8, mask))
