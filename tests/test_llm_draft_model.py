"""The draft model that a stage names: checked, opened, and given its share of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.values import Completions, Prompts
from stages.decode import Decode
from stages.generate import Generate
from stages.llm.small_model import SmallModel
from stages.llm.twin import Twin
from stages.prefill import Prefill
from tests.llm_models import one_thread
from tests.tiny_llm import save_tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)
CPU = Device("cpu:0", 1)
NEW = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("small"), num_hidden_layers=1))


def prompts() -> Prompts:
    random = np.random.default_rng(1)
    tokens = tuple(random.integers(3, 259, n).astype(np.int32) for n in (3, 40, 7, 1, 25))
    n = len(tokens)
    return Prompts(tuple((f"q{i}",) for i in range(n)), tokens, ((),) * n, (0,) * n)


def answers(folder: str, **more: Any) -> tuple[Any, Completions]:
    stage = Generate(folder, NEW, "float32", **more)
    state = stage.open(CPU)
    return state.decoder, stage.run(state, prompts())


def drafter(engine: Any) -> Any:
    return engine._cohort._proposals._drafter


def test_answers_are_the_same_whoever_drafts(folder: str, small: str) -> None:
    plain, right = answers(folder)
    assert drafter(plain) is None
    for name, kind in (("int8", Twin), (small, SmallModel), (folder, SmallModel)):
        engine, found = answers(folder, drafts=3, draft_model=name)
        assert isinstance(drafter(engine), kind)
        assert (found.texts, found.stops) == (right.texts, right.stops)
        assert sum(found.drafted) > 0
        assert all(a <= d for a, d in zip(found.accepted, found.drafted, strict=True))


def test_what_was_read_elsewhere_is_drafted_for(folder: str, small: str) -> None:
    _, right = answers(folder)
    for name in ("int8", small):
        read = Prefill(folder, "float32", drafts=3, draft_model=name)
        says = Decode(folder, NEW, "float32", drafts=3, draft_model=name)
        found = says.run(says.open(CPU), read.run(read.open(CPU), prompts()))
        assert found.texts == right.texts
        assert sum(found.drafted) > 0


def test_a_copy_shares_all_but_the_layers(folder: str) -> None:
    engine, _ = answers(folder, drafts=3, draft_model="int8")
    net, copy = engine._net, drafter(engine)._net
    assert copy.embedding is net.embedding
    assert copy.head is net.head
    assert copy.layers[0].up.nbytes * 4 == net.layers[0].up.nbytes


def test_both_have_caches_for_as_many_tokens_within_the_budget(folder: str, small: str) -> None:
    gib = 3 * 4096 / (1 << 20)
    alone = answers(folder, cache_gib=gib)[0]._limits.tokens
    assert answers(folder, cache_gib=gib, drafts=3, draft_model="int8")[0]._limits.tokens == alone
    engine, _ = answers(folder, cache_gib=gib, drafts=3, draft_model=small)
    own, its = engine._net.sizes.token_bytes, drafter(engine)._net.sizes.token_bytes
    tokens = engine._limits.tokens
    assert tokens == drafter(engine)._limits.tokens
    assert tokens * (own + its) <= gib * 2**30 < (tokens + 1) * (own + its)


@pytest.mark.parametrize("kind", [Generate, Decode, Prefill])
def test_a_draft_model_needs_drafts(kind: Any) -> None:
    with pytest.raises(RidgewayError, match=r"draft_model is 'int8', but drafts is 0.*give drafts"):
        kind("m", draft_model="int8")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"quantize": "int8", "draft_model": "int8"}, "leave one of them out"),
        ({"decoder": "transformers", "draft_model": "m"}, "are for the engine"),
    ],
)
def test_a_draft_model_that_cannot_be_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(RidgewayError, match=why):
        Generate("m", drafts=2, **given)


def test_another_vocabulary_is_refused_and_its_first_token_named(folder: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    words = tmp_path / "tokenizer.json"
    text = words.read_text("utf-8")
    words.write_text(text.replace('"ĊĊ":', '"ĊĊĊ":'), "utf-8")
    stage = Generate(folder, drafts=2, draft_model=str(tmp_path))
    with pytest.raises(ModelError, match=r"another vocabulary.*token 259 is 'ĊĊĊ', not 'ĊĊ'"):
        stage.open(CPU)


def test_a_vocabulary_of_another_size_is_refused(folder: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, vocab_size=300)
    with pytest.raises(ModelError, match=r"vocab_size 300, model .* 260"):
        Generate(folder, drafts=2, draft_model=str(tmp_path)).open(CPU)


def test_a_draft_model_that_the_engine_does_not_run_is_refused(folder: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(ModelError, match=r"draft_model .*dynamic.*give another"):
        Generate(folder, drafts=2, draft_model=str(tmp_path)).open(CPU)


def test_a_name_that_leads_nowhere_is_an_error(folder: str) -> None:
    with pytest.raises(ModelError, match="int4"):
        Generate(folder, drafts=2, draft_model="int4").open(CPU)
