"""Chunks and questions to vectors, with one encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, RowError
from pipeline.machine import Device
from pipeline.models import fingerprint
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Chunks, Embeddings, Queries, RowId
from retrieval.encoder import Encoder, check_dtype, load
from retrieval.facts import facts
from retrieval.text import normalize
from stages import costs


class Encodes(Protocol):
    """A stage that names an encoder."""

    @property
    def model(self) -> str:
        """The encoder's name."""

    @property
    def dtype(self) -> str:
        """Type of its weights."""


def open_encoder(stage: Encodes, device: Device) -> Encoder:
    """The encoder that `stage` names, on `device`; chunks and questions share it."""
    return load(stage.model, device, stage.dtype)


def identify(stage: Encodes) -> Mapping[str, str | int]:
    """What an index must remember of the encoder: `fingerprint` and `width`. Loads no weights."""
    known = facts(stage.model)
    return {"fingerprint": fingerprint(known.folder), "width": known.width}


@dataclass(frozen=True, slots=True)
class Embed:
    """A vector for each chunk, of its normalised text.

    `dtype`: "auto" (bfloat16 where it is fast and agrees with float32), "float32", "bfloat16", "float16".
    """

    model: str
    dtype: str = "auto"

    batch: ClassVar[int] = 128
    accelerated: ClassVar[bool] = True
    shares: ClassVar[tuple[str, ...]] = ("model", "dtype")

    def __post_init__(self) -> None:
        check_dtype(self.dtype)

    open = open_encoder
    identity = identify

    def cost(self, work: Work) -> Cost:
        """See `stages.costs.encoding`."""
        chunks = work.port("chunks")
        texts = Flow(chunks.rows, costs.chunk_characters(chunks))
        return costs.embedded(self.model, self.dtype, work, texts, chunks=True)

    def run(self, state: Encoder, chunks: Chunks) -> Embeddings:
        """Vectors of `chunks.matches`; raises BadRowsError for those that are no numbers."""
        return _checked(chunks.ids, state.encode(chunks.matches, "document"))


@dataclass(frozen=True, slots=True)
class EmbedQueries:
    """A vector for each query, from the encoder that `Embed` uses; a blank query has one too."""

    model: str
    dtype: str = "auto"

    batch: ClassVar[int] = 128
    accelerated: ClassVar[bool] = True
    shares: ClassVar[tuple[str, ...]] = ("model", "dtype")

    def __post_init__(self) -> None:
        check_dtype(self.dtype)

    open = open_encoder
    identity = identify

    def cost(self, work: Work) -> Cost:
        """See `stages.costs.encoding`."""
        queries = work.port("queries")
        texts = Flow(queries.rows, costs.question_characters(queries))
        return costs.embedded(self.model, self.dtype, work, texts, chunks=False)

    def run(self, state: Encoder, queries: Queries) -> Embeddings:
        """Vectors of `queries.texts`, normalised as chunks are; raises BadRowsError as `Embed` does."""
        return _checked(queries.ids, state.encode([normalize(t).text for t in queries.texts], "query"))


def _checked(ids: tuple[RowId, ...], vectors: NDArray[np.float32]) -> Embeddings:
    """The rows, if every vector has unit length; else BadRowsError with those that have not."""
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.abs(lengths - 1) < 0.01))
    if len(bad):
        raise BadRowsError({ids[i]: _fault(float(lengths[i])) for i in bad})
    return Embeddings(ids, vectors)


def _fault(length: float) -> RowError:
    return RowError(
        "model", f"the encoder gave a vector of length {length:g}, not 1; try dtype float32 or another model"
    )
