"""Every stage of the table says what it costs; what it says hangs together from stage to stage."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lookup import load
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work, terms
from pipeline.stage import cost_of, expands, gathers, ports
from pipeline.values import Corpora, Embeddings, Indexes, PageTexts, Rows
from stages import STAGES, costs
from stages.embed import Embed, EmbedQueries
from stages.fetch import Fetch
from stages.generate import Generate
from stages.prompt import WritePrompt
from stages.read import ListPages, ReadPages
from stages.recognize import Recognize
from stages.search import Fuse, Search, SearchWords
from stages.split import Split
from stages.steps import BeginSteps, Collect, Decide

ROOT = Path(__file__).parents[1]
ENCODER, MODEL = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
PARAMETERS = {"path": Path("somewhere"), "encoder": ENCODER}
WHOLE = {Indexes, Corpora}
SCANS = 387.0
"""Thousands of pixels to a page where one of ten is a scan at 200 dpi."""


def example(name: str) -> Any:
    """A stage of the table, with models that packages bring."""
    kind = load(STAGES[name])
    wanted = {**PARAMETERS, "model": ENCODER if name.startswith("Embed") else MODEL}
    return kind(**{f.name: wanted[f.name] for f in fields(kind) if f.name in wanted})


def work(stage: Any, rows: float, dtype: str = "float32") -> Work:
    """A batch of `rows` of which no more is known; an index or corpus of 1,000 chunks; pages with scans."""
    found = ports(type(stage)).inputs
    flows = {n: Flow(1, 1000, 240) if kind in WHOLE else Flow(rows) for n, kind in found.items()}
    flows |= {n: Flow(rows, SCANS) for n, kind in found.items() if kind is PageTexts}
    return Work(1 if gathers(stage) is not None else rows, flows, dtype)


def cost(stage: Any, rows: float, dtype: str = "float32") -> Cost:
    found = cost_of(stage, work(stage, rows, dtype))
    assert found is not None
    return found


def numbers(found: Cost) -> tuple[float, ...]:
    return (found.flops, found.traffic, found.scalar, found.resident, found.scratch, found.opening)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_says_what_it_costs(name: str) -> None:
    stage = example(name)
    found = cost(stage, 10)
    assert all(0 <= n < float("inf") for n in numbers(found))
    assert max(numbers(found)) > 0
    assert found.output.nbytes > 0
    lengths = ports(type(stage)).output.lengths is not Rows.lengths
    lengths = lengths and name != "Recognize"  # no pixels are left to read behind it
    whole = ports(type(stage)).output in WHOLE
    assert (found.output.length > 0) == (lengths or whole), "a length only where rows have one"
    if gathers(stage) is not None:
        assert (found.output.rows, found.output.length) == (1, 10)
    elif not expands(stage):
        assert found.output.rows == 10


@pytest.mark.parametrize("name", STAGES)
@given(rows=st.integers(0, 5000), more=st.integers(1, 5000))
def test_more_rows_cost_no_less(name: str, rows: int, more: int) -> None:
    stage = example(name)
    less, all_ = cost(stage, rows), cost(stage, rows + more)
    assert all(a <= b for a, b in zip(numbers(less), numbers(all_), strict=True))
    assert less.output.rows <= all_.output.rows
    assert (less.flops + less.traffic + less.scalar) < (all_.flops + all_.traffic + all_.scalar)


@pytest.mark.parametrize("name", STAGES)
def test_no_rows_take_no_work(name: str) -> None:
    found = cost(example(name), 0)
    assert (found.flops, found.scalar) == (0, 0)


@pytest.mark.parametrize("name", STAGES)
def test_a_cost_can_be_turned_into_seconds(name: str) -> None:
    assert terms(cost(example(name), 10, "bfloat16"), Device("cpu:0")).seconds > 0


def test_costs_are_found_without_heavy_libraries() -> None:
    code = (
        "import sys; from stages import STAGES; from tests.test_stage_costs import cost, example\n"
        "[cost(example(n), 10) for n in STAGES]\n"
        "heavy = {'torch', 'transformers', 'faiss', 'tokenizers', 'gguf', 'safetensors', 'onnxruntime'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("stage", [EmbedQueries(ENCODER), Generate(MODEL), example("Cite")])
def test_auto_is_what_the_device_computes_in(stage: Any) -> None:
    full, half = cost(stage, 8), cost(stage, 8, "bfloat16")
    assert (full.dtype, half.dtype) == ("float32", "bfloat16")
    assert full.resident == 2 * half.resident
    assert full.flops == half.flops
    assert cost(replace(stage, dtype="float32"), 8, "bfloat16").dtype == "float32"


# what one stage gives and the next one takes


def follow(stage: Any, rows: float, **flows: Flow) -> Flow:
    return stage.cost(Work(rows, flows)).output  # type: ignore[no-any-return]


def test_an_edge_of_hits_has_ids_and_scores_of_k_only() -> None:
    near = {"queries": Flow(5), "vectors": Flow(5, 0, costs.vector_bytes(384, chunks=False))}
    small, large = (follow(Search(k=12), 5, **near, index=Flow(1, n, 240)) for n in (1e3, 1e6))
    assert small == large
    assert costs.hits_in(small) == pytest.approx(12)
    words = follow(SearchWords(k=12), 5, queries=Flow(5), words=Flow(1, 1e6))
    hits = follow(Fuse(k=4), 5, first=small, second=words)
    found = follow(Fetch(), 5, hits=hits, corpus=Flow(1, 1e6))
    assert costs.passages_in(found) == pytest.approx(4)
    prompts = follow(WritePrompt(MODEL), 5, queries=Flow(5), passages=found)
    assert costs.passages_shown(prompts) == pytest.approx(4)
    assert prompts.length == pytest.approx((60 + 4 * 640) / 4 + 60)


def test_a_search_reads_the_index_once_for_all_its_queries() -> None:
    found = Search().cost(work(Search(), 32))
    assert found.flops == 2 * 32 * 1000 * 384
    assert found.traffic == 4 * 1000 * 384 + 4 * 32 * 1000
    assert found.resident == 4 * 1000 * 384


def test_prompts_stay_within_the_window() -> None:
    many = Flow(1, 0, costs.passage_bytes(100))
    short = WritePrompt(MODEL, max_tokens=500, reserve=100)
    assert follow(short, 1, queries=Flow(1), passages=many).length == 400
    assert follow(WritePrompt(MODEL, reserve=92), 1, queries=Flow(1), passages=many).length == 8192 - 92


def test_documents_become_pages_and_some_of_them_images() -> None:
    pages = follow(ListPages(), 3, documents=Flow(3, 0, costs.DOCUMENT))
    raw = follow(ReadPages(), 30, pages=pages)
    assert (pages.rows, raw.rows) == (30, 30)
    read = Recognize().cost(Work(30, {"texts": raw}))
    assert read.flops > 0
    assert costs.page_characters(read.output) == pytest.approx(costs.PAGE_CHARACTERS)
    text = Flow(30, 0, costs.page_bytes(900))
    passed = Recognize().cost(Work(30, {"texts": text}))
    assert (passed.flops, passed.output) == (0, text)


def test_rounds_hold_what_they_found() -> None:
    steps = follow(BeginSteps(), 2, queries=Flow(2))
    assert costs.passages_held(steps) == pytest.approx(0, abs=1)
    found = Flow(2, 0, costs.passage_bytes(8))
    first = follow(Collect(new=4, k=6), 2, steps=steps, passages=found)
    assert costs.passages_in(first) == pytest.approx(4, abs=1)
    steps = follow(Decide(), 2, steps=steps, passages=first, completions=Flow(2))
    second = follow(Collect(new=4, k=6), 2, steps=steps, passages=found)
    assert costs.passages_in(second) == pytest.approx(6)


# expectations against real rows


def a_page(words: int) -> PageTexts:
    text = " ".join(
        ["Dr Ann Ode saw 14 elk by Loch Ewe at 6 pm on 3 May 1937, all of them at rest."] * (words // 20)
    )
    none = np.zeros((0, 2), np.int32), np.zeros((0, 4), np.float32)
    return PageTexts((("a.pdf", 1),), (text,), (None,), none[:1], none[1:], ((),), ("pdf",))


@pytest.mark.parametrize("words", [40, 200, 400, 2000])
def test_pages_are_cut_into_about_as_many_chunks(words: int) -> None:
    stage, page = Split(ENCODER), a_page(words)
    real = stage.run(stage.open(Device("cpu:0")), page)
    said = follow(stage, 1, texts=Flow(1, 0, costs.page_bytes(len(page.texts[0]))))
    assert said.rows == pytest.approx(len(real), rel=0.35)
    assert said.rows * said.length == pytest.approx(sum(real.lengths), rel=0.35)


def test_vectors_weigh_what_the_encoder_gives() -> None:
    said = cost(Embed(ENCODER), 1).output
    real = Embeddings((("a-report.pdf", 12, 3),), np.zeros((1, 384), np.float32))
    assert said.nbytes == pytest.approx(real.nbytes, rel=0.05)


@given(rows=st.integers(1, 64), tokens=st.integers(1, 2000), new=st.integers(1, 100))
def test_the_two_phases_of_generation_are_all_of_it(rows: int, tokens: int, new: int) -> None:
    """The cut is between them: the cache of the prompt, 2 L s d_kv elements, crosses it (B9)."""
    stage = Generate(MODEL, new)
    asked = Work(rows, {"prompts": Flow(rows, tokens)}, "bfloat16")
    shapes, *phases = stage.cut(asked)
    whole = stage.cost(asked)
    for name in ("flops", "traffic", "scalar"):
        assert sum(getattr(p, name) for p in phases) == pytest.approx(getattr(whole, name))
    crossing = shapes.bytes["prefill/decode"]
    assert crossing == 2 * 30 * tokens * 3 * 64 * 2, "30 layers, 3 key heads of 64, 2 bytes"
    assert crossing * rows == phases[0].output.rows * phases[0].output.nbytes
    assert phases[1].output == whole.output
