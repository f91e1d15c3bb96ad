"""Answers and their citations: marks, support, and the reasons for no answer. The encoder is a fake."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, RidgewayError
from pipeline.stage import check_outputs, check_portable, ports, state_key
from pipeline.values import Answers, Completions, Passage, Prompts, Queries
from stages.attribution import candidates, cited, content, read_marks, sentences, weigh
from stages.cite import Cite
from stages.embed import Embed

BIRD = Passage(
    ("zoo.pdf", 2, 0), "The zoo opened in 1912. Its oldest bird is Polly, a parrot.", "", 50, 109, 1.0
)
CAT = Passage(("zoo.pdf", 5, 1), "Cats are fed at noon. The keeper is Ann Hill.", "", 0, 45, 0.5)
TOWN = Passage(("town.txt", 1, 0), "Ann Hill was born in Marbury.", "", 7, 36, 0.4)
DEFAULT = Cite()


class Bag:
    """A bag-of-words encoder: a word is an axis, so cosine is word overlap."""

    def __init__(self) -> None:
        self.axes: dict[str, int] = {}

    def encode(self, texts: Sequence[str], kind: str = "document") -> NDArray[np.float32]:
        made = np.zeros((len(texts), 256), np.float32)
        for row, text in zip(made, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[self.axes.setdefault(word, len(self.axes))] = 1
        made /= np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-9)
        return made


def cite(
    question: str,
    said: str,
    passages: Sequence[Passage] = (BIRD, CAT, TOWN),
    stage: Cite = DEFAULT,
    stop: str = "end",
) -> Answers:
    ids = (("q",),)
    made = stage.run(
        Bag(),  # type: ignore[arg-type]
        Queries(ids, (question,), ("",)),
        Prompts(ids, (np.zeros(len(passages), np.int32),), (tuple(passages),), (2,)),
        Completions(ids, (said,), (9,), (4,), (stop,)),
    )
    check_outputs(stage, ids, made)
    return made


def test_a_mark_becomes_document_page_span_and_verbatim_quote() -> None:
    made = cite("What is the oldest bird?", "The oldest bird is Polly [1].")
    (citation,) = made.citations[0]
    assert (made.texts, made.statuses, made.attributions) == (
        ("The oldest bird is Polly.",),
        ("answered",),
        ("marked",),
    )
    assert (citation.document, citation.page) == ("zoo.pdf", 2)
    assert citation.quote == "Its oldest bird is Polly, a parrot."
    assert BIRD.text[citation.start - BIRD.start : citation.end - BIRD.start] == citation.quote
    assert (made.trimmed, made.prompt_tokens, made.new_tokens, made.stops) == ((2,), (9,), (4,), ("end",))


@pytest.mark.parametrize(
    ("text", "bare", "numbers", "dropped"),
    [
        ("Polly [1].", "Polly.", (1,), 0),
        ("Polly [2, 1] and Ann [3]", "Polly and Ann", (2, 1, 3), 0),
        ("Polly [1-3]", "Polly", (1, 2, 3), 0),
        ("Polly [1][4].", "Polly.", (1,), 1),
        ("Polly [0] [9-999]", "Polly", (), 992),
        ("[Passage 2] Polly", "Polly", (2,), 0),
        ("Founded [2023] in Rome", "Founded [2023] in Rome", (), 0),
        ("no marks ,here", "no marks ,here", (), 0),
    ],
)
def test_marks_are_read_and_removed(text: str, bare: str, numbers: tuple[int, ...], dropped: int) -> None:
    marks = read_marks(text, 3)
    assert (marks.text, marks.numbers, marks.dropped) == (bare, numbers, dropped)


def test_invalid_marks_are_dropped_and_counted() -> None:
    made = cite("What is the oldest bird?", "The oldest bird is Polly [1, 7].")
    assert len(made.citations[0]) == 1
    assert made.dropped == (1,)


def test_a_mark_on_a_passage_that_says_nothing_of_it_is_dropped() -> None:
    noise = Passage(("noise.txt", 1, 0), "Rain fell.", "", 0, 10, 0.1)
    made = cite("What is the oldest bird?", "The oldest bird is Polly, a parrot [3].", (BIRD, CAT, noise))
    assert made.dropped == (1,)
    assert made.attributions == ("supported",)
    assert [c.page for c in made.citations[0]] == [2]


def test_an_unmarked_answer_cites_the_passage_that_bears_it_out() -> None:
    made = cite("Who is the keeper?", "Ann Hill is the keeper.", (BIRD, CAT))
    assert made.attributions == ("supported",)
    assert [c.quote for c in made.citations[0]] == ["The keeper is Ann Hill."]


def test_a_second_passage_is_cited_only_where_it_adds_something() -> None:
    two = cite("Where was the keeper of the cats born?", "Marbury")
    assert {c.document for c in two.citations[0]} == {"zoo.pdf", "town.txt"}
    one = cite("Where was the keeper of the cats born?", "Marbury", stage=Cite(most=1))
    assert len(one.citations[0]) == 1


def test_the_places_of_the_passage_come_along() -> None:
    boxed = Passage(("a.pdf", 1, 0), "The bird is Polly.", "", 0, 18, 1.0, ((0.1, 0.2, 0.9, 0.3),))
    (citation,) = cite("Who is the bird?", "Polly", (boxed,)).citations[0]
    assert citation.boxes == boxed.boxes


@pytest.mark.parametrize(
    ("question", "said", "passages", "reason"),
    [
        ("Who?", "", (), "nothing was retrieved"),
        (" ", "", (BIRD,), "the question is blank"),
        ("Who is the keeper?", " [1]", (CAT,), "the model gave no answer"),
        (
            "Who is the keeper?",
            "It is not in the documents [1].",
            (CAT,),
            "the model found no answer in the passages",
        ),
        (
            "Who is the keeper?",
            "The passage doesn't mention it.",
            (CAT,),
            "the model found no answer in the passages",
        ),
        ("When did Napoleon sail to Elba?", "In 1814.", (BIRD, CAT), "no passage supports an answer"),
    ],
)
def test_b47_without_evidence_a_question_is_unanswered_with_its_reason(
    question: str, said: str, passages: tuple[Passage, ...], reason: str
) -> None:
    made = cite(question, said, passages)
    assert (made.statuses, made.reasons) == (("unanswered",), (reason,))
    assert (made.texts, made.citations, made.attributions) == (("",), ((),), ("none",))


def test_an_answer_that_no_passage_has_a_word_of_gives_way_to_the_nearest_sentence() -> None:
    made = cite("Who is the keeper?", "Wellington [1]", (CAT,))
    assert (made.texts, made.attributions, made.dropped) == (
        ("The keeper is Ann Hill.",),
        ("extracted",),
        (1,),
    )
    assert [c.quote for c in made.citations[0]] == ["The keeper is Ann Hill."]


def test_nothing_is_extracted_where_the_passages_are_about_something_else() -> None:
    made = cite("Who is the keeper?", "Wellington", (CAT,), Cite(minimum=1.0))
    assert (made.statuses, made.reasons) == (("unanswered",), ("no passage supports an answer",))


def test_the_least_support_can_be_turned_off() -> None:
    made = cite("When did Napoleon sail to Elba?", "In 1814.", (BIRD,), Cite(minimum=0))
    assert made.statuses == ("answered",)


def test_rows_of_a_batch_do_not_mix() -> None:
    rows = [
        ("Who is the keeper?", "Ann Hill", (BIRD, CAT)),
        ("Who?", "", ()),
        ("Oldest bird?", "Polly", (CAT, BIRD)),
    ]
    ids = tuple((f"q{i}",) for i in range(3))
    made = Cite().run(
        Bag(),  # type: ignore[arg-type]
        Queries(ids, tuple(r[0] for r in rows), ("",) * 3),
        Prompts(ids, (np.zeros(1, np.int32),) * 3, tuple(r[2] for r in rows), (0,) * 3),
        Completions(ids, tuple(r[1] for r in rows), (1,) * 3, (1,) * 3, ("end",) * 3),
    )
    alone = [cite(*row) for row in rows]
    assert made.citations == tuple(a.citations[0] for a in alone)
    assert made.reasons == tuple(a.reasons[0] for a in alone)


def test_vectors_that_are_no_numbers_fail_their_row() -> None:
    class Broken(Bag):
        def encode(self, texts: Sequence[str], kind: str = "document") -> NDArray[np.float32]:
            return super().encode(texts, kind) * np.float32("nan")

    ids = (("q",),)
    prompts = Prompts(ids, (np.zeros(1, np.int32),), ((BIRD,),), (0,))
    with pytest.raises(BadRowsError, match="not finite"):
        Cite().run(
            Broken(),  # type: ignore[arg-type]
            Queries(ids, ("Who?",), ("",)),
            prompts,
            Completions(ids, ("Polly",), (1,), (1,), ("end",)),
        )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One is here. Two is there! Three?", ["One is here.", "Two is there!", "Three?"]),
        (
            "Mr. Smith met J. Doe of Acme Inc. Yesterday he left.",
            ["Mr. Smith met J. Doe of Acme Inc. Yesterday he left."],
        ),
        ("It cost 3.5 million.\nThen it rose.", ["It cost 3.5 million.", "Then it rose."]),
        ("Heading\n\nText of it.", ["Heading", "Text of it."]),
        ("これは猫です。犬もいます。", ["これは猫です。", "犬もいます。"]),
        ("  ", []),
    ],
)
def test_sentences_are_found(text: str, parts: list[str]) -> None:
    assert [text[a:b] for a, b in sentences(text)] == parts


def test_a_table_without_sentences_is_quoted_in_lines() -> None:
    text = "\n".join(f"row {i} of the table with 1,000 and 2,000" for i in range(40))
    parts = [text[a:b] for a, b in sentences(text)]
    assert max(map(len, parts)) <= 300
    assert all(p.startswith("row") for p in parts)
    assert "\n".join(parts) == text


def test_content_words_keep_numbers_and_names() -> None:
    assert content("What was the net income of Q3 2023, 1,234.5 million?") >= {
        "net",
        "income",
        "2023",
        "1,234.5",
    }
    assert not content("What is the of and it?")


def test_scores_order_passages_by_words_where_similarity_is_equal() -> None:
    found = candidates((BIRD, CAT), content("keeper Ann Hill"), most=1)
    flat = np.full(2, 0.5, np.float32)
    evidence = weigh("Who is the keeper?", "Ann Hill", (BIRD, CAT), found, flat, flat)
    assert evidence.scores[1] > evidence.scores[0]
    assert cited(evidence, 3) == (1,)
    assert 0 <= evidence.scores.min() <= evidence.scores.max() <= 1
    assert sum(evidence.weights.values()) == pytest.approx(1)


def test_the_encoder_is_the_one_that_embeds() -> None:
    assert state_key(Cite("m", "float32")) == state_key(Embed("m", "float32"))
    check_portable(Cite(), "cite")
    assert ports(Cite).output is Answers


@pytest.mark.parametrize("given", [{"minimum": 1.5}, {"most": 0}])
def test_limits_are_checked(given: dict[str, float]) -> None:
    with pytest.raises(RidgewayError, match=next(iter(given))):
        Cite(**given)  # type: ignore[arg-type]
