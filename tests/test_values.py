"""Rows of every kind: what a batch promises."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline import values
from pipeline.values import Chunks, Documents, Embeddings, Hits, Passage, Prompts, Rows
from tests.toys import Flags, Numbers, numbers

KINDS = [k for name in values.__all__ if isinstance(k := getattr(values, name), type) and issubclass(k, Rows)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_parts_give_an_empty_batch(kind: type[Rows]) -> None:
    empty = kind.concat([])
    assert len(empty) == 0
    assert all(len(getattr(empty, f.name)) == 0 for f in fields(empty))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(), max_size=8), st.data())
def test_concat_of_a_split_is_the_batch(xs: list[int], data: st.DataObject) -> None:
    rows = numbers(**{f"r{i}": x for i, x in enumerate(xs)})
    at = data.draw(st.integers(0, len(xs)))
    assert Numbers.concat(list(rows.split())) == rows
    assert Numbers.concat([rows.take(range(at)), rows.take(range(at, len(xs)))]) == rows


def test_take_chooses_and_orders_all_columns() -> None:
    rows = Flags((("a",), ("b",), ("c",)), (1, 2, 3), np.array([True, False, True]))
    taken = rows.take([2, 0])
    assert taken.ids == (("c",), ("a",))
    assert taken.x == (3, 1)
    assert taken.done.tolist() == [True, True]


def test_taking_no_rows_keeps_the_width_of_arrays() -> None:
    assert Embeddings((("a",),), np.ones((1, 8), np.float32)).take([]).vectors.shape == (0, 8)


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Numbers\.x has 2 rows, ids has 1"):
        Numbers((("a",),), (1, 2))


def test_arrays_of_a_batch_cannot_be_written() -> None:
    vectors = np.ones((1, 2), np.float32)
    rows = Embeddings((("a",),), vectors)
    with pytest.raises(ValueError, match="read-only"):
        rows.vectors[0, 0] = 5
    with pytest.raises(ValueError, match="read-only"):
        rows.take([0]).vectors[:] = 5
    vectors[0, 0] = 7  # its maker may: a view was frozen, not the array


def test_arrays_in_cells_cannot_be_written() -> None:
    prompts = Prompts((("a",),), (np.array([1, 2], np.int32),), ((),), (0,))
    with pytest.raises(ValueError, match="read-only"):
        prompts.tokens[0][0] = 5


@dataclass(frozen=True, slots=True)
class Anything(Rows):
    x: Any


@pytest.mark.parametrize("column", [[1], {1: 2}, {1}])
def test_a_column_that_can_change_is_refused(column: Any) -> None:
    with pytest.raises(ValueError, match=r"Anything\.x is a (list|dict|set): a column is a tuple"):
        Anything((("a",),), column)


@pytest.mark.parametrize("cell", [[1], {1: 2}, {1}, bytearray(b"1"), ("deep", (["list"],))])
def test_a_cell_that_can_change_is_refused(cell: Any) -> None:
    with pytest.raises(ValueError, match=r"Anything\.x holds a .*: rows are shared, use a tuple"):
        Anything((("a",),), (cell,))


def test_arrays_deep_in_cells_cannot_be_written() -> None:
    rows = Anything((("a",),), ((("deep", np.zeros(2)),),))
    with pytest.raises(ValueError, match="read-only"):
        rows.x[0][0][1][0] = 1


def test_bytes_are_exact_for_arrays() -> None:
    rows = Embeddings((), np.zeros((0, 4), np.float32))
    more = Embeddings((("a",),) * 3, np.zeros((3, 4), np.float32))
    ids = 3 * (56 + 49 + 1)
    assert more.nbytes - rows.nbytes == 3 * 4 * 4 + ids


def test_bytes_grow_with_texts_and_objects() -> None:
    def hits(text: str) -> int:
        passage = Passage(("d", 1, 0), text, "", 0, 1, 1.0)
        return Anything((("a",),), ((passage, text),)).nbytes

    assert hits("x" * 1000) - hits("") == 1000


def test_the_hint_of_chunks_is_their_characters_and_of_prompts_their_tokens() -> None:
    boxes = (np.zeros((0, 4), np.float32),) * 2
    chunks = Chunks((("a", 1, 0), ("a", 1, 1)), ("abc", "d"), ("abcd", "e"), ("", ""), (0, 3), (3, 4), boxes)
    assert chunks.lengths == (4, 1)
    assert Prompts((("a",),), (np.arange(7, dtype=np.int32),), ((),), (0,)).lengths == (7,)
    assert numbers(a=1).lengths is None


def test_hits_of_different_lengths_make_one_batch() -> None:
    def hit(q: str, n: int) -> Hits:
        return Hits(((q,),), (tuple(("d", 1, k) for k in range(n)),), (np.ones(n, np.float32),))

    assert [len(s) for s in Hits.concat([hit("a", 3), hit("b", 0)]).scores] == [3, 0]


def test_an_empty_batch_of_arrays_is_known_by_type_without_postponed_annotations() -> None:
    kind: Any = dataclass(frozen=True, slots=True)(
        type("Eager", (Rows,), {"__annotations__": {"v": NDArray[np.float32]}})
    )
    assert kind.concat([]).v.shape == (0, 0)


def test_documents_are_as_long_as_their_files_in_thousands_of_bytes() -> None:
    found = Documents((("a",), ("b",), ("c",)), ("a", "b", "c"), (1, 2000, 0))
    assert found.lengths == (1, 2, 0)
    assert found.take([1]).lengths == (2,)
    assert Documents.concat([found, found.take([0])]).sizes == (1, 2000, 0, 1)


def test_documents_that_nobody_looked_at_have_no_length() -> None:
    found = Documents((("a",), ("b",)), ("a", "b"))
    assert (found.sizes, found.lengths, found.take([0]).lengths) == ((0, 0), None, None)
    assert len(Documents.concat([])) == 0


def test_completions_count_nothing_that_nobody_counted() -> None:
    rows = values.Completions((("a",), ("b",)), ("x", ""), (5, 6), (2, 0), ("end", "skipped"))
    assert (rows.reused, rows.drafted, rows.accepted) == ((0, 0),) * 3
    assert rows.counted[0] == {
        "prompt_tokens": 5, "reused": 0, "new_tokens": 2, "drafted": 0, "accepted": 0, "stop_end": 1,
    }  # fmt: skip
    assert rows.take([1]).counted[0]["stop_skipped"] == 1
    assert numbers(a=1).counted is None
