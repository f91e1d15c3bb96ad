"""Search by words: BM25 over the normalised text of chunks, with bm25s.

bm25s computes every score of a word in a document when the index is built (eager scoring), in the Lucene
form with k1 = 1.5 and b = 0.75 (Lù 2024, arXiv 2407.03618; Kamphuis et al., ECIR 2020, for the forms). A
search then adds up columns of a sparse matrix, which is memory-mapped. Words are runs of two or more
letters, digits or underscores, in lower case and NFKC. A document that shares no word with the query is
no hit, however large k is.

It deliberately neither stems nor drops stop words: both are matters of one language, and documents come
in many. English stop words change little where they apply (recall at 8 on 100 HotpotQA questions 0.83 with
them kept, 0.815 without; equal after fusion), and a rare word's weight outdoes theirs by itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from pipeline.machine import Device
from retrieval.exact import best, nothing
from retrieval.index import Found, Mask, Options


class Bm25Index:
    """BM25 over N texts; N may be 0, and texts may be blank."""

    def __init__(self, model: Any) -> None:
        """`model`: a bm25s.BM25 that holds an index, None where no text has a word."""
        self._model = model

    @classmethod
    def build(cls, texts: Sequence[str]) -> Self:
        """An index over `texts`, whose number is the position."""
        import bm25s

        tokens = _tokenized(texts)
        if not tokens.vocab:
            return cls(None)
        model = bm25s.BM25(backend="numpy")
        model.index(tokens, create_empty_token=False, show_progress=False)
        return cls(model)

    def save(self, folder: Path) -> Options:
        """Write the index's files into `folder`; what it returns comes back to `load`."""
        if self._model is None:
            return {"words": 0}
        self._model.save(folder / "bm25", show_progress=False)
        return {"words": len(self._model.vocab_dict)}

    @classmethod
    def load(cls, folder: Path, options: Options, device: Device) -> Self:
        """The index that `save` wrote, memory-mapped."""
        if not options["words"]:
            return cls(None)
        import bm25s

        return cls(bm25s.BM25.load(folder / "bm25", mmap=True, show_progress=False))

    def search(self, texts: Sequence[str], k: int, allowed: Mask = None) -> list[Found]:
        """For each of `texts` the best at most k positions that share a word with it, among `allowed` [N]."""
        if self._model is None:
            return [nothing() for _ in texts]
        tokens = _tokenized(texts)
        words = list(tokens.vocab)
        return [self._best([words[i] for i in ids], k, allowed) for ids in tokens.ids]

    def _best(self, words: list[str], k: int, allowed: Mask) -> Found:
        known = self._model.get_tokens_ids(words)
        if not known:
            return nothing()
        scores = self._model.get_scores_from_ids(known)
        positions = np.flatnonzero(scores > 0 if allowed is None else (scores > 0) & allowed)
        return best(positions, scores[positions], k)


def _tokenized(texts: Sequence[str]) -> Any:
    """bm25s's Tokenized: `ids` per text, and `vocab` from word to id, in order of first appearance."""
    import bm25s

    plain = [unicodedata.normalize("NFKC", text) for text in texts]
    return bm25s.tokenize(plain, stopwords=None, show_progress=False)
