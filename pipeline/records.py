"""What a run leaves behind: one JSON object a line for each answer and each error, and the same as Parquet.

Pages count from 1, characters from 0. Every line is strict JSON in UTF-8: a number that is not finite
becomes null with its reason beside it, half a surrogate pair becomes U+FFFD, and control characters are
escaped, so that a line is a line to every reader. Nothing here decides what goes into an answer.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from pipeline.errors import Failure, RowId
from pipeline.values import Answers, Citation, Passage

UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029]")
"""What JSON leaves as it is and yet ends a line, or steers a terminal, for some readers."""

HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that turn the direction of writing."""

PARQUET_ROWS = 1024
"""Answers to a row group: bounds the memory that writing takes."""


def answer_record(answers: Answers, row: int, question: str, seconds: float | None = None) -> dict[str, Any]:
    """The record of one answer. `answer` is null where there is none; `reason` then says why.

    `seconds`: from the start of the run to the answer, None where nobody measured.
    """
    return {
        "id": answers.ids[row][0],
        "question": question,
        "answer": answers.texts[row] if answers.statuses[row] == "answered" else None,
        "status": answers.statuses[row],
        "reason": answers.reasons[row],
        "citations": [_citation(c) for c in answers.citations[row]],
        "attribution": answers.attributions[row],
        "dropped_citations": answers.dropped[row],
        "passages": [_passage(p) for p in answers.passages[row]],
        "rounds": answers.rounds[row],
        "tokens": {"prompt": answers.prompt_tokens[row], "new": answers.new_tokens[row]},
        "stop": answers.stops[row],
        "trimmed": answers.trimmed[row],
        "seconds": seconds,
    }


def error_record(failure: Failure, question: bool = False) -> dict[str, Any]:
    """The record of a row that did not make it.

    `question` tells whether the row's id begins with a question's id rather than a document's name.
    """
    first, page, chunk = (*failure.id, None, None, None)[:3]
    return {
        "id": list(failure.id),
        "category": failure.category,
        "stage": failure.stage,
        "question": first if question else None,
        "document": None if question else first,
        "page": None if question else page,
        "chunk": None if question else chunk,
        "message": failure.message,
    }


def _citation(citation: Citation) -> dict[str, Any]:
    return {
        "document": citation.document,
        "page": citation.page,
        "start": citation.start,
        "end": citation.end,
        "quote": citation.quote,
        "score": citation.score,
        "boxes": [list(box) for box in citation.boxes],
    }


def _passage(passage: Passage) -> dict[str, Any]:
    return {
        **_place(passage.id),
        "score": passage.score,
        "heading": passage.heading,
        "start": passage.start,
        "end": passage.end,
        "text": passage.text,
        "also": [_place(row) for row in passage.also],
    }


def _place(row: RowId) -> dict[str, Any]:
    document, page, chunk = row
    return {"document": document, "page": page, "chunk": chunk}


def strict(value: Any) -> Any:
    """`value` as strict JSON can hold it; what is not finite is null, with `<key>_reason` beside it."""
    if isinstance(value, Mapping):
        pairs = [pair for key, item in value.items() for pair in _entries(whole(str(key)), item)]
        return dict(pairs)
    if isinstance(value, np.ndarray | list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, str):
        return whole(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _entries(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield key, strict(value)
    reason = next(_unfinite(value), None)
    if reason is not None:
        yield f"{key}_reason", reason


def _unfinite(value: Any) -> Iterator[str]:
    """The names of numbers in `value` that are not finite; those of a mapping have keys of their own."""
    if isinstance(value, np.ndarray | list | tuple):
        for item in value:
            yield from _unfinite(item)
    elif isinstance(value, float | np.floating) and not np.isfinite(value):
        yield "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def whole(text: str) -> str:
    """`text` with surrogate pairs joined and their lone halves replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def line(record: Mapping[str, Any]) -> str:
    """The record as one line of strict JSON, without the line's end."""
    text = json.dumps(strict(record), ensure_ascii=False, allow_nan=False)
    return UNSAFE.sub(_escape, text)


def printable(text: str) -> str:
    """`text` for a terminal: what would steer it, or hide a part of the text, is spelled out."""
    return HIDDEN.sub(_escape, whole(text))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class JsonLines:
    """A file of records, to which lines are added as they finish; none waits in this process.

    An existing file is continued. A last line without an end, as a killed run leaves it, is cut off.
    """

    def __init__(self, path: Path) -> None:
        whole_lines = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        self._file = path.open("ab")
        self._file.truncate(len(whole_lines[0]) + len(whole_lines[1]))

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record and flush. Raises OSError where the disk is full."""
        self._file.write(line(record).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is no fault."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file that `JsonLines` wrote. Raises json.JSONDecodeError on a broken line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for source in file:
            yield json.loads(source)


def sort_lines(path: Path, order: Mapping[str, int]) -> None:
    """Put the records of a file in the order of their ids; replaced in one move."""
    records = sorted(read_lines(path), key=lambda r: order[r["id"]])
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(f"{line(r)}\n" for r in records)
    os.replace(part, path)


def write_json(path: Path, data: Any) -> None:
    """Write strict JSON in one move."""
    part = path.with_name(f".{path.name}.part")
    text = json.dumps(strict(data), indent=1, ensure_ascii=False, allow_nan=False)
    part.write_text(f"{text}\n", encoding="utf-8")
    os.replace(part, path)


def write_parquet(answers: Path, path: Path) -> int:
    """Write the records of `answers`, an answers.jsonl, as Parquet; how many there were.

    The columns and their types are the same for every run. The `_reason` of a null number stays behind
    in the JSON. The file appears whole or not at all.
    """
    import pyarrow
    import pyarrow.parquet

    schema, rows, count = _schema(), read_lines(answers), 0
    unfinished = path.with_name(f"{path.name}.part")
    with pyarrow.parquet.ParquetWriter(unfinished, schema) as writer:
        while batch := list(islice(rows, PARQUET_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    unfinished.replace(path)
    return count


def _schema() -> Any:
    import pyarrow as pa

    integer, real, text = pa.int32(), pa.float64(), pa.string()
    place = {"document": text, "page": integer, "chunk": integer}
    span = {"start": integer, "end": integer, "score": real}
    boxes = pa.list_(pa.list_(real))
    citation = pa.struct({"document": text, "page": integer, **span, "quote": text, "boxes": boxes})
    also = pa.list_(pa.struct(place))
    passage = pa.struct({**place, **span, "heading": text, "text": text, "also": also})
    columns = dict.fromkeys(("id", "question", "answer", "status", "reason", "attribution", "stop"), text)
    columns |= dict.fromkeys(("dropped_citations", "rounds", "trimmed"), integer)
    columns |= {"tokens": pa.struct({"prompt": integer, "new": integer}), "seconds": real}
    columns |= {"citations": pa.list_(citation), "passages": pa.list_(passage)}
    return pa.schema(columns)
