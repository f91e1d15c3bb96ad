"""Every decoder of the table says what the plain reference says, and is what it says of itself."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.lookup import load
from pipeline.machine import Device
from pipeline.values import Completions, KVCache, Prompts
from stages.decode import Decode
from stages.generate import Generate
from stages.llm.decoder import Abilities, Ask, Said
from stages.llm.opened import DECODERS, Opened
from stages.prefill import Prefill
from tests.tiny_llm import save_tiny

CPU = Device("cpu:0", 2)
NEW = 12
LENGTHS = (3, 40, 7, 1, 25, 12, 60, 33)
PLAIN = "reference"
OTHERS = sorted({"auto", *DECODERS} - {PLAIN})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


@cache
def opened(folder: str, decoder: str) -> Opened:
    return speaker(folder, decoder).open(CPU)


def speaker(folder: str, decoder: str, **more: Any) -> Generate:
    return Generate(folder, NEW, "float32", decoder=decoder, **more)


def prompts() -> Prompts:
    random = np.random.default_rng(1)
    tokens = tuple(random.integers(3, 259, n).astype(np.int32) for n in LENGTHS)
    n = len(tokens)
    return Prompts(tuple((f"q{i}",) for i in range(n)), tokens, ((),) * n, (0,) * n)


def said(folder: str, decoder: str, **more: Any) -> Completions:
    """What a decoder answers, its counts of what it need not have done left out."""
    out = speaker(folder, decoder, **more).run(opened(folder, decoder), prompts())
    none = (0,) * len(out)
    return dataclasses.replace(out, reused=none, drafted=none, accepted=none)


def test_every_name_of_the_table_makes_a_decoder(folder: str) -> None:
    for name in DECODERS:
        assert callable(load(DECODERS[name]))
        assert isinstance(opened(folder, name).decoder.abilities, Abilities)
    assert len({type(opened(folder, name).decoder) for name in DECODERS}) == len(DECODERS)


def test_the_reference_is_the_model(folder: str) -> None:
    """Its logits are those of the library, in float64 by another hand."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder)
    decoder: Any = opened(folder, PLAIN).decoder
    for tokens in prompts().tokens:
        with torch.no_grad():
            theirs = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
        assert np.allclose(decoder.logits(tokens.astype(np.int64)), theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("decoder", OTHERS)
def test_greedy_answers_are_those_of_the_reference(folder: str, decoder: str) -> None:
    right = said(folder, PLAIN)
    assert said(folder, decoder) == right
    assert len(set(right.texts)) == len(LENGTHS), "or the prompts would say nothing"


@pytest.mark.parametrize("decoder", OTHERS)
def test_tokens_and_stops_are_those_of_the_reference(folder: str, decoder: str) -> None:
    """Of answers of different lengths, one of which may be a single token."""
    rows = prompts()
    asks = [Ask(t, 1 + i, rows.ids[i]) for i, t in enumerate(rows.tokens)]
    right, found = (opened(folder, name).decoder.answer(asks) for name in (PLAIN, decoder))
    assert [(s.tokens, s.stop) for s in found] == [(s.tokens, s.stop) for s in right]
    assert [len(s.tokens) for s in right if s.stop == "length"] == [
        1 + i for i, s in enumerate(right) if s.stop == "length"
    ]


@pytest.mark.parametrize("decoder", OTHERS)
def test_each_answer_stands_alone(folder: str, decoder: str) -> None:
    rows, one = prompts(), opened(folder, decoder)
    alone = [speaker(folder, decoder).run(one, rows.take([i])).texts[0] for i in range(len(rows))]
    assert tuple(alone) == said(folder, PLAIN).texts


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_drawn_answers_are_those_of_the_reference(folder: str, decoder: str, top_p: float) -> None:
    how = {"temperature": 0.8, "top_p": top_p, "seed": 5}
    right = said(folder, PLAIN, **how)
    assert said(folder, decoder, **how) == right
    assert right.texts != said(folder, PLAIN).texts
    assert right.texts != said(folder, PLAIN, **how | {"seed": 6}).texts


@pytest.mark.parametrize("decoder", OTHERS)
def test_stop_texts_end_answers_as_in_the_reference(folder: str, decoder: str) -> None:
    text = said(folder, PLAIN).texts[1]
    at = next(i for i in range(3, len(text)) if text[i].isascii() and text.index(text[i]) == i)
    right = said(folder, PLAIN, stop=(text[at],))
    assert said(folder, decoder, stop=(text[at],)) == right
    assert (right.texts[1], right.stops[1]) == (text[:at].strip(), "end")


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_constraints_hold_and_give_the_answers_of_the_reference(
    folder: str, decoder: str, temperature: float
) -> None:
    pytest.importorskip("llguidance")
    how = {"regex": "[a-f]{2,4}(-[0-9])?", "temperature": temperature}
    right = said(folder, PLAIN, **how)
    assert said(folder, decoder, **how) == right
    assert set(right.stops) == {"end"}


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_rows_without_tokens_and_empty_batches_are_no_work(folder: str, decoder: str) -> None:
    rows, one = prompts(), opened(folder, decoder)
    empty = dataclasses.replace(rows, tokens=(np.zeros(0, np.int32),) * len(rows))
    assert set(speaker(folder, decoder).run(one, empty).stops) == {"skipped"}
    assert one.decoder.answer([]) == []


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_it_counts_what_it_did(folder: str, decoder: str) -> None:
    fresh: Any = speaker(folder, decoder).open(CPU).decoder
    found: list[Said] = fresh.answer([Ask(t, 4) for t in prompts().tokens[:3]])
    assert (fresh.counts.prompt, fresh.counts.new) == (50, sum(len(s.tokens) for s in found))


# abilities


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_it_splits_if_it_says_so_and_else_refuses(folder: str, decoder: str) -> None:
    one, rows = opened(folder, decoder), prompts()
    prefill = Prefill(folder, "float32", decoder)
    if one.decoder.abilities.split:
        decode = Decode(folder, NEW, "float32", decoder=decoder)
        assert decode.run(one, prefill.run(one, rows)).texts == said(folder, PLAIN).texts
        return
    for run in (
        lambda: prefill.run(one, rows),
        lambda: Decode(folder, decoder=decoder).run(one, no_cache(rows)),
    ):
        with pytest.raises(ModelError, match="does not split it; use Generate instead of Prefill and Decode"):
            run()


def no_cache(rows: Prompts) -> KVCache:
    return KVCache(rows.ids, rows.tokens, (None,) * len(rows), (None,) * len(rows))


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_it_reads_beginnings_once_if_it_says_so(folder: str, decoder: str) -> None:
    one: Any = speaker(folder, decoder).open(CPU).decoder
    begin = np.arange(3, 67, dtype=np.int32)
    asks = [Ask(_with(begin, i), 2, (f"q{i}",)) for i in range(3)]
    reused = [s.reused for s in one.answer(asks)]
    assert (sum(reused) > 0) == one.abilities.prefix
    assert one.counts.reused == sum(reused)


def _with(begin: NDArray[np.int32], i: int) -> NDArray[np.int32]:
    return np.concatenate([begin, np.array([100 + i, 7, 9], np.int32)])


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_it_drafts_if_it_says_so_and_says_the_same(folder: str, decoder: str) -> None:
    one = opened(folder, decoder)
    if not one.decoder.abilities.drafts:
        assert not any(s.drafted for s in one.decoder.answer([Ask(np.tile(prompts().tokens[0], 9), NEW)]))
        return
    drafting = dataclasses.replace(speaker(folder, decoder), drafts=4)
    out = drafting.run(drafting.open(CPU), prompts())
    assert out.texts == said(folder, PLAIN).texts


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_it_holds_answers_to_a_form_if_it_says_so(folder: str, decoder: str) -> None:
    pytest.importorskip("llguidance")
    assert opened(folder, decoder).decoder.abilities.constraints
    assert all(t.isdigit() for t in said(folder, decoder, regex="[0-9]{2}").texts)


# what the reference does not run


def test_the_reference_refuses_what_it_would_get_wrong(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    other = str(save_tiny(tmp_path, rope_parameters=rope))
    with pytest.raises(
        ModelError, match=r"the reference runs Llamas with default rotary embedding .*'linear'"
    ):
        speaker(other, PLAIN).open(CPU)
