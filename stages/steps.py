"""Questions that need several searches: the stages of a loop that searches, reads, and decides.

A question whose answer hangs on two passages seldom resembles the second: that one is about a name which
only the first one tells. So each later search asks for what the best new passage left open of the question,
together with the names it brought up (pseudo-relevance feedback, after Rocchio 1971, on names; for the
hops, Qi et al. 2019, "Answering complex open-domain questions through iterative query generation"). Words
decide, not a model: the smallest models cannot rewrite a question.

Deliberately not here: searching, prompting, generating; these are the ordinary stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import ClassVar

import numpy as np

from pipeline.errors import RidgewayError
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Answers, Completions, Passage, Passages, Queries, Steps
from retrieval.text import normalize
from stages import costs
from stages.attribution import content
from stages.cite import says_absent

__all__ = ["BeginSteps", "Collect", "Decide", "EndSteps", "NextQueries", "follow_up"]

_WORD = re.compile(r"[^\W_](?:\S*[^\W_])?")


@dataclass(frozen=True, slots=True)
class BeginSteps:
    """Each question before its first round: it is its own first query."""

    role: ClassVar[str] = "relevancy"

    def cost(self, work: Work) -> Cost:
        """About 36 operations a question (ours, timed)."""
        queries = work.port("queries")
        nbytes = costs.step_bytes(0, costs.question_characters(queries))
        return Cost(Flow(queries.rows, 0.0, nbytes), scalar=36 * queries.rows)

    def run(self, state: None, queries: Queries) -> Steps:
        """One row for each question, nothing found, nothing spent."""
        size = len(queries)
        none, zero = ("",) * size, (0,) * size
        return Steps(
            ids=queries.ids,
            questions=queries.texts,
            documents=queries.documents,
            queries=queries.texts,
            passages=((),) * size,
            completions=none,
            prompt_tokens=zero,
            new_tokens=zero,
            stops=none,
            rounds=zero,
            done=np.zeros(size, np.bool_),
        )


@dataclass(frozen=True, slots=True)
class NextQueries:
    """What to search in this round."""

    role: ClassVar[str] = "relevancy"

    def cost(self, work: Work) -> Cost:
        """About 12 operations a question (ours, timed)."""
        rows = work.port("steps").rows
        given = Flow(rows, 0.0, costs.question_bytes(costs.QUESTION_CHARACTERS))
        return Cost(given, scalar=12 * rows)

    def run(self, state: None, steps: Steps) -> Queries:
        """The query of each question, restricted to the question's documents."""
        return Queries(steps.ids, steps.queries, steps.documents)


@dataclass(frozen=True, slots=True)
class Collect:
    """All passages found so far and at most `new` that are new, each once, at most `k`.

    Rounds take turns: the best of each, then the second of each. Let the searches before it give `k`
    passages, so that a round has new ones to add.
    """

    new: int = 4
    k: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.new <= self.k:
            raise RidgewayError(f"Collect: new is {self.new!r}, k is {self.k!r}; give 1 <= new <= k")

    def cost(self, work: Work) -> Cost:
        """About 12 operations a passage (ours, timed)."""
        steps, passages = work.port("steps"), work.port("passages")
        old, found = costs.passages_held(steps), costs.passages_in(passages)
        k = min(self.k, old + min(self.new, found))
        return Cost(Flow(steps.rows, 0.0, costs.passage_bytes(k)), scalar=12 * steps.rows * (old + found))

    def run(self, state: None, steps: Steps, passages: Passages) -> Passages:
        """The passages that a prompt may show, best first."""
        pairs = zip(steps.passages, passages.passages, strict=True)
        return Passages(steps.ids, tuple(self._merge(old, found) for old, found in pairs))

    def _merge(self, old: tuple[Passage, ...], found: tuple[Passage, ...]) -> tuple[Passage, ...]:
        new = _unknown(found, old)[: self.new]
        turns = chain.from_iterable(zip_longest(old, new))
        return tuple(p for p in turns if p is not None)[: self.k]


