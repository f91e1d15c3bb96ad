"""Questions: what is asked, what would be right, and where it stands.

A bad row of a question file is a `Failure` with its line number; only what leaves the whole file in
doubt (its encoding, its header, two questions under one id) is a `RidgewayError`. Keys that are not
ours are ignored; a key that looks like a slip of one of ours is not, since the question would then
silently mean something else.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import Failure, RidgewayError, RowError
from pipeline.question_files import rows as read_rows
from pipeline.values import Queries

STAGE = "questions"
"""The stage that the failures of this module name."""


@dataclass(frozen=True, slots=True)
class Gold:
    """Where an answer stands: a document's name, its stem, a title or a glob, and a page from 1 if known."""

    document: str
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `documents`: globs over document names, one a line; empty for all.

    `answers`: what is right, None where nobody says, empty where the documents do not answer it.
    """

    id: str
    question: str
    documents: str = ""
    answers: tuple[str, ...] | None = None
    gold: tuple[Gold, ...] = ()


@dataclass(frozen=True, slots=True)
class Questions:
    """A question file: what could be read, in order, and the rows that could not."""

    rows: tuple[Question, ...]
    failures: tuple[Failure, ...] = ()

    def queries(self) -> Queries:
        """The questions as the rows that enter a graph."""
        ids = tuple((q.id,) for q in self.rows)
        return Queries(ids, tuple(q.question for q in self.rows), tuple(q.documents for q in self.rows))


def read(path: Path) -> Questions:
    """The questions in `path`, by its suffix: .jsonl or .ndjson, .csv or .tsv, .txt.

    A question without an id is called `q` and its line number; a blank question is kept. Raises
    RidgewayError for a file that cannot be read, holds no question, is not in the encoding it claims,
    lacks the question column, or uses an id twice.
    """
    found: list[Question | Failure] = []
    lines: dict[str, int] = {}
    for line, row, fault in read_rows(path):
        item = _item(f"{path.name}:{line}", line, row, fault)
        identity = item.id if isinstance(item, Question) else str(item.id[0])
        if identity in lines:
            raise RidgewayError(
                f"{path.name}: id {identity!r} is on line {lines[identity]} and again on line {line}; "
                f"ids must differ"
            )
        lines[identity] = line
        found.append(item)
    if not found:
        raise RidgewayError(f"{path}: holds no question")
    return Questions(
        tuple(q for q in found if isinstance(q, Question)), tuple(f for f in found if isinstance(f, Failure))
    )


def _item(place: str, line: int, row: Mapping[str, Any], fault: str) -> Question | Failure:
    own = _id(row.get("id"))
    try:
        if fault:
            raise _bad(fault)
        return _question(own or f"q{line}", row)
    except RowError as error:
        identity = own or f"line {line}"  # not q<line>, which may be the id of a good row
        return Failure((identity,), STAGE, error.category, f"{place}: {error}")


def _bad(message: str) -> RowError:
    return RowError("unreadable", message)


def _id(value: Any) -> str | None:
    """An id as text; None where `value` is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value).strip()
    return text if text and _whole(text) else None


def _question(identity: str, row: Mapping[str, Any]) -> Question:
    """The question that the fields of `row` spell. Raises RowError naming the field at fault."""
    if "question" not in row:
        raise _bad("no key 'question'")
    if not isinstance(row["question"], str) or not _whole(row["question"]):
        raise _bad(f"'question' must be text, found {reprlib.repr(row['question'])}")
    if row.get("id") not in (None, "") and _id(row["id"]) is None:
        raise _bad(f"'id' must be text or a whole number, found {reprlib.repr(row['id'])}")
    answers = None if row.get("answers") in (None, "") else _texts("answers", row["answers"])
    documents = "\n".join(_texts("documents", row.get("documents")))
    return Question(identity, row["question"].strip(), documents, answers, _gold(row))


def _texts(key: str, value: Any) -> tuple[str, ...]:
    """Text, a number, or a list of them, as texts; blank ones are left out."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | float) or not _whole(str(item)):
            raise _bad(f"{key!r} must be text or a list of texts, found {reprlib.repr(item)}")
    return tuple(str(item).strip() for item in items if str(item).strip())


def _gold(row: Mapping[str, Any]) -> tuple[Gold, ...]:
    entries = row.get("gold") or []
    if not isinstance(entries, list):
        raise _bad(f"'gold' must be a list of {{document, page}}, found {reprlib.repr(entries)}")
    names = tuple(Gold(name) for name in _texts("gold_docs", row.get("gold_docs")))
    return tuple(_gold_entry(entry) for entry in entries) + names


def _gold_entry(entry: Any) -> Gold:
    document, page = (entry.get("document"), entry.get("page")) if isinstance(entry, dict) else (None, None)
    if not isinstance(document, str) or not document:
        raise _bad(f"'gold' must be a list of {{document, page}}, found {reprlib.repr(entry)}")
    if page is not None and (type(page) is not int or page < 1):
        raise _bad(f"'gold' has page {page!r}; pages are whole numbers from 1")
    return Gold(document, page)


def _whole(text: str) -> bool:
    """Whether no half of a surrogate pair is in the text: JSON can spell one, no encoder can take it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
