"""Ways for values to travel: all give the same value, and say what they shared and copied."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.buffers import TRANSPORTS
from pipeline.buffers.arena import Arena
from pipeline.buffers.frames import HEAD
from pipeline.buffers.handles import Handle, OwnerGoneError, StaleHandleError, Transport
from pipeline.buffers.transports import (
    SMALL,
    ArenaTransport,
    BytesTransport,
    FileTransport,
    ReferenceTransport,
)
from pipeline.lookup import load
from pipeline.values import Chunks, Embeddings

BUDGET = 16 << 20
NAMES = ("reference", "arena", "file", "bytes")
IDS = tuple((f"document {i}", 1, i) for i in range(300))


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[ArenaTransport]:
    found = ArenaTransport(Arena(BUDGET, tmp_path))
    yield found
    found.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FileTransport]:
    found = FileTransport(tmp_path)
    yield found
    found.close()


@pytest.fixture(params=NAMES)
def transport(request: pytest.FixtureRequest) -> Transport:
    made: dict[str, Any] = {"reference": ReferenceTransport, "bytes": BytesTransport}
    name = request.param
    found: Transport = made[name]() if name in made else request.getfixturevalue(name)
    return found


@pytest.fixture(params=["arena", "file"])
def blocks(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def rows() -> Embeddings:
    return Embeddings(IDS, np.arange(300 * 64, dtype=np.float32).reshape(300, 64))


def chunks() -> Chunks:
    """Many texts, many small arrays, and one large one."""
    texts = tuple(f"text {i}" for i in range(300))
    boxes = (np.ones((999, 4), np.float32), *(np.full((2, 4), i, np.float32) for i in range(299)))
    return Chunks(IDS, texts, texts, texts, (0,) * 300, (6,) * 300, boxes)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_leads_to_the_transport_of_that_name(name: str) -> None:
    assert load(TRANSPORTS[name]).name == name


def test_rows_come_back_the_same_and_cannot_be_written(transport: Transport) -> None:
    given = transport.put(rows())
    back = transport.get(pickle.loads(pickle.dumps(given)) if transport.name != "reference" else given)
    assert back.ids == IDS
    assert (back.vectors == rows().vectors).all()
    with pytest.raises(ValueError, match="read-only"):
        back.vectors[0, 0] = 1
    transport.release(given)


def test_texts_and_many_arrays_come_back_the_same(transport: Transport) -> None:
    given = transport.put(chunks())
    back = transport.get(given)
    assert (back.ids, back.texts, back.ends) == (IDS, chunks().texts, chunks().ends)
    assert all((a == b).all() for a, b in zip(back.boxes, chunks().boxes, strict=True))
    transport.release(given)


def test_tensors_that_numpy_does_not_know_come_back_the_same(transport: Transport) -> None:
    tensor = torch.arange(9999).to(torch.bfloat16)
    given = transport.put({"keys": (tensor, tensor.to(torch.float8_e4m3fn))})
    back = transport.get(given)["keys"]
    assert torch.equal(back[0], tensor)
    assert back[1].dtype is torch.float8_e4m3fn
    transport.release(given)


@pytest.mark.parametrize("value", [None, "text", (), np.zeros(0), {"a": np.ones(3)}], ids=str)
def test_small_values_come_back_the_same(transport: Transport, value: Any) -> None:
    given = transport.put(value)
    back = transport.get(given)
    assert not isinstance(given, Handle)
    assert str(back) == str(value)
    transport.release(given)


def test_handles_take_a_few_hundred_bytes_whatever_they_stand_for(blocks: Any) -> None:
    many = [np.ones(300 + i) for i in range(200)]
    for value in (rows(), chunks(), np.zeros(9999), "x" * 2 * SMALL, many):
        given = blocks.put(value)
        assert isinstance(given, Handle)
        assert len(pickle.dumps(given)) < HEAD + 400
        blocks.get(given)
        blocks.release(given)


# accounts


def test_one_producer_and_three_readers_copy_the_value_once(blocks: Any, arena: ArenaTransport) -> None:
    value = np.ones(1 << 20, np.uint8)
    given = blocks.put(value)
    readers = [ArenaTransport() if blocks is arena else blocks for _ in range(3)]
    views = [r.get(given) for r in readers]
    assert all((v == 1).all() for v in views)
    everybody = {id(t): t for t in (blocks, *readers)}.values()
    assert sum(t.copied for t in everybody) == value.nbytes
    assert sum(t.shared for t in everybody) == 3 * value.nbytes


def test_bytes_are_copied_in_and_out_and_references_not_at_all() -> None:
    plain, reference = BytesTransport(), ReferenceTransport()
    given = plain.put(rows())
    plain.get(given)
    assert (plain.copied, plain.shared) == (2 * len(given), 0)
    assert reference.get(reference.put(value := rows())) is value
    assert (reference.copied, reference.shared) == (0, value.nbytes)


# leases


def released(arena: ArenaTransport) -> int:
    """Bytes in use, after all that readers gave back."""
    assert arena.arena is not None
    arena.arena.collect()
    return arena.arena.used


def test_a_view_of_a_value_keeps_its_block(arena: ArenaTransport) -> None:
    given = arena.put((rows(), torch.ones(999)))
    back, tensor = arena.get(given)
    arena.release(given)
    row = back.take([3]).vectors  # a copy: it keeps nothing
    some = back.vectors[3:5].T
    del back, tensor
    assert released(arena) > 0
    assert some[0].tolist() == [192, 256]
    del some
    assert released(arena) == 0
    assert row[0, 0] == 192


def test_a_tensor_keeps_its_block(arena: ArenaTransport) -> None:
    given = arena.put((rows(), torch.ones(999)))
    part = arena.get(given)[1].view(torch.int32)[7:]
    arena.release(given)
    assert released(arena) > 0
    assert part.view(torch.float32).sum() == 992
    del part
    assert released(arena) == 0


def test_an_output_that_aliases_its_input_needs_nothing(arena: ArenaTransport) -> None:
    given = arena.put(rows())
    output = Embeddings(IDS, arena.get(given).vectors)
    arena.release(given)
    again = arena.put(output)
    assert (output.vectors == rows().vectors).all()
    del output
    assert (arena.get(again).vectors == rows().vectors).all()
    arena.release(again)
    assert released(arena) == 0


def test_a_value_without_views_keeps_nothing(arena: ArenaTransport) -> None:
    given = arena.put("x" * 2 * SMALL)
    back = arena.get(given)
    arena.release(given)
    assert released(arena) == 0
    assert back == "x" * 2 * SMALL


def test_a_stage_that_writes_a_tensor_of_a_file_changes_only_its_own(file: FileTransport) -> None:
    given = file.put(torch.zeros(999))
    file.get(given).fill_(1)
    assert file.get(given).sum() == 0


# the end of values


def test_a_released_value_is_no_more(blocks: Any) -> None:
    given = blocks.put(rows())
    blocks.release(given)
    with pytest.raises(StaleHandleError):
        blocks.get(given)
    with pytest.raises(StaleHandleError):
        blocks.release(given)


def test_only_its_producer_releases_a_value(arena: ArenaTransport, tmp_path: Path) -> None:
    other = ArenaTransport(Arena(BUDGET, tmp_path))
    given = arena.put(rows())
    for reader in (other, ArenaTransport()):
        with pytest.raises(ValueError, match="only who put a value releases it"):
            reader.release(given)
    other.close()


def test_who_only_reads_cannot_put() -> None:
    with pytest.raises(ValueError, match="made for reading only"):
        ArenaTransport().put(rows())


def test_a_closed_transport_leaves_nothing_and_readers_keep_what_they_read(
    blocks: Any, tmp_path: Path
) -> None:
    given = blocks.put(rows())
    back = blocks.get(given)
    blocks.close()
    assert not list(tmp_path.iterdir())
    assert (back.vectors == rows().vectors).all()
    with pytest.raises(OwnerGoneError):
        ArenaTransport().get(given) if isinstance(blocks, ArenaTransport) else blocks.get(given)


def test_a_value_that_does_not_fit_is_refused_and_takes_nothing(arena: ArenaTransport) -> None:
    with pytest.raises(MemoryError, match="no room for"):
        arena.put(np.zeros(2 * BUDGET, np.uint8))
    assert (released(arena), arena.copied) == (0, 0)