@dataclass(frozen=True, slots=True)
class Decide:
    """Whether a question has enough, and else what to search next.

    It has enough when a round brought no new passage, when there is nothing new to ask, or when the model
    gave an answer and one passage holds the share `enough` of the question's words; above 1 the last never
    applies. `names`: how many names of the best new passage the next query takes over, at most.
    `use_completion`: the query also holds the model's answer (for models that can be trusted with it).
    """

    enough: float = 1.0
    names: int = 24
    use_completion: bool = False

    def __post_init__(self) -> None:
        if self.enough <= 0:
            raise RidgewayError(f"Decide: enough is {self.enough!r}; give a share above 0, or 2 for never")
        if self.names < 0:
            raise RidgewayError(f"Decide: names is {self.names!r}; give 0 or more")

    def cost(self, work: Work) -> Cost:
        """About 4,000 operations a passage (ours, timed): the words of each are compared."""
        steps, k = work.port("steps"), costs.passages_in(work.port("passages"))
        nbytes = costs.step_bytes(k, costs.QUESTION_CHARACTERS)
        return Cost(Flow(steps.rows, 0.0, nbytes), scalar=4000 * steps.rows * k)

    def run(self, state: None, steps: Steps, passages: Passages, completions: Completions) -> Steps:
        """`steps` after this round; `passages` are those of `Collect`."""
        said = completions.texts
        rows = list(zip(steps.questions, steps.queries, steps.passages, passages.passages, said, strict=True))
        queries = [self._query(*row) for row in rows]
        return replace(
            steps,
            queries=tuple(query or row[1] for query, row in zip(queries, rows, strict=True)),
            passages=passages.passages,
            completions=said,
            prompt_tokens=_sums(steps.prompt_tokens, completions.prompt_tokens),
            new_tokens=_sums(steps.new_tokens, completions.new_tokens),
            stops=completions.stops,
            rounds=tuple(n + 1 for n in steps.rounds),
            done=np.array([not query for query in queries], np.bool_),
        )

    def _query(
        self, question: str, query: str, old: tuple[Passage, ...], now: tuple[Passage, ...], said: str
    ) -> str:
        """What to search next; nothing where the question has enough."""
        new = _unknown(now, old)
        if not new or (_answers(said) and _held(question, now) >= self.enough):
            return ""
        following = follow_up(question, new[0], self.names)
        if self.use_completion and _answers(said):
            following = f"{following} {normalize(said).text}".strip()
        return following if following != query else ""


@dataclass(frozen=True, slots=True)
class EndSteps:
    """Answers with the rounds and the tokens that all their rounds took."""

    def cost(self, work: Work) -> Cost:
        """About 110 operations a question (ours, timed)."""
        answers = work.port("answers")
        nbytes = answers.nbytes or costs.answer_bytes(costs.KEPT)
        return Cost(Flow(answers.rows, 0.0, nbytes), scalar=110 * answers.rows)

    def run(self, state: None, answers: Answers, steps: Steps) -> Answers:
        """`answers`, with the counts of `steps`."""
        return replace(
            answers, rounds=steps.rounds, prompt_tokens=steps.prompt_tokens, new_tokens=steps.new_tokens
        )


def follow_up(question: str, passage: Passage, names: int = 24) -> str:
    """The words of `question` that `passage` lacks, then at most `names` of the names only `passage` has.

    A name is a word with a capital first letter, or a number of four digits. Scripts without capitals have
    no names here: then the passage's first new words stand for them.
    """
    text = normalize(f"{passage.heading} {passage.text}".strip()).text
    held, asked = _words(text), content(question)
    left = [w for w in question.split() if not _words(w) & held]
    fresh = [w for w in _WORD.findall(text) if content(w) and not content(w) <= asked]
    named = list(dict.fromkeys(w for w in fresh if _is_name(w)))[:names]
    return " ".join([*left, *(named or (fresh[:names] if not _has_capitals(text) else []))])


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _is_name(word: str) -> bool:
    return word[0].isupper() or (word.isdigit() and len(word) == 4)


def _has_capitals(text: str) -> bool:
    return any(c.isupper() for c in text)


def _unknown(found: Iterable[Passage], known: Iterable[Passage]) -> tuple[Passage, ...]:
    """Those of `found` whose text none of `known` has: one text in two documents is one passage (`also`)."""
    texts = {p.text for p in known}
    return tuple(p for p in found if p.text not in texts)


def _held(question: str, passages: Iterable[Passage]) -> float:
    """The largest share of the question's words that one passage holds."""
    asked = content(question)
    shares = (len(asked & content(normalize(p.text).text)) / len(asked) for p in passages if asked)
    return max(shares, default=0.0)


def _answers(said: str) -> bool:
    return bool(said.strip()) and not says_absent(said)


def _sums(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))
