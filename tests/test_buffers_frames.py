"""Values taken apart and put together: the same value, no copies, nothing to be written."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.buffers.frames import ALIGN, HEAD, INLINE, fold, pack, pack_whole, places, unfold, unpack
from pipeline.values import Embeddings, Hits

BIG = 4 * INLINE
DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not str(d).startswith("torch.q")},
    key=str,
)


@dataclass(frozen=True, slots=True)
class Box:
    """A value of somebody's own type."""

    inside: Any


def same(a: Any, b: Any) -> bool:
    """Equal in type, shape, dtype and bits."""
    if isinstance(a, np.ndarray):
        return (
            type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        )
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


def block(buffers: list[memoryview]) -> memoryview:
    """Buffers side by side, as a transport lays them."""
    spots = places(b.nbytes for b in buffers)
    memory = np.zeros(sum(spots[-1]) if spots else 0, np.uint8).data
    for buffer, (start, size) in zip(buffers, spots, strict=True):
        memory[start : start + size] = buffer
    return memory


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


kinds = st.one_of(
    hnp.scalar_dtypes(), hnp.unicode_string_dtypes(max_len=4), hnp.byte_string_dtypes(max_len=4),
    hnp.array_dtypes(hnp.integer_dtypes(), max_size=3),
)  # fmt: skip
arrays = hnp.arrays(kinds, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12))
views = st.sampled_from(
    [lambda a: a, lambda a: a.T, lambda a: a[..., ::-1] if a.ndim else a, np.asfortranarray]
)
leaves = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.binary(max_size=9),
    st.builds(lambda a, f, n: f(np.stack([a] * n)), arrays, views, st.integers(1, 40)),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Box, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(values)
def test_any_value_comes_back_the_same(value: Any) -> None:
    head, buffers = pack(value)
    assert same(unpack(head, buffers), value)
    assert same(unpack(pack_whole(value), ()), value)


@settings(max_examples=100, deadline=None)
@given(values)
def test_a_folded_value_comes_back_from_its_block(value: Any) -> None:
    head, frames, buffers = fold(*pack(value))
    assert len(head) + 8 * len(frames) <= HEAD
    assert same(unfold(head, frames, block(buffers)), value)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1000)))
def test_places_are_aligned_and_do_not_overlap(sizes: list[int]) -> None:
    spots = places(sizes)
    assert [n for _, n in spots] == sizes
    assert all(start % ALIGN == 0 for start, _ in spots)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spots))


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_that_is_contiguous_in_any_order_is_not_copied(order: Any) -> None:
    array = np.asarray(np.arange(BIG).reshape(4, -1), order=order)
    head, buffers = pack((array, "text"))
    back, _ = unpack(head, buffers)
    assert np.shares_memory(array, buffers[0])
    assert np.shares_memory(array, back)
    assert back.strides == array.strides


def test_an_array_that_is_not_contiguous_is_copied_once() -> None:
    array = np.arange(2 * BIG)[::2]
    head, buffers = pack(array)
    assert not np.shares_memory(array, buffers[0])
    assert np.shares_memory(buffers[0], unpack(head, buffers))


@pytest.mark.parametrize("size", [0, 1, BIG])
def test_arrays_that_come_back_cannot_be_written(size: int) -> None:
    array = np.ones(size)
    head, buffers = pack(array)
    for back in (unpack(head, [memoryview(bytearray(b)) for b in buffers]), unpack(pack_whole(array), ())):
        assert not back.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            back[:] = 2.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            back.flags.writeable = True


def test_rows_come_back_with_small_arrays_in_the_head() -> None:
    ids = (("a",), ("b",))
    hits = Hits(ids, ((("d", 1),), ()), (np.ones(8, np.float32), np.ones(0, np.float32)))
    vectors = Embeddings(ids, np.ones((2, BIG), np.float32))
    head, buffers = pack((hits, vectors))
    assert [b.nbytes for b in buffers] == [8 * BIG]
    assert same(unpack(head, buffers), (hits, vectors))


def test_an_array_of_objects_goes_as_pickle_makes_it() -> None:
    array = np.array(["a", None, 3] * BIG, dtype=object)
    head, buffers = pack(array)
    assert not buffers
    assert unpack(head, buffers).tolist() == array.tolist()


def test_a_mapped_file_goes_as_an_array(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "a", np.float32, "w+", shape=(BIG,))
    array[:] = 3
    head, buffers = pack(array)
    assert np.shares_memory(array, buffers[0])
    assert same(unpack(head, buffers), np.full(BIG, 3, np.float32))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (), (5,), (3, BIG)])
def test_tensors_of_every_dtype_come_back_with_the_same_bits(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    size = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    head, buffers = pack(Box(tensor))
    for back in (unpack(head, buffers).inside, unpack(pack_whole(tensor), ())):
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert bits(back) == bits(tensor)


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = torch.ones(BIG, dtype=torch.bfloat16)
    head, buffers = pack(tensor)
    assert unpack(head, buffers).data_ptr() == tensor.data_ptr()


def test_a_tensor_over_what_cannot_be_written_is_a_copy() -> None:
    head, buffers = pack(torch.zeros(BIG))
    frozen = bytes(buffers[0])
    unpack(head, [frozen]).fill_(1)
    assert frozen == bytes(4 * BIG)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(BIG).view(2, -1).T,
        torch.ones(1).expand(BIG),
        torch.randn(BIG, dtype=torch.complex64).conj(),
        torch.ones(BIG, requires_grad=True),
        torch.randn(2, 3, 20, 20).to(memory_format=torch.channels_last),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(BIG)),
    ],
    ids=["transposed", "expanded", "conjugated", "learns", "channels last", "sparse", "parameter"],
)
def test_tensors_of_every_make_come_back(tensor: torch.Tensor) -> None:
    back = unpack(*pack(tensor))
    assert type(back) is type(tensor)
    assert back.requires_grad == tensor.requires_grad
    assert torch.equal(back.detach().to_dense(), tensor.detach().to_dense())


def test_torch_is_not_imported_for_values_without_tensors() -> None:
    code = """
import sys
import numpy as np
from pipeline.buffers import transports
from pipeline.buffers.frames import pack, unpack
unpack(*pack(np.ones(9999)))
print("torch" in sys.modules)
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
