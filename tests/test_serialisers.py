"""What goes through Dask as bytes comes back as it was, without more copies than a message needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from dask.sizeof import sizeof
from distributed import Client
from distributed.protocol import deserialize, serialize
from distributed.protocol.serialize import deserialize_bytes, serialize_bytelist

from pipeline.cluster import StatesPlugin, local_client
from pipeline.machine import Device, Machine
from pipeline.serialisers import register
from pipeline.shelf import Carry, Shelf
from pipeline.timeline import Times
from pipeline.values import Embeddings, Rows
from pipeline.worker import Made
from tests.toys import numbers

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64,
]  # fmt: skip
FRAMES = {"context": {"sender": {"address": "a"}, "recipient": {"address": "b"}}}
DASK = {"serializers": ["dask"], "on_error": "raise"}


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    register()


@dataclass(frozen=True, slots=True)
class States(Rows):
    """`keys`: bfloat16 [B, 3, D]."""

    keys_: Any


def states(rows: int = 4, width: int = 4096) -> States:
    found = torch.arange(rows * 3 * width, dtype=torch.float32).reshape(rows, 3, width).to(torch.bfloat16)
    return States(tuple((f"q{i}",) for i in range(rows)), found)


def alike(one: Any, two: Any) -> bool:
    return bool(one.dtype == two.dtype and one.shape == two.shape and torch.equal(_bytes(one), _bytes(two)))


def _bytes(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


@pytest.mark.parametrize("context", [{}, FRAMES], ids=["to disk", "to a worker"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_comes_back_as_it_was(dtype: Any, context: Any) -> None:
    tensor = torch.arange(6000).remainder(2).reshape(3, 2000).to(dtype)
    assert alike(deserialize(*serialize(tensor, **DASK, **context)), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 5, dtype=torch.bfloat16),
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.arange(9000.0).reshape(90, 100).t(),
        torch.arange(9000.0)[::3],
        torch.arange(3000.0).expand(4, 3000),
        torch.ones(3000, requires_grad=True),
    ],
    ids=["empty", "a number", "turned", "every third", "expanded", "learning"],
)
def test_a_tensor_of_any_form_comes_back(tensor: Any) -> None:
    found = deserialize(*serialize(tensor, **DASK))
    assert alike(found, tensor)
    assert found.requires_grad == tensor.requires_grad


def test_the_buffer_of_a_tensor_is_not_copied_on_its_way_into_a_message_and_out_of_it() -> None:
    tensor = torch.zeros(1 << 16, dtype=torch.bfloat16)
    header, frames = serialize(tensor, **DASK)
    where = [np.frombuffer(f, np.uint8).ctypes.data for f in frames if memoryview(f).nbytes == 1 << 17]
    assert where == [address(tensor)]
    arrived = [bytearray(f) for f in frames]
    found = deserialize(header, arrived)
    assert address(found) in [np.frombuffer(f, np.uint8).ctypes.data for f in arrived]


def test_rows_are_taken_apart_down_to_their_tensors_and_arrays() -> None:
    rows = states()
    header, frames = serialize(rows, **DASK)
    assert max(memoryview(f).nbytes for f in frames) == rows.keys_.nbytes
    found = deserialize(header, [bytearray(f) for f in frames])
    assert found.ids == rows.ids
    assert alike(found.keys_, rows.keys_)


def test_arrays_in_rows_stay_read_only() -> None:
    rows = Embeddings((("a",),), np.ones((1, 5000), np.float32))
    header, frames = serialize(rows, **DASK)
    found = deserialize(header, [bytearray(f) for f in frames])
    assert not found.vectors.flags.writeable


def test_what_is_spilled_to_disk_comes_back() -> None:
    rows = states()
    made = Made(rows, None, None, Times(0, 1))
    found = deserialize_bytes(b"".join(serialize_bytelist(made)))
    assert alike(found.rows.keys_, rows.keys_)


def test_rows_of_a_class_that_nobody_can_import_travel_too() -> None:
    @dataclass(frozen=True, slots=True)
    class Own(Rows):
        x: Any

    rows = Own((("a",),), np.ones((1, 5000), np.float32))
    found = deserialize(*serialize(rows, **DASK))
    assert np.array_equal(found.x, rows.x)


def test_sizes_are_those_of_the_payload() -> None:
    rows = states()
    assert 0 <= sizeof(rows.keys_) - rows.keys_.nbytes < 200
    assert 0 <= sizeof(rows) - rows.nbytes < 200
    assert 0 <= sizeof(Made(rows, None, None, Times(0, 1))) - rows.nbytes < 400
    assert sizeof(torch.ones(1000, 1000)[0]) >= 4_000_000, "a view keeps all of it"


def test_a_value_that_is_kept_and_travels_as_bytes_takes_both() -> None:
    rows = states()
    here, given = Shelf().hand(rows, Carry("bytes"))
    assert sizeof(Made(here, None, None, Times(0, 1), given)) >= 2 * rows.keys_.nbytes


def test_torch_is_not_imported_for_it_and_is_known_when_it_comes() -> None:
    code = """
import sys
from pipeline.serialisers import register
from distributed.protocol import serialize
register()
assert "torch" not in sys.modules
import torch
tensor = torch.ones(5000, dtype=torch.bfloat16)
header, frames = serialize(tensor, serializers=["dask"], on_error="raise")
from dask.sizeof import sizeof
print(sizeof(tensor) >= 10000, serialize(torch.nn.Parameter(tensor), serializers=["dask"])[0]["serializer"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True dask\n", 0), done.stderr


# between processes


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_client(Machine((Device("cpu:0"), Device("cpu:1"))), apart=True) as made:
        made.register_plugin(StatesPlugin())
        yield made


def wrapped() -> Made:
    return Made(states(), None, None, Times(0, 1))


def total(value: Any) -> tuple[str, float, tuple[int, ...]]:
    rows: Any = value.rows if isinstance(value, Made) else value
    tensor = rows if isinstance(rows, torch.Tensor) else rows.keys_
    return str(tensor.dtype), float(tensor.float().sum()), tuple(tensor.shape)


def tensor_of() -> Any:
    return states().keys_


@pytest.mark.slow
@pytest.mark.parametrize("makes", [tensor_of, states, wrapped])
def test_between_worker_processes_and_to_the_client_it_comes_back_equal(client: Client, makes: Any) -> None:
    made = client.submit(makes, workers="cpu:0", pure=False)
    assert client.submit(total, made, workers="cpu:1", pure=False).result() == total(states())
    assert total(made.result()) == total(states())


def test_plain_rows_still_travel() -> None:
    assert deserialize(*serialize(numbers(a=1), **DASK)) == numbers(a=1)
