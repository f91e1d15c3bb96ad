"""Drafts without a model: what followed the last words the last time they were there.

The idea: answers over passages copy from them, names and figures above all (prompt lookup decoding, Saxena
2023; LLMA, Yang et al. 2023, arXiv 2304.04487). A row remembers for each n-gram where it last ended, so a
step costs the same however long the prompt is.

When not: answers that are worded freely draft little and badly, and the model pays for checking it; how
many to ask for is the matter of `draft_length`.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Lookup"]


class Lookup:
    """Drafts for one row, out of its prompt and what it has said.

    `max_ngram` 3: longer matches are rarer, and hardly truer.
    """

    def __init__(self, prompt: Iterable[int], max_ngram: int = 3) -> None:
        self._tokens: list[int] = []
        self._after: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in range(max_ngram))
        self.extend(prompt)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens that are certain: those of the prompt, or said and accepted."""
        seen = self._tokens
        for token in tokens:
            # Only now does something follow the n-grams that end here: the last ones are never found.
            for length, after in enumerate(self._after[: len(seen)], 1):
                after[tuple(seen[-length:])] = len(seen)
            seen.append(token)

    def propose(self, most: int) -> list[int]:
        """At most `most` tokens that may come next; none where the last token is new.

        What followed the newest earlier place of the longest n-gram that the tokens end with. A copy that
        reaches the end goes on with what it has copied, as in LZ77: a row that repeats itself is drafted
        whole.
        """
        start = self._place()
        if start is None:
            return []
        copied = self._tokens[start : start + most]
        while len(copied) < most:
            copied.append(copied[len(copied) - (len(self._tokens) - start)])
        return copied

    def _place(self) -> int | None:
        """Where the copy begins."""
        seen = self._tokens
        for length in range(min(len(self._after), len(seen)), 0, -1):
            place = self._after[length - 1].get(tuple(seen[-length:]))
            if place is not None:
                return place
        return None
