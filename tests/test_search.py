"""The stages IndexVectors, IndexWords, Search, SearchWords, Fuse, as a worker calls them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, GraphError, IndexMismatchError, RowId
from pipeline.machine import Device
from pipeline.stage import check_outputs, check_portable, ports, state_key
from pipeline.values import Chunks, Embeddings, Hits, Indexes, Queries
from retrieval.index import INDEXES, matching
from stages.index import IndexVectors, IndexWords
from stages.search import Fuse, Search, SearchWords

CPU = Device("cpu:0", 2)
HOTPOT = Path(__file__).parent.parent.parent / "shared" / "material" / "derived"
NAMES = ("reports/2022 Q3 AAPL.pdf", "reports/2023 Q1 MSFT.pdf", "notes/a, b.txt")


def unit(rows: int, width: int = 8, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def chunk_ids(rows: int) -> tuple[RowId, ...]:
    return tuple((NAMES[i % 3], 1, i) for i in range(rows))


def chunks(ids: Sequence[RowId], texts: Sequence[str]) -> Chunks:
    n = len(ids)
    boxes = (np.zeros((0, 4), np.float32),) * n
    return Chunks(tuple(ids), tuple(texts), tuple(texts), ("",) * n, (0,) * n, (0,) * n, boxes)


def queries(texts: Sequence[str], documents: Sequence[str] | None = None) -> Queries:
    globs = ("",) * len(texts) if documents is None else tuple(documents)
    return Queries(tuple((f"q{i}",) for i in range(len(texts))), tuple(texts), globs)


def index_vectors(folder: Path, rows: Embeddings, backend: str = "exact") -> Indexes:
    stage = IndexVectors(folder, backend)
    made = stage.run(stage.open(CPU), rows)
    check_outputs(stage, rows.ids, made)
    return made


def index_words(folder: Path, rows: Chunks) -> Indexes:
    stage = IndexWords(folder)
    stage.open(CPU)
    return stage.run(None, rows)


def search(
    stage: Search, vectors: NDArray[np.float32], index: Indexes, globs: Sequence[str] | None = None
) -> Hits:
    asked = queries(["text"] * len(vectors), globs)
    return stage.run(stage.open(CPU), asked, Embeddings(asked.ids, vectors), index)


# what is searched, and what comes back


@pytest.mark.parametrize("backend", sorted(INDEXES))
def test_hits_are_chunk_ids_best_first_whatever_the_order_of_arrival(tmp_path: Path, backend: str) -> None:
    """Case B38."""
    ids, vectors = chunk_ids(40), unit(40)
    vectors[30] = vectors[7]
    results = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(40).tolist()
        rows = Embeddings(ids, vectors).take(order)
        hits = search(Search(k=3), vectors[7:8], index_vectors(tmp_path / str(seed), rows, backend))
        results.append((hits.chunks, hits.scores[0].tolist()))
    assert results[0] == results[1] == results[2]
    assert results[0][0][0][:2] == tuple(sorted((ids[7], ids[30])))


def test_three_chunks_and_k_of_ten_give_three_hits(tmp_path: Path) -> None:
    """Case B32."""
    hits = search(
        Search(k=10), unit(1, seed=1), index_vectors(tmp_path / "i", Embeddings(chunk_ids(3), unit(3)))
    )
    assert sorted(hits.chunks[0]) == sorted(chunk_ids(3))
    assert len(hits.scores[0]) == 3


def test_an_empty_index_gives_an_empty_result(tmp_path: Path) -> None:
    """Case B32; no rows at all arrive as a batch whose columns are empty tuples."""
    index = index_vectors(tmp_path / "i", Embeddings.concat([]))
    words = index_words(tmp_path / "w", chunks((), ()))
    stage = SearchWords(k=3)
    assert search(Search(k=3), unit(2), index).chunks == ((), ())
    assert stage.run(stage.open(CPU), queries(["a word"]), words).chunks == ((),)


def test_vectors_of_another_width_are_refused_with_both_widths_and_the_folder(tmp_path: Path) -> None:
    """Case B33."""
    index = index_vectors(tmp_path / "small", Embeddings(chunk_ids(3), unit(3, 384)))
    with pytest.raises(IndexMismatchError, match=r"small.* width 384, the queries have width 768"):
        search(Search(), unit(1, 768), index)


@pytest.mark.parametrize("backend", sorted(INDEXES))
def test_a_threshold_keeps_the_identical_chunk_and_drops_the_worst(tmp_path: Path, backend: str) -> None:
    """Case B37."""
    ids, vectors = chunk_ids(30), unit(30)
    index = index_vectors(tmp_path / "i", Embeddings(ids, vectors), backend)
    hits = search(Search(k=30, threshold=0.5), vectors, index)
    for row in range(30):
        assert hits.chunks[row][0] == ids[row]
        assert hits.scores[row][0] == pytest.approx(1, abs=1e-6)
        assert (hits.scores[row] >= 0.5).all()
        assert len(hits.chunks[row]) == len(hits.scores[row]) == int((vectors @ vectors[row] >= 0.5).sum())


def test_a_threshold_can_leave_no_hit(tmp_path: Path) -> None:
    """Case B47."""
    index = index_vectors(tmp_path / "i", Embeddings(chunk_ids(3), unit(3)))
    assert search(Search(threshold=1.5), unit(1), index).chunks == ((),)


def test_the_same_bytes_under_two_names_are_two_hits_and_none_comes_twice(tmp_path: Path) -> None:
    """Case B19: both names stay citable; which of equal texts is shown is decided where texts are fetched."""
    vectors = unit(6)
    vectors[3:] = vectors[:3]
    ids = tuple((name, 1, i) for name in ("copy.pdf", "memo.pdf") for i in range(3))
    words = index_words(tmp_path / "w", chunks(ids, ["fast memo", "slow memo", "last memo"] * 2))
    hits = search(Search(k=6), vectors[:1], index_vectors(tmp_path / "i", Embeddings(ids, vectors)))
    stage = SearchWords(k=6)
    spoken = stage.run(stage.open(CPU), queries(["fast memo"]), words)
    for found in (hits, spoken, Fuse().run(None, hits, spoken)):
        assert len(set(found.chunks[0])) == 6
        assert found.chunks[0][:2] == (("copy.pdf", 1, 0), ("memo.pdf", 1, 0))


def test_blank_questions_and_globs_that_match_nothing_find_nothing(tmp_path: Path) -> None:
    """Case B47."""
    ids = chunk_ids(9)
    index = index_vectors(tmp_path / "i", Embeddings(ids, unit(9)))
    words = index_words(tmp_path / "w", chunks(ids, ["a word"] * 9))
    asked = queries(["word", " \n", "word", "word"], ["", "", "*.docx", "*AAPL*"])
    stage, spoken = Search(), SearchWords()
    for hits in (
        stage.run(stage.open(CPU), asked, Embeddings(asked.ids, unit(4)), index),
        spoken.run(spoken.open(CPU), asked, words),
    ):
        assert [len(found) for found in hits.chunks] == [8, 0, 0, 3]
        assert {i[0] for i in hits.chunks[3]} == {NAMES[0]}
        assert hits.ids == asked.ids


def test_words_find_what_is_written_and_nothing_else(tmp_path: Path) -> None:
    words = index_words(
        tmp_path / "w", chunks(chunk_ids(3)[::-1], ["about decode", "about prefill", "neither"])
    )
    stage = SearchWords()
    hits = stage.run(stage.open(CPU), queries(["DECODE?", "unheard of"]), words)
    assert hits.chunks[0] == (chunk_ids(3)[2],)
    assert len(hits.scores[1]) == 0


def test_an_index_may_belong_to_a_part_of_the_rows(tmp_path: Path) -> None:
    """An index with a longer id serves the rows whose ids it begins."""
    ids = (("left", 0), ("right", 0))
    made = [index_vectors(tmp_path / n, Embeddings(((n, 1, 0),), unit(1))) for n in ("left", "right")]
    both = Indexes((("left",), ("right",)), tuple(m.paths[0] for m in made))
    stage = Search()
    asked = Queries(ids, ("a", "b"), ("", ""))
    hits = stage.run(stage.open(CPU), asked, Embeddings(ids, unit(2)), both)
    assert hits.chunks == ((("left", 1, 0),), (("right", 1, 0),))


def test_an_empty_batch_passes(tmp_path: Path) -> None:
    index = index_vectors(tmp_path / "i", Embeddings(chunk_ids(3), unit(3)))
    assert search(Search(), unit(0), index) == Hits((), (), ())


def test_fused_hits_have_the_best_of_both() -> None:
    one, two, three = chunk_ids(3)
    first = Hits((("q",),), ((one, two),), (np.array([2, 1], np.float32),))
    second = Hits((("q",),), ((three, two),), (np.array([9, 8], np.float32),))
    fused = Fuse(k=2).run(None, first, second)
    assert fused.chunks == ((two, three),)  # "notes/..." comes before "reports/..."
    assert fused.scores[0].tolist() == pytest.approx([2 / 62, 1 / 61])


# globs


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", "111"),
        ("*aapl*", "100"),
        ("2023 q1 msft.pdf", "010"),
        ("reports/*", "110"),
        ("*AAPL*, *MSFT*", "110"),
        ("*AAPL*|*.txt", "101"),
        ("*AAPL*\n*MSFT*\n", "110"),
        ("a, b.txt", "001"),
        ("a, *.pdf", "110"),
        ("AAPL", "000"),
        (" , ", "000"),
    ],
)
def test_globs_match_whole_names_and_last_parts_in_any_case(glob: str, expected: str) -> None:
    assert "".join(str(int(m)) for m in matching(NAMES, glob)) == expected


def test_a_name_with_brackets_matches_itself() -> None:
    assert matching(["a [2].pdf", "a 2.pdf"], "A [2].pdf").tolist() == [True, True]


# what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Search(k=0), "Search: k must be at least 1, found 0"),
        (lambda: Search(nprobe=0), "nprobe must be at least 1"),
        (lambda: SearchWords(k=-1), "SearchWords: k must be at least 1, found -1"),
        (lambda: Fuse(constant=0), "constant must be at least 1"),
        (lambda: IndexVectors(Path("i"), "faiss-flatt"), "'faiss-flatt'; did you mean 'faiss-flat'"),
        (lambda: IndexVectors(Path("i"), "annoy"), "'annoy'; known: exact, faiss-flat"),
    ],
)
def test_wrong_parameters_are_refused_at_construction(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message.replace("?", r"\?")):
        make()


@dataclass(frozen=True, slots=True)
class Embed:
    model: str

    def run(self, state: None, chunks: Chunks) -> Embeddings:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EmbedQueries:
    model: str

    def run(self, state: None, queries: Queries) -> Embeddings:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EmbedAnswers:
    model: str

    def run(self, state: None, hits: Hits) -> Queries:
        raise NotImplementedError


def test_stages_that_embed_with_different_models_are_refused() -> None:
    others = (IndexVectors(Path("i")), EmbedAnswers("other"))
    Search().check((Embed("small"), EmbedQueries("small"), *others))
    Search().check(others)
    with pytest.raises(GraphError, match="Embed has model 'small', EmbedQueries has model 'large'"):
        Search().check((Embed("small"), EmbedQueries("large"), *others))
    with pytest.raises(GraphError, match=r"'small'.*'large'"):
        Search().check((Embed("small"), Embed("large")))


def test_vectors_that_are_not_finite_are_bad_rows(tmp_path: Path) -> None:
    ids, vectors = chunk_ids(4), unit(4)
    vectors[2, 0] = np.nan
    with pytest.raises(BadRowsError) as caught:
        index_vectors(tmp_path / "i", Embeddings(ids, vectors))
    assert list(caught.value.rows) == [ids[2]]
    index = index_vectors(tmp_path / "i", Embeddings(ids, unit(4)))
    with pytest.raises(BadRowsError) as caught:
        search(Search(), vectors, index)
    assert list(caught.value.rows) == [("q2",)]


@pytest.mark.parametrize(
    ("name", "text"), [("thesis.txt", "years of work"), ("index.json", "[1]"), ("index.json", "{half")]
)
def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(IndexMismatchError, match="exists and is no index"):
        IndexVectors(tmp_path).open(CPU)
    with pytest.raises(IndexMismatchError, match="exists and is no index"):
        index_words(tmp_path, chunks((), ()))
    assert (tmp_path / name).read_text() == text


def test_two_kinds_of_index_cannot_share_a_folder(tmp_path: Path) -> None:
    index = index_vectors(tmp_path / "i", Embeddings(chunk_ids(3), unit(3)))
    with pytest.raises(IndexMismatchError, match="'vectors', not of 'words'"):
        IndexWords(tmp_path / "i").open(CPU)
    stage = SearchWords()
    with pytest.raises(IndexMismatchError, match="has kind 'vectors', expected 'words'"):
        stage.run(stage.open(CPU), queries(["a"]), index)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 99, "has format 99, expected 1"),
        ("kind", "x", "has kind 'x', exp"),
        ("backend", "exakt", "'exakt'; did you mean 'exact'"),
    ],
)
def test_an_index_of_another_time_is_refused(tmp_path: Path, key: str, value: Any, message: str) -> None:
    index = index_vectors(tmp_path / "i", Embeddings(chunk_ids(3), unit(3)))
    header = json.loads((tmp_path / "i" / "index.json").read_text())
    (tmp_path / "i" / "index.json").write_text(json.dumps({**header, key: value}))
    with pytest.raises(IndexMismatchError, match=message):
        search(Search(), unit(1), index)


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(IndexMismatchError, match=r"no index in '.*nowhere': run the stage that builds it"):
        search(Search(), unit(1), Indexes(((),), (str(tmp_path / "nowhere"),)))


# the folder


def test_a_rewritten_index_is_noticed_and_an_unchanged_one_stays_open(tmp_path: Path) -> None:
    ids, vectors = chunk_ids(5), unit(5)
    stage = Search(k=5)
    state = stage.open(CPU)
    asked = queries(["text"])

    def hits(index: Indexes) -> int:
        return len(stage.run(state, asked, Embeddings(asked.ids, vectors[:1]), index).chunks[0])

    index = index_vectors(tmp_path / "i", Embeddings(ids[:2], vectors[:2]))
    assert hits(index) == 2
    first = state.get(index.paths[0], "vectors")
    assert state.get(index.paths[0], "vectors") is first
    index_vectors(tmp_path / "i", Embeddings(ids, vectors))
    assert hits(index) == 5
    assert len(first.search(vectors[:1], 5)[0][0]) == 2  # whoever has the old one open goes on reading it


def test_a_failed_write_leaves_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_vectors(tmp_path / "i", Embeddings(chunk_ids(2), unit(2)))

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("retrieval.exact.ExactIndex.save", full)
    with pytest.raises(OSError, match="disk full"):
        index_vectors(tmp_path / "i", Embeddings(chunk_ids(5), unit(5)))
    assert len(search(Search(), unit(1), index).chunks[0]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["i"]


def test_an_index_may_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.faiss_index.SMALLEST", 600)
    index_vectors(tmp_path / "i", Embeddings(chunk_ids(800), unit(800)), "faiss-ivf")
    shutil.move(tmp_path / "i", tmp_path / "moved")
    hits = search(Search(), unit(800)[:1], Indexes(((),), (str(tmp_path / "moved"),)))
    assert hits.chunks[0][0] == chunk_ids(1)[0]


def test_any_name_of_a_file_survives_the_folder(tmp_path: Path) -> None:
    ids: tuple[RowId, ...] = (("bad \udcff byte.txt", 1, 0), ("Umläute 文.pdf", 1, 0), ('quo"te\n.txt', 1, 0))
    index = index_vectors(tmp_path / "i", Embeddings(ids, unit(3)))
    assert set(search(Search(), unit(1), index).chunks[0]) == set(ids)


def test_an_id_cannot_be_indexed_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        index_vectors(tmp_path / "i", Embeddings((("a", 1, 0),) * 2, unit(2)))


def test_an_interrupted_replacement_leaves_nothing_behind_once_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: the old index is out of the way, the new one not yet in its place."""
    index = index_vectors(tmp_path / "i", Embeddings(chunk_ids(2), unit(2)))
    rename = Path.rename

    def torn(self: Path, target: Path) -> Path:
        if self.name == ".i.new":
            raise OSError("power cut")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", torn)
        with pytest.raises(OSError, match="power cut"):
            index_vectors(tmp_path / "i", Embeddings(chunk_ids(5), unit(5)))
    assert (tmp_path / ".i.old" / "index.json").exists()
    index_vectors(tmp_path / "i", Embeddings(chunk_ids(5), unit(5)))
    assert len(search(Search(), unit(1), index).chunks[0]) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["i"]


