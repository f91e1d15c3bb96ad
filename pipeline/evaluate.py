"""Scores of a run against a question file that says what is right.

Answers are compared as in SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250): lower case, no punctuation, no
articles, the best of the right answers counts. Retrieval is recall of the gold documents and pages among
the first k passages; a citation is right when it names a gold page. Every question of the file counts: one
that failed or was left unanswered scores nothing. No model judges here, and nothing is rounded.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import RidgewayError
from pipeline.questions import Gold, Question, Questions
from pipeline.records import read_lines

CUTOFFS = (1, 2, 4, 8)
"""Recall is reported at these numbers of passages, as far as there are so many, and at all of them."""

ARTICLES = re.compile(r"\b(a|an|the)\b")
MARKS = re.compile(r"\[\d+\]")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a run scored: means over questions from 0 to 1, None where no question says what is right.

    `questions` is how many there are; `answered`, `unanswered` and `failed` (no record, or no question that
    could be read) sum to it.
    `answerable`, `unanswerable`, `with_documents`, `with_pages`: over how many the means are taken.
    `document_recall`, `page_recall`: by number of passages, ascending.
    """

    questions: int
    answered: int
    unanswered: int
    failed: int
    answerable: int
    unanswerable: int
    with_documents: int
    with_pages: int
    exact_match: float | None
    f1: float | None
    document_recall: tuple[tuple[int, float], ...]
    page_recall: tuple[tuple[int, float], ...]
    citation_page_accuracy: float | None
    unanswerable_accuracy: float | None

    def as_dict(self) -> dict[str, Any]:
        """The scores as JSON can hold them; recall as an object from "k" to its value."""
        scores = asdict(self)
        for name in ("document_recall", "page_recall"):
            scores[name] = {str(k): value for k, value in scores[name]}
        return scores

    def table(self) -> tuple[tuple[str, str, str], ...]:
        """Rows of name, value, and number of questions; only what could be scored."""
        rows: list[tuple[str, float | None, int]] = [
            ("exact match", self.exact_match, self.answerable),
            ("F1", self.f1, self.answerable),
            *((f"document recall@{k}", value, self.with_documents) for k, value in self.document_recall),
            *((f"page recall@{k}", value, self.with_pages) for k, value in self.page_recall),
            ("cited page is right", self.citation_page_accuracy, self.with_pages),
            ("left unanswered rightly", self.unanswerable_accuracy, self.unanswerable),
        ]
        return tuple((name, f"{value:.3f}", str(count)) for name, value, count in rows if value is not None)


def score(run_folder: Path, questions: Questions) -> Scores:
    """The scores of the answers in `run_folder`. Raises RidgewayError where there are none to score."""
    scores = score_records(read_answers(run_folder / "answers.jsonl"), questions.rows)
    unread = len(questions.failures)
    return replace(scores, questions=scores.questions + unread, failed=scores.failed + unread)


def read_answers(path: Path) -> dict[str, Record]:
    """The records of an answers.jsonl by question id; the last one counts where an id comes twice.

    Raises RidgewayError for a file that is missing or broken.
    """
    records: dict[str, Record] = {}
    try:
        for record in read_lines(path):
            records[record["id"]] = record
    except OSError as error:
        raise RidgewayError(f"{path}: cannot read the answers: {error.strerror}") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RidgewayError(f"{path}: line {len(records) + 1} is no answer record: {error!r}") from error
    return records


