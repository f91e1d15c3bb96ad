"""Chunks to a corpus on disk, and hits to the passages they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pipeline.errors import BadRowsError, RowError, RowId
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Chunks, Corpora, Hits, Passage, Passages
from retrieval.corpus import Corpus, open_corpus, write
from stages import costs


@dataclass(frozen=True, slots=True)
class StoreChunks:
    """Write all chunks to a corpus in the folder `path`, in place of the one that is there."""

    path: Path

    gathers: ClassVar[int] = 0

    def cost(self, work: Work) -> Cost:
        """About 940 operations a chunk (ours, timed); all chunks are read once and written once."""
        chunks = work.port("chunks")
        given = Flow(work.rows, chunks.rows, costs.FOLDER)
        nbytes = chunks.rows * costs.chunk_bytes(costs.chunk_characters(chunks))
        return Cost(given, traffic=2 * nbytes, scalar=940 * chunks.rows, scratch=nbytes)

    def run(self, state: None, chunks: Chunks) -> Corpora:
        """One row, `()`; no chunks give an empty corpus."""
        folder = Path(self.path).absolute()
        write(folder, chunks)
        return Corpora(((),), (str(folder),))


@dataclass(slots=True)
class Shelf:
    """Corpora that are open, by folder; one that was written anew is opened anew."""

    open: dict[str, tuple[int, Corpus]] = field(default_factory=dict)

    def corpus(self, path: str) -> Corpus:
        """The corpus in folder `path`. Raises RidgewayError where there is none."""
        folder = Path(path)
        version = folder.stat().st_ino if folder.is_dir() else -1
        known = self.open.get(path)
        if known is None or known[0] != version:
            known = self.open[path] = version, open_corpus(folder)
        return known[1]


@dataclass(frozen=True, slots=True)
class Fetch:
    """The passages behind hits. Hits with the very same text become one, the best; it names the others."""

    def open(self, device: Device) -> Shelf:
        """An empty shelf of open corpora."""
        return Shelf()

    def cost(self, work: Work) -> Cost:
        """About 1,250 operations a hit (ours, timed), each of which is read from the corpus."""
        hits = work.port("hits")
        k = costs.hits_in(hits)
        given = Flow(hits.rows, 0.0, costs.passage_bytes(k))
        nbytes = costs.chunk_bytes(costs.CHUNK_CHARACTERS)
        return Cost(given, traffic=2 * hits.rows * k * nbytes, scalar=1250 * hits.rows * k)

    def run(self, state: Shelf, hits: Hits, corpus: Corpora) -> Passages:
        """Passages, best first; raises BadRowsError for questions with a hit that no corpus holds."""
        corpora = [state.corpus(path) for path in corpus.paths]
        found: list[tuple[Passage, ...]] = []
        bad: dict[RowId, RowError] = {}
        for id, chunks, scores in zip(hits.ids, hits.chunks, hits.scores, strict=True):
            try:
                pairs = zip(chunks, scores, strict=True)
                found.append(collapse([_passage(corpora, c, float(s)) for c, s in pairs]))
            except RowError as error:
                bad[id] = error
        if bad:
            raise BadRowsError(bad)
        return Passages(hits.ids, tuple(found))


def collapse(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """`passages` with each text once: the first, the ids of the others in its `also`."""
    groups: dict[str, list[Passage]] = {}
    for passage in passages:
        groups.setdefault(passage.text, []).append(passage)
    return tuple(replace(first, also=tuple(p.id for p in others)) for first, *others in groups.values())


def _passage(corpora: Sequence[Corpus], id: RowId, score: float) -> Passage:
    for corpus in corpora:
        if id in corpus:
            return corpus.passage(id, score)
    folders = ", ".join(str(c.folder) for c in corpora) or "no corpus"
    raise RowError("unreadable", f"hit {id!r} is not in the corpus ({folders}): index the documents again")