# as stages


def test_stages_travel_and_have_their_ports() -> None:
    for stage in (IndexVectors(Path("i")), IndexWords(Path("w")), Search(), SearchWords(), Fuse()):
        check_portable(stage, "stage")
        assert ports(type(stage)).output in (Indexes, Hits)
    assert state_key(Search(k=3)) == state_key(Search(k=4))  # one cache of open indexes for all


# on real questions


@pytest.fixture(scope="module")
def hotpot(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Indexes]:
    if not HOTPOT.exists():
        pytest.skip("needs ../shared/material/derived, which is not part of a clone")
    passages, asked = (
        [json.loads(line) for line in (HOTPOT / f"hotpotqa100.{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("corpus", "questions")
    )
    rows = chunks([(p["title"], 1, 0) for p in passages], [f"{p['title']}. {p['text']}" for p in passages])
    return asked, index_words(tmp_path_factory.mktemp("hotpot") / "words", rows)


def test_words_find_four_of_five_gold_passages_among_eight(
    hotpot: tuple[list[dict[str, Any]], Indexes],
) -> None:
    asked, words = hotpot
    stage = SearchWords(k=8)
    hits = stage.run(stage.open(CPU), queries([q["question"] for q in asked]), words)
    recall = [
        len({i[0] for i in found} & set(q["gold_docs"])) / len(q["gold_docs"])
        for q, found in zip(asked, hits.chunks, strict=True)
    ]
    assert np.mean(recall) >= 0.8
