import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.models import resolve
from pipeline.stage import check_outputs, expands, ports
from pipeline.values import Chunks, PageTexts
from stages.split import Split

MODEL = "all-MiniLM-L6-v2"
CPU = Device("cpu:0")
NO_SPANS, NO_BOXES = np.zeros((0, 2), dtype=np.int32), np.zeros((0, 4), dtype=np.float32)
WORDS = " ".join(f"This is sentence number {i}." for i in range(10, 70))


def pages(*texts: str, headings: tuple[tuple[int, str], ...] = ()) -> PageTexts:
    n = len(texts)
    ids = tuple(("a.pdf", i + 1) for i in range(n))
    return PageTexts(
        ids, texts, (None,) * n, (NO_SPANS,) * n, (NO_BOXES,) * n, (headings,) * n, ("text",) * n
    )


def run(stage: Split, texts: PageTexts) -> Chunks:
    return stage.run(stage.open(CPU), texts)


def test_one_page_becomes_many_chunks() -> None:
    assert ports(Split).inputs == {"texts": PageTexts}
    assert ports(Split).output is Chunks
    assert expands(Split(MODEL))


def test_chunks_count_from_0_on_each_page_and_empty_pages_keep_their_number() -> None:
    made = run(Split(MODEL, tokens=100, overlap=0), pages(WORDS, " \n", "Short."))
    check_outputs(Split(MODEL), (("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)), made)
    assert made.ids[0] == ("a.pdf", 1, 0)
    assert made.ids[1] == ("a.pdf", 1, 1)
    assert made.ids[-1] == ("a.pdf", 3, 0)
    assert {id[1] for id in made.ids} == {1, 3}


def test_texts_are_the_source_to_the_letter() -> None:
    source = "  The speci\ufb01-\r\ncation  stands."
    made = run(Split(MODEL), pages(source))
    assert made.texts == ("The speci\ufb01-\r\ncation  stands.",)
    assert made.matches == ("The specification stands.",)
    assert (made.starts, made.ends) == ((2,), (len(source),))


@pytest.mark.parametrize("texts", [pages(), pages("", "\n")])
def test_nothing_to_split_gives_no_chunks(texts: PageTexts) -> None:
    assert len(run(Split(MODEL), texts)) == 0


def test_every_chunk_is_seen_whole_by_the_encoder() -> None:
    stage = Split(MODEL, tokens=256, overlap=100)
    tokenizer = stage.open(CPU)
    made = stage.run(tokenizer, pages("word " * 2000 + "The key is blue.", headings=((0, "A heading"),)))
    assert max(len(tokenizer.encode(m).ids) for m in made.matches) <= 256
    assert made.texts[-1].endswith("The key is blue.")


def test_headings_go_before_what_is_matched_or_not() -> None:
    texts = pages(WORDS, headings=((0, "Numbers"),))
    with_headings = run(Split(MODEL, tokens=60), texts)
    without = run(Split(MODEL, tokens=60, headings=False), texts)
    assert all(m.startswith("Numbers: This") for m in with_headings.matches)
    assert all(m.startswith("This") for m in without.matches)
    assert set(with_headings.headings) == set(without.headings) == {"Numbers"}


def test_boxes_are_those_of_the_lines_of_the_chunk() -> None:
    text = WORDS
    spans = np.array([[i, i + 40] for i in range(0, len(text), 40)], dtype=np.int32)
    boxes = np.arange(4 * len(spans), dtype=np.float32).reshape(-1, 4)
    page = PageTexts((("a", 1),), (text,), (None,), (spans,), (boxes,), ((),), ("pdf",))
    made = run(Split(MODEL, tokens=60, overlap=0), page)
    for start, end, box in zip(made.starts, made.ends, made.boxes, strict=True):
        lines = range(start // 40, (end - 1) // 40 + 1)
        np.testing.assert_array_equal(box, boxes[list(lines)])


@pytest.mark.parametrize("overlap", [50, 60, -1])
def test_an_overlap_of_the_whole_chunk_is_refused(overlap: int) -> None:
    with pytest.raises(RidgewayError, match=f"overlap is {overlap}, tokens is 50"):
        Split(MODEL, tokens=50, overlap=overlap)


@pytest.mark.parametrize("tokens", [0, -5])
def test_no_tokens_are_refused(tokens: int) -> None:
    with pytest.raises(RidgewayError, match=f"tokens is {tokens}, overlap is 0"):
        Split(MODEL, tokens=tokens, overlap=0)


@pytest.mark.parametrize("tokens", [2, 257])
def test_tokens_that_the_encoder_cannot_see_are_refused_on_opening(tokens: int) -> None:
    with pytest.raises(ModelError, match=f"tokens is {tokens}, .* sees 256 .* from 3 to 256"):
        Split(MODEL, tokens=tokens, overlap=0).open(CPU)


def test_a_prompt_of_the_encoder_takes_its_place_in_the_window(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve(MODEL), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").touch()
    settings = {"prompts": {"document": "a passage of text: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="sees 251 tokens"):
        Split(str(folder), tokens=252).open(CPU)
    Split(str(folder), tokens=251).open(CPU)
