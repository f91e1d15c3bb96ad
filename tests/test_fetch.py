from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import BadRowsError, RidgewayError, RowId
from pipeline.machine import Device
from pipeline.stage import check_outputs, gathers, ports
from pipeline.values import Chunks, Corpora, Hits, Passage, Passages
from stages.fetch import Fetch, StoreChunks, collapse

CPU = Device("cpu:0")


def chunks(texts: dict[RowId, str]) -> Chunks:
    n = len(texts)
    words = tuple(texts.values())
    boxes = (np.zeros((0, 4), dtype=np.float32),) * n
    return Chunks(tuple(texts), words, words, ("",) * n, (0,) * n, (1,) * n, boxes)


def hits(*rows: list[RowId]) -> Hits:
    ids = tuple((f"q{i}",) for i in range(len(rows)))
    scores = tuple(np.linspace(1, 0.5, len(row), dtype=np.float32) for row in rows)
    return Hits(ids, tuple(map(tuple, rows)), scores)


TEXTS: dict[RowId, str] = {
    ("a", 1, 0): "same",
    ("a", 1, 1): "other",
    ("b", 1, 0): "same",
    ("c", 1, 0): "same",
}


@pytest.fixture
def stored(tmp_path: Path) -> Corpora:
    return StoreChunks(tmp_path / "corpus").run(None, chunks(TEXTS))


def fetch(rows: Hits, corpus: Corpora) -> Passages:
    return Fetch().run(Fetch().open(CPU), rows, corpus)


def test_the_ports() -> None:
    assert ports(Fetch).inputs == {"hits": Hits, "corpus": Corpora}
    assert ports(StoreChunks).output is Corpora
    assert gathers(StoreChunks(Path("x"))) == 0


@pytest.mark.parametrize("texts", [TEXTS, {}])
def test_all_chunks_become_one_corpus(texts: dict[RowId, str], tmp_path: Path) -> None:
    stage = StoreChunks(tmp_path / "new" / "corpus")
    made = stage.run(None, chunks(texts))
    check_outputs(stage, tuple(texts), made)
    assert made.ids == ((),)
    assert Path(made.paths[0]).is_absolute()


def test_passages_come_in_the_order_of_the_hits_with_their_scores(stored: Corpora) -> None:
    rows = hits([("a", 1, 1), ("a", 1, 0)], [])
    made = fetch(rows, stored)
    check_outputs(Fetch(), rows.ids, made)
    assert [(p.text, p.score) for p in made.passages[0]] == [("other", 1.0), ("same", 0.5)]
    assert made.passages[1] == ()


def test_equal_texts_become_the_best_of_them_which_names_the_others(stored: Corpora) -> None:
    (row,) = fetch(hits([("b", 1, 0), ("a", 1, 1), ("a", 1, 0), ("c", 1, 0)]), stored).passages
    assert [p.id for p in row] == [("b", 1, 0), ("a", 1, 1)]
    assert [p.also for p in row] == [(("a", 1, 0), ("c", 1, 0)), ()]


def test_a_hit_that_no_corpus_holds_fails_its_question_alone(stored: Corpora) -> None:
    with pytest.raises(BadRowsError) as caught:
        fetch(hits([("a", 1, 0)], [("a", 1, 0), ("z.pdf", 7, 0)]), stored)
    assert set(caught.value.rows) == {("q1",)}
    assert "hit ('z.pdf', 7, 0) is not in the corpus" in str(caught.value.rows[("q1",)])


def test_an_empty_corpus_answers_questions_without_hits(tmp_path: Path) -> None:
    empty = StoreChunks(tmp_path / "corpus").run(None, chunks({}))
    assert fetch(hits([]), empty).passages == ((),)


def test_a_corpus_is_opened_once_and_again_when_it_was_written_anew(stored: Corpora) -> None:
    state = Fetch().open(CPU)
    first = state.corpus(stored.paths[0])
    assert state.corpus(stored.paths[0]) is first
    StoreChunks(Path(stored.paths[0])).run(None, chunks({("a", 1, 0): "new"}))
    (row,) = Fetch().run(state, hits([("a", 1, 0)]), stored).passages
    assert row[0].text == "new"


def test_a_corpus_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(RidgewayError, match="no corpus in"):
        fetch(hits([]), Corpora(((),), (str(tmp_path / "gone"),)))


def test_collapsing_nothing_gives_nothing() -> None:
    assert collapse([]) == ()
    only = Passage(("a",), "text", "", 0, 4, 1.0)
    assert collapse([only]) == (only,)
