from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, ModelError
from pipeline.machine import Device
from pipeline.stage import check_portable, ports, state_key
from pipeline.values import Chunks, Embeddings, Queries
from retrieval.facts import Kind
from stages.embed import Embed, EmbedQueries

MODEL = "all-MiniLM-L6-v2"


class Table:
    """An encoder that knows a few texts, and remembers what kind it was asked for."""

    vectors = {"east": (1, 0), "north": (0, 1), "zero": (0, 0), "nan": (np.nan, 0)}  # noqa: RUF012

    def __init__(self) -> None:
        self.kinds: list[Kind] = []

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        self.kinds.append(kind)
        return np.array([self.vectors[t] for t in texts], dtype=np.float32).reshape(-1, 2)


def chunks(*matches: str) -> Chunks:
    n = len(matches)
    ids = tuple(("a", 1, i) for i in range(n))
    boxes = (np.zeros((0, 4), dtype=np.float32),) * n
    return Chunks(ids, ("source",) * n, matches, ("",) * n, (0,) * n, (6,) * n, boxes)


def queries(*texts: str) -> Queries:
    return Queries(tuple((f"q{i}",) for i in range(len(texts))), texts, ("",) * len(texts))


def test_chunks_are_embedded_by_what_is_matched() -> None:
    table: Any = Table()
    made = Embed(MODEL).run(table, chunks("north", "east"))
    assert made.ids == (("a", 1, 0), ("a", 1, 1))
    np.testing.assert_array_equal(made.vectors, [[0, 1], [1, 0]])
    assert table.kinds == ["document"]


def test_queries_are_normalised_as_chunks_are_and_embedded_as_queries() -> None:
    table: Any = Table()
    made = EmbedQueries(MODEL).run(table, queries(" ea\xadst\n"))
    np.testing.assert_array_equal(made.vectors, [[1, 0]])
    assert table.kinds == ["query"]


def test_no_chunks_give_no_vectors() -> None:
    table: Any = Table()
    assert Embed(MODEL).run(table, chunks()).vectors.shape == (0, 2)


def test_vectors_that_are_no_numbers_fail_their_rows_alone() -> None:
    table: Any = Table()
    with pytest.raises(BadRowsError) as caught:
        Embed(MODEL).run(table, chunks("east", "nan", "zero", "north"))
    assert set(caught.value.rows) == {("a", 1, 1), ("a", 1, 2)}
    assert {e.category for e in caught.value.rows.values()} == {"model"}
    assert "length 0, not 1" in str(caught.value.rows["a", 1, 2])


def test_chunks_and_queries_share_one_encoder() -> None:
    assert state_key(Embed(MODEL)) == state_key(EmbedQueries(MODEL))
    assert state_key(Embed(MODEL)) != state_key(EmbedQueries(MODEL, "float32"))


@pytest.mark.parametrize("stage", [Embed, EmbedQueries])
def test_the_stages_fit_a_graph(stage: type[Embed] | type[EmbedQueries]) -> None:
    assert ports(stage).output is Embeddings
    check_portable(stage(MODEL), "embed")


def test_the_identity_is_the_model_not_the_dtype() -> None:
    identity = Embed(MODEL, "float32").identity()
    assert identity["width"] == 384
    assert identity == EmbedQueries(MODEL, "bfloat16").identity()
    assert set(identity) == {"fingerprint", "width"}


def test_a_dtype_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ModelError, match="no dtype 'float23'; did you mean 'float32'"):
        Embed(MODEL, "float23")


@pytest.mark.slow
def test_a_blank_query_has_a_vector_and_a_question_finds_its_answer() -> None:
    stage = EmbedQueries(MODEL, "float32")
    state = stage.open(Device("cpu:0", 2))
    asked = stage.run(state, queries(" ", "Who wrote the letter?")).vectors
    told = Embed(MODEL, "float32").run(state, chunks("Rain falls in May.", "The letter is by Anna.")).vectors
    assert np.linalg.norm(asked, axis=1) == pytest.approx(1)
    assert (asked[1] @ told.T).argmax() == 1
