"""Where an answer comes from: pure scoring of passages against a question and its answer.

Two signals, because each fails where the other works: cosine of sentence embeddings (paraphrases), and the
share of the question's and of the answer's words that a passage holds, each word weighted by how rare it
is among the passages (names, numbers). Passages are cited greedily: the best first, another only where it
brings words of question and answer that those before it lack.

Deliberately not here: models, and any judgement whether an answer is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from pipeline.values import Passage
from retrieval.text import normalize

__all__ = [
    "Evidence",
    "Marks",
    "Sentence",
    "candidates",
    "cited",
    "content",
    "read_marks",
    "sentences",
    "weigh",
]

GAIN = 0.15
"""Share of question and answer that a further citation must add."""
FAR = 0.5
"""A passage that scores less than this share of the best does not support what the best supports."""

_WEIGHTS = (1.0, 0.3, 0.3, 0.2)
"""Of similarity, answer words, question words, and rank; the best of a small grid on HotpotQA-100."""
_LONGEST = 300
"""Characters of a quote from text without sentences, such as a table."""
_NUMBERS = r"\d{1,3}(?:\s*(?:,|;|&|-|–|and)\s*\d{1,3})*"
_MARK = re.compile(rf"\s*\[\s*(?:passages?\s+)?({_NUMBERS})\s*\]", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:\s*[-–]\s*(\d+))?")
_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))\s+(?=[^\W\d_a-z]|[\d\"'“‘(\[])|(?<=[。！？])|\n\s*\n")
_ABBREVIATION = re.compile(
    r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|St|Inc|Co|Corp|Ltd|No|Jr|Sr|vs|approx|e\.g|i\.e))\.$"
)
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)?")
_STOP = frozenset(
    _WORD.findall("""
    a about after all also an and any are as at be because been before being both but by can could
    did do does for from had has have he her his how i if in into is it its many me more most much
    my no not of on one or other our out over she so some such than that the their them then there
    these they this those through to too under up was we were what when where which while who whom
    whose why will with would yes you your
    """)
)


@dataclass(frozen=True, slots=True)
class Marks:
    """What a model marked: its answer without marks, passage numbers from 1, invalid ones counted."""

    text: str
    numbers: tuple[int, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of a passage: `passage` from 0, `start` and `end` in its text; `text` normalised."""

    passage: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """How far the passages bear out an answer.

    `scores`: float64 [K], 0 to 1 a passage; `best`: its best sentence; `support`: 0 to 1, whether the
    question is dealt with at all; `grounded`: whether some passage has a word of the answer that is not
    the question's own; `nearest`: the sentence most like the question.
    `words`: for each passage its words; `weights`: what each word of question and answer counts, sum 1.
    """

    scores: NDArray[np.float64]
    best: tuple[Sentence, ...]
    support: float
    grounded: bool
    nearest: Sentence
    words: tuple[frozenset[str], ...]
    weights: Mapping[str, float]


def read_marks(text: str, count: int) -> Marks:
    """Citations `[n]`, `[n, m]`, `[n-m]` of passages 1 to `count`, and `text` without them.

    Numbers of four digits are no marks: `[2023]` is a year.
    """
    numbers: dict[int, None] = {}
    dropped = 0
    for mark in _MARK.finditer(text):
        for low, high in _RANGE.findall(mark[1]):
            first, last = sorted((int(low), int(high or low)))
            inside = range(max(first, 1), min(last, count) + 1)
            numbers.update(dict.fromkeys(inside))
            dropped += last - first + 1 - len(inside)
    bare = re.sub(r"\s+([.,;:!?])", r"\1", _MARK.sub("", text)) if _MARK.search(text) else text
    return Marks(bare.strip(), tuple(numbers), dropped)


def sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence; where there are none, of lines up to 300 characters together."""
    cuts = [
        m.span()
        for m in _END.finditer(text)
        if not _ABBREVIATION.search(text[max(m.start() - 8, 0) : m.start()])
    ]
    starts, ends = [0, *(b for _, b in cuts)], [*(a for a, _ in cuts), len(text)]
    return [
        piece
        for a, b in zip(starts, ends, strict=True)
        for piece in _pieces(text, a, b)
        if text[piece[0] : piece[1]].strip()
    ]


def candidates(passages: Sequence[Passage], wanted: frozenset[str], most: int = 3) -> list[Sentence]:
    """At most `most` sentences of each passage: those with the most `wanted` words, then the first."""
    found: list[Sentence] = []
    for number, passage in enumerate(passages):
        spans = sentences(passage.text) or [(0, len(passage.text))]
        made = [Sentence(number, a, b, normalize(passage.text[a:b]).text) for a, b in spans]
        made.sort(key=lambda s: (-len(wanted & content(s.text)), s.start))
        found += made[:most]
    return found


def content(text: str) -> frozenset[str]:
    """The words of `text` that carry meaning, and its numbers, in lower case."""
    words = _WORD.findall(text.casefold())
    return frozenset(w for w in words if w not in _STOP and (len(w) > 1 or not w.isascii() or w.isdigit()))


def weigh(
    question: str,
    answer: str,
    passages: Sequence[Passage],
    found: Sequence[Sentence],
    asked: NDArray[np.float32],
    answered: NDArray[np.float32],
) -> Evidence:
    """Score the passages. `found`: their sentences, at least one each.

    `asked`, `answered`: float32 [len(found)], cosine of each sentence with the question, and with question
    and answer together.
    """
    words = tuple(content(normalize(f"{p.heading} {p.text}").text) for p in passages)
    asks, says = content(question), content(answer)
    rarity = {w: log(1 + len(words) / (1 + sum(w in h for h in words))) for w in asks | says}
    order = {n: [i for i, s in enumerate(found) if s.passage == n] for n in range(len(passages))}
    best = [max(order[n], key=lambda i: (float(answered[i]), -i)) for n in range(len(passages))]
    similar, rank = answered[best].clip(0, 1), 1 - np.arange(len(passages)) / max(len(passages), 1)
    in_answer = [_share(says, h, rarity) for h in words]
    in_question = [_share(asks, h, rarity) for h in words]
    parts = np.array([similar, in_answer, in_question, rank], np.float64)
    weights = {w: (_part(w, asks, rarity) + _part(w, says, rarity)) / (2 if says else 1) for w in rarity}
    return Evidence(
        np.asarray(_WEIGHTS) @ parts / sum(_WEIGHTS),
        tuple(found[i] for i in best),
        _support(asks, words, float(asked.max(initial=0))),
        _is_grounded(says - asks, words),
        found[int(asked.argmax())],
        words,
        weights,
    )


def cited(evidence: Evidence, most: int) -> tuple[int, ...]:
    """At most `most` passages, best first: a further one only where it adds `GAIN` to what is covered."""
    left = sorted(range(len(evidence.scores)), key=lambda n: (-evidence.scores[n], n))
    chosen, covered = left[:1], set(evidence.words[left[0]])
    while left and len(chosen) < most:
        gains = {n: _covered(evidence, evidence.words[n] - covered) for n in left if n not in chosen}
        enough = [n for n, gain in gains.items() if gain >= GAIN and not far(evidence, n)]
        if not enough:
            break
        chosen.append(max(enough, key=lambda n: (gains[n] + evidence.scores[n], -n)))
        covered |= evidence.words[chosen[-1]]
    return tuple(chosen)


def far(evidence: Evidence, passage: int) -> bool:
    """Whether `passage` (from 0) scores so much less than the best that it supports nothing."""
    return bool(evidence.scores[passage] < FAR * evidence.scores.max())


def _is_grounded(new: frozenset[str], words: Sequence[frozenset[str]]) -> bool:
    return not new or any(new & held for held in words)


def _support(asks: frozenset[str], words: Sequence[frozenset[str]], near: float) -> float:
    """Mean of the nearest sentence's cosine and the best passage's share of the question's words."""
    share = max((len(asks & held) / len(asks) for held in words), default=0.0) if asks else near
    return (max(near, 0.0) + share) / 2


def _share(wanted: frozenset[str], held: frozenset[str], rarity: Mapping[str, float]) -> float:
    return sum(_part(w, wanted, rarity) for w in wanted if w in held)


def _part(word: str, group: frozenset[str], rarity: Mapping[str, float]) -> float:
    """What `word` counts in `group`, all of which counts 1."""
    return rarity[word] / sum(rarity[w] for w in group) if word in group else 0.0


def _covered(evidence: Evidence, words: frozenset[str]) -> float:
    return sum(weight for word, weight in evidence.weights.items() if word in words)


def _pieces(text: str, start: int, end: int) -> Iterable[tuple[int, int]]:
    """`text[start:end]` without outer white space; where it is too long, in lines or, failing that, words."""
    while start < end:
        start += len(text[start:end]) - len(text[start:end].lstrip())
        stop = end
        if end - start > _LONGEST:
            window = text[start : start + _LONGEST]
            cut = max(window.rfind("\n"), 0) or max(window.rfind(" "), 0) or _LONGEST
            stop = start + cut
        yield start, start + len(text[start:stop].rstrip())
        start = stop
