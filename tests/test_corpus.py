from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import RidgewayError, RowId
from pipeline.rows import row_order
from pipeline.values import Chunks, Passage
from retrieval import corpus as module
from retrieval.corpus import open_corpus, write

BOXES = np.array([[0.1, 0.2, 0.3, 0.4], [0, 0.5, 1, 0.625]], dtype=np.float32)


def chunks(*ids: RowId, text: str = "text") -> Chunks:
    n = len(ids)
    texts = tuple(f"{text} {'/'.join(map(str, id))}" for id in ids)
    return Chunks(ids, texts, texts, ("Heading",) * n, tuple(range(n)), (9,) * n, (BOXES,) * n)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_chunk_is_found_by_its_id_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "c", chunks(("b.pdf", 1, 0), ("a.pdf", 2, 1)))
    corpus = open_corpus(tmp_path / "c")
    boxes = ((0.1, 0.2, 0.3, 0.4), (0.0, 0.5, 1.0, 0.625))
    expected = Passage(("a.pdf", 2, 1), "text a.pdf/2/1", "Heading", 1, 9, 0.5, boxes)
    assert corpus.passage(("a.pdf", 2, 1), 0.5) == expected


def test_ids_are_known_or_not(tmp_path: Path) -> None:
    write(tmp_path / "c", chunks(("a", 1, 0)))
    corpus = open_corpus(tmp_path / "c")
    assert ("a", 1, 0) in corpus
    for other in [("a", 1, 1), ("a", 1), ("a", "1", 0), (), "a"]:
        assert other not in corpus
    with pytest.raises(KeyError):
        corpus.passage(("a", 1, 1), 0)


def test_rows_stand_in_the_order_of_their_ids(tmp_path: Path) -> None:
    write(tmp_path / "c", chunks(("b", 1, 0), ("a", 10, 0), ("a", 2, 0), ("a", 2)))
    assert list(open_corpus(tmp_path / "c").ids()) == [("a", 2), ("a", 2, 0), ("a", 10, 0), ("b", 1, 0)]


def test_files_do_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    batch = chunks(*(("a", n, m) for n in range(5) for m in range(3)))
    write(tmp_path / "c", batch)
    write(tmp_path / "d", batch.take(range(14, -1, -1)))
    assert files(tmp_path / "c") == files(tmp_path / "d")


def test_an_empty_corpus_holds_nothing(tmp_path: Path) -> None:
    write(tmp_path / "c", chunks())
    corpus = open_corpus(tmp_path / "c")
    assert len(corpus) == 0
    assert ("a", 1, 0) not in corpus
    assert list(corpus.ids()) == []


def test_writing_again_replaces_the_corpus_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path / "c", chunks(("a", 1, 0)))
    before = open_corpus(tmp_path / "c")
    write(tmp_path / "c", chunks(("b", 1, 0)))
    assert list(open_corpus(tmp_path / "c").ids()) == [("b", 1, 0)]
    assert list(before.ids()) == [("a", 1, 0)]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_write_that_fails_leaves_the_old_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", chunks(("a", 1, 0)))

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path / "c", chunks(("b", 1, 0)))
    assert list(open_corpus(tmp_path / "c").ids()) == [("a", 1, 0)]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an id twice among its 2 chunks"):
        write(tmp_path / "c", chunks(("a", 1, 0), ("a", 1, 0)))


def test_what_is_no_corpus_says_so(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match="no corpus in"):
        open_corpus(tmp_path / "none")
    write(tmp_path / "c", chunks())
    (tmp_path / "c" / "corpus.json").write_text('{"format": 99}')
    with pytest.raises(RidgewayError, match="format 99, not 1"):
        open_corpus(tmp_path / "c")


@settings(deadline=None, derandomize=True, max_examples=30)
@given(texts=st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_any_text_comes_back_to_the_letter(tmp_path_factory: Any, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("corpora") / "c"
    ids: list[RowId] = [(text, i) for i, text in enumerate(texts)]
    n = len(ids)
    columns = Chunks(tuple(ids), tuple(texts), tuple(texts), ("",) * n, (0,) * n, (0,) * n, (BOXES[:0],) * n)
    write(folder, columns)
    corpus = open_corpus(folder)
    assert [corpus.passage(id, 0).text for id in ids] == texts


def test_rows_with_equal_hashes_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_hash", lambda id: np.uint64(2**63 + 5))
    write(tmp_path / "c", chunks(("a", 1, 0), ("b", 1, 0), ("c", 1, 0)))
    corpus = open_corpus(tmp_path / "c")
    assert [corpus.passage((d, 1, 0), 0).text for d in "abc"] == [f"text {d}/1/0" for d in "abc"]
    assert ("d", 1, 0) not in corpus


def test_numbers_come_before_texts() -> None:
    ids: list[RowId] = [("b",), ("a", "x"), ("a", 2), ("a", 10), ("a",)]
    assert sorted(ids, key=row_order) == [("a",), ("a", 2), ("a", 10), ("a", "x"), ("b",)]
