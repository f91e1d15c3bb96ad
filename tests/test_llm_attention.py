"""Attention over parts is attention over one row of keys, whatever lies in the rest of a slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.attention import Mask, Past, Slab, allowed, causal, joined, over_parts, whole, zeros
from stages.llm.family import network
from stages.llm.network import Network
from stages.llm.passes import Decoding, Pass, Prompt
from tests.llm_models import one_thread, random_tokens, tiny

HUGE = 1e4
"""What others left: finite, and a thousand times what is there."""

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def net() -> Network:
    return network(tiny("llama"))


def plain(q: Any, k: Any, v: Any, mask: Any, scale: float, softcap: float = 0.0) -> Any:
    """Softmax attention as it is written in books, in float64: q [B, R, d], k and v [B, T, d]."""
    q, k, v, mask = (np.asarray(x, np.float64) for x in (q, k, v, mask))
    scores = np.einsum("brd,btd->brt", q, k) * scale
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    scores = scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("brt,btd->brd", weights / weights.sum(-1, keepdims=True), v)


def random(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 99),
)
def test_parts_are_one_row_of_keys(
    batch: int, rows: int, lengths: list[int], softcap: float, seed: int
) -> None:
    import torch

    total = sum(lengths)
    q, k, v = (
        random(batch, rows, 4, seed=seed),
        random(batch, total, 4, seed=seed + 1),
        random(batch, total, 4),
    )
    mask = torch.zeros(batch, rows, total).masked_fill_(
        random(batch, rows, total, seed=seed + 2) > 0.3, -torch.inf
    )
    mask[:, :, 0] = 0
    parts = [(a.mT, b) for a, b in zip(k.split(lengths, 1), v.split(lengths, 1), strict=True)]
    found = over_parts(q, parts, Mask(0, mask), 0.7, softcap)
    assert np.allclose(found, plain(q, k, v, mask, 0.7, softcap), atol=1e-5)


@settings(deadline=None)
@given(st.integers(1, 12), st.sampled_from([(4, 4), (4, 2), (6, 1)]))
def test_a_sequence_that_begins_sees_what_is_before_it(count: int, heads: tuple[int, int]) -> None:
    q, k, v = (random(count, n, 4, seed=i) for i, n in enumerate((heads[0], heads[1], heads[1])))
    found = whole(q, k, v, 0.5).unflatten(1, (heads[0], 4))
    mask = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)[None]
    for h in range(heads[0]):
        own = h * heads[1] // heads[0]
        right = plain(q[None, :, h], k[None, :, own], v[None, :, own], mask, 0.5)[0]
        assert np.allclose(found[:, h], right, atol=1e-5)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 5))
def test_a_window_hides_what_is_far_back(start: int, count: int, window: int) -> None:
    import torch

    found = causal(start, count, window, torch.device("cpu"))
    for i in range(count):
        for key in range(start + count):
            distance = start + i - key
            seen = distance >= 0 and (not window or distance < window)
            assert float(found[i, key]) == (0.0 if seen else -np.inf)


def test_masks_have_the_shape_of_the_queries() -> None:
    import torch

    queries = torch.tensor([[3, 4], [0, 1]])
    found = allowed(queries, torch.arange(6), 0)
    assert (found.shape, found.dtype) == ((2, 2, 6), torch.float32)
    assert found[1, 1].tolist() == [0, 0, *[-np.inf] * 4]


def numbers(net: Network, tokens: int, seed: int) -> Past:
    s = net.sizes
    return Past(
        random(s.layers, s.kv_heads, s.head, tokens, seed=seed),
        random(s.layers, s.kv_heads, tokens, s.head, seed=seed + 1),
    )


def same(a: Past, b: Past) -> bool:
    import torch

    return torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


def test_what_is_put_into_a_slot_is_found_there(net: Network) -> None:
    slab, one, two = Slab(net, 3, 64), numbers(net, 10, 0), numbers(net, 6, 2)
    slab.put(1, 0, one)
    slab.put(1, 10, two)
    assert same(slab.extent(1, 0, 16), joined([one, two]))
    assert same(
        slab.extent(1, 4, 12), Past(joined([one, two]).keys[..., 4:12], joined([one, two]).values[:, :, 4:12])
    )
    assert not slab.extent(0, 0, 64).keys.any()
    assert not slab.extent(2, 0, 64).values.any()


def test_an_extent_is_a_copy_and_a_cut_is_none(net: Network) -> None:
    slab, one = Slab(net, 2, 64), numbers(net, 10, 0)
    slab.put(0, 0, one)
    found = slab.extent(0, 0, 10)
    slab.wipe(0)
    assert same(found, one)
    assert found.cut(2, 5).keys.data_ptr() == found.keys[..., 2:].data_ptr()
    assert (len(found), len(found.cut(2, 5)), len(found.cut(4, 4))) == (10, 3, 0)


def test_moving_copies_the_beginning_of_a_slot(net: Network) -> None:
    slab, one = Slab(net, 3, 64), numbers(net, 10, 0)
    slab.put(2, 0, one)
    slab.move(2, 0, 10)
    assert same(slab.extent(0, 0, 10), one)


def test_a_wiped_slot_is_zeros_and_the_others_stay(net: Network) -> None:
    slab, one = Slab(net, 2, 64), numbers(net, 10, 0)
    one.keys[0, 0, 0, 0] = float("nan")
    slab.put(0, 0, one)
    slab.put(1, 0, numbers(net, 10, 5))
    slab.wipe(0)
    assert not slab.extent(0, 0, 64).keys.any()
    assert same(slab.extent(1, 0, 10), numbers(net, 10, 5))


def test_a_past_is_filled_from_a_slot(net: Network) -> None:
    slab, one = Slab(net, 2, 64), numbers(net, 20, 0)
    slab.put(1, 0, one)
    into = numbers(net, 8, 9)
    into.write(slab, 1, 5)
    assert same(into, one.cut(5, 13))


def test_memory_on_a_cpu_is_zero_and_of_the_dtype_that_was_asked() -> None:
    import torch

    made = zeros((2, 3), torch.bfloat16, torch.device("cpu"))
    assert (made.shape, made.dtype) == ((2, 3), torch.bfloat16)
    assert not made.any()
    made[1] = 2
    assert made.sum() == 6


def soiled(net: Network) -> Slab:
    """A slab in which others left what they had."""
    slab = Slab(net, 4, 64)
    for tensor in (*slab.keys, *slab.values):
        tensor.copy_(random(*tensor.shape) * HUGE)
    return slab


def said(net: Network, slab: Slab, counts: list[int]) -> Any:
    """Logits of two sequences, read and then decoded with so many tokens a step, in slots 1 and 3."""
    import torch

    ids = torch.from_numpy(random_tokens(60)).long()
    lengths = [5, 20]
    found = []
    with torch.inference_mode():
        for slot, n in zip((1, 3), lengths, strict=True):
            reader = Prompt(net, slab, slot, 0, n)
            found.append(net.hidden(ids[:n], torch.arange(n), Pass((reader,)))[-1:])
        for _ in range(3):
            at = torch.cat([torch.arange(n, n + c) for n, c in zip(lengths, counts, strict=True)])
            reader_ = Decoding(net, slab, [1, 3], lengths, counts)
            found.append(net.hidden(ids[at], at, Pass((reader_,))))
            lengths = [n + c for n, c in zip(lengths, counts, strict=True)]
    return torch.cat(found)


@pytest.mark.parametrize("counts", [[1, 1], [1, 4], [3, 1], [2, 2]])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_what_others_left_in_a_slot_is_never_seen(name: str, counts: list[int]) -> None:
    import torch

    net = network(tiny(name))
    clean = said(net, Slab(net, 4, 64), counts)
    assert torch.allclose(said(net, soiled(net), counts), clean, rtol=1e-6, atol=1e-6)