def score_records(records: Mapping[str, Record], questions: Sequence[Question]) -> Scores:
    """The scores of `records`, by question id. Raises RidgewayError if none is of these questions."""
    if records and not any(q.id in records for q in questions):
        raise RidgewayError(
            f"none of the {len(records)} answers is to one of the {len(questions)} questions: "
            f"{next(iter(records))!r} is no id of the question file"
        )
    found = [records.get(q.id, {}) for q in questions]
    statuses = Counter(record.get("status") for record in found)
    pairs = list(zip(questions, found, strict=True))
    answerable = [(q.answers, record) for q, record in pairs if q.answers]
    unanswerable = [record for q, record in pairs if q.answers == ()]
    documents = [(q.gold, record) for q, record in pairs if q.gold]
    pages = [(paged, record) for q, record in pairs if (paged := tuple(g for g in q.gold if g.page))]
    return Scores(
        questions=len(questions),
        answered=statuses["answered"],
        unanswered=statuses["unanswered"],
        failed=statuses[None],
        answerable=len(answerable),
        unanswerable=len(unanswerable),
        with_documents=len(documents),
        with_pages=len(pages),
        exact_match=_mean(best(exact_match, answer(record), right) for right, record in answerable),
        f1=_mean(best(f1, answer(record), right) for right, record in answerable),
        document_recall=_recall(documents, _is_document),
        page_recall=_recall(pages, _is_page),
        citation_page_accuracy=_mean(float(cites(record, gold)) for gold, record in pages),
        unanswerable_accuracy=_mean(float(r.get("status") == "unanswered") for r in unanswerable),
    )


def answer(record: Record) -> str:
    """What the record answers, without citation marks such as `[2]`; nothing where it does not answer."""
    return MARKS.sub("", record.get("answer") or "")


def normalise(text: str) -> str:
    """SQuAD's: lower case, punctuation and articles removed, single blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(given: str, right: str) -> float:
    """1.0 where both are equal once normalised, else 0.0."""
    return float(normalise(given) == normalise(right))


def f1(given: str, right: str) -> float:
    """Harmonic mean of precision and recall of the normalised words, counted as bags."""
    a, b = normalise(given).split(), normalise(right).split()
    if not a or not b:
        return float(a == b)
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))


def best(measure: Callable[[str, str], float], given: str, right: Iterable[str]) -> float:
    """The answer's score against whichever right answer suits it best; nothing for no answer."""
    return max(measure(given, one) for one in right) if given else 0.0


def names(gold: str, document: str, heading: str = "") -> bool:
    """Whether `gold` means this document: by its name, its stem, a glob over either, or its heading."""
    path = PurePosixPath(document)
    called = (document, path.name, path.stem, heading)
    return gold in called or any(fnmatchcase(name, gold) for name in called[:3])


def recall(passages: Sequence[Record], gold: Sequence[Gold], found: Callable[[Gold, Record], bool]) -> float:
    """The fraction of `gold` that some passage is."""
    return sum(any(found(g, p) for p in passages) for g in gold) / len(gold)


def cites(record: Record, gold: Sequence[Gold]) -> bool:
    """Whether some citation of the answer names a gold document at its page."""
    return any(_is_page(g, c) for g in gold for c in record.get("citations", ()))


def _recall(
    rows: Sequence[tuple[Sequence[Gold], Record]], found: Callable[[Gold, Record], bool]
) -> tuple[tuple[int, float], ...]:
    most = max((len(record.get("passages", ())) for _, record in rows), default=0)
    cutoffs = sorted({k for k in CUTOFFS if k < most} | ({most} if most else set()))
    return tuple(
        (k, sum(recall(record.get("passages", ())[:k], gold, found) for gold, record in rows) / len(rows))
        for k in cutoffs
    )


def _is_document(gold: Gold, place: Record) -> bool:
    twins = [twin["document"] for twin in place.get("also", ())]
    heading = place.get("heading", "")
    return names(gold.document, place["document"], heading) or any(names(gold.document, t) for t in twins)


def _is_page(gold: Gold, place: Record) -> bool:
    heading = place.get("heading", "")
    twins = [(twin["document"], twin["page"], "") for twin in place.get("also", ())]
    places = [(place["document"], place["page"], heading), *twins]
    return any(page == gold.page and names(gold.document, name, head) for name, page, head in places)


def _mean(values: Iterable[float]) -> float | None:
    seen = list(values)
    return sum(seen) / len(seen) if seen else None
