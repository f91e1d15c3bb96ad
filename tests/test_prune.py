"""Pruning: what the question looks at stays, the rest goes, and `keep` 1 changes nothing at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.stage import check_outputs, check_portable, state_key
from pipeline.values import Passage, Passages, Queries
from stages.llm import weights
from stages.llm.family import network
from stages.llm.look import fewest, masses
from stages.prompt import WritePrompt
from stages.prune import Prune
from tests import llm_models
from tests.tiny_llm import save_tiny

CPU = Device("cpu:0", 1)
WINDOW = 512
TEXTS = (
    "The hut stands at the lake.",
    "Snow is white, and deep.",
    "Nobody knows.",
    "Ann leads it, they say.",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield from llm_models.one_thread()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    changes = {"max_position_embeddings": WINDOW, "num_hidden_layers": 3}
    return str(save_tiny(tmp_path_factory.mktemp("tiny"), **changes))


def passages(texts: Sequence[str]) -> tuple[Passage, ...]:
    return tuple(Passage((f"{i}.txt", 1, 0), t, "", 0, len(t), 1.0) for i, t in enumerate(texts))


def prune(stage: Prune, *rows: tuple[str, Sequence[str]]) -> list[list[str]]:
    """The texts that stay of each row."""
    ids = tuple((f"q{i}",) for i in range(len(rows)))
    queries = Queries(ids, tuple(q for q, _ in rows), ("",) * len(rows))
    made = stage.run(stage.open(CPU), queries, Passages(ids, tuple(passages(t) for _, t in rows)))
    check_outputs(stage, ids, made)
    return [[p.text for p in found] for found in made.passages]


def seen_by_transformers(model: Any, tokens: Sequence[int], last: int, layers: int) -> Any:
    """[tokens]: the reference, from the weights that the library's plain attention gives."""
    import torch

    model.set_attn_implementation("eager")
    with torch.inference_mode():
        found = model(torch.tensor([list(tokens)]), output_attentions=True).attentions[:layers]
    return sum(a[0, :, -last:].sum((0, 1)) for a in found).double().numpy()


# the look


@pytest.mark.parametrize(
    "name", ["llama", "llama, biases", "qwen3", "mistral", "gemma2", "gemma3", "smollm3"]
)
@pytest.mark.parametrize("last", [1, 5])
def test_masses_are_those_of_plain_attention(name: str, last: int) -> None:
    tokens = llm_models.random_tokens(40).tolist()
    spans = [(2, 10), (10, 11), (11, 33)]
    model = llm_models.tiny(name)
    seen = seen_by_transformers(model, tokens, last, 99)
    found = masses(network(model), tokens, spans, last)
    assert found == pytest.approx([seen[a:b].sum() for a, b in spans], rel=1e-4)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0.01, 1.0))
def test_the_fewest_that_have_the_share_stay(mass: list[float], keep: float) -> None:
    found, total = fewest(np.array(mass), keep), sum(mass)
    assert found == sorted(set(found))
    assert found, "one stays"
    if total > 1e-9:
        assert sum(mass[i] for i in found) >= keep * total * (1 - 1e-12)
        smaller = itertools.combinations(mass, len(found) - 1)
        assert all(sum(some) <= keep * total * (1 + 1e-12) for some in smaller)


@pytest.mark.parametrize("mass", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_where_nothing_is_known_all_stay(mass: list[float]) -> None:
    assert fewest(np.array(mass), 0.1) == [0, 1]


def test_of_equal_passages_the_first_stay() -> None:
    assert fewest(np.array([1.0, 1.0, 1.0, 1.0]), 0.5) == [0, 1]


# the stage


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_what_stays_has_the_share_of_the_questions_attention(model: str, layers: int) -> None:
    stage, question = Prune(model, 0.7, layers), "Who leads the observatory?"
    tokenizer = weights.tokenizer(model)
    pieces = [f"[{n}] {t}\n\n" for n, t in enumerate(TEXTS, start=1)]
    parts = [tokenizer(t).input_ids for t in ("Passages:\n\n", *pieces, question)]
    seen = seen_by_transformers(
        weights.model(model, CPU), list(itertools.chain(*parts)), len(parts[-1]), layers
    )
    ends = list(itertools.accumulate(map(len, parts)))
    mass = {t: seen[a:b].sum() for t, a, b in zip(TEXTS, ends, ends[1:], strict=False)}
    (stay,) = prune(stage, (question, TEXTS))
    assert 0 < len(stay) < len(TEXTS)
    assert sum(mass[t] for t in stay) >= 0.7 * sum(mass.values())
    least = min(stay, key=mass.__getitem__)
    assert sum(mass[t] for t in stay if t != least) < 0.7 * sum(mass.values()), "no more than are needed"
    assert max(mass[t] for t in TEXTS if t not in stay) <= mass[least]


def test_those_that_stay_keep_their_order_and_are_numbered_anew(model: str) -> None:
    ids, writer = (("q",),), WritePrompt(model, reserve=8)
    queries, whole = Queries(ids, ("Who leads it?",), ("",)), Passages(ids, (passages(TEXTS),))
    stage = Prune(model, 0.6)
    kept = stage.run(stage.open(CPU), queries, whole)
    assert list(kept.passages[0]) == [p for p in whole.passages[0] if p in kept.passages[0]]
    chat = writer.open(CPU)
    before, after = (writer.run(chat, queries, p) for p in (whole, kept))
    assert after.lengths[0] < before.lengths[0], "fewer tokens to read"
    assert after.passages[0] == kept.passages[0]
    said = weights.tokenizer(model).decode(after.tokens[0])
    assert all(f"[{n}] {p.text}" in said for n, p in enumerate(kept.passages[0], start=1))


def test_more_is_kept_for_a_larger_share(model: str) -> None:
    found = [set(prune(Prune(model, keep), ("Who leads it?", TEXTS))[0]) for keep in (1e-6, 0.4, 0.7, 0.999)]
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert len(found[0]) == 1, "never none"
    assert len(found[-1]) == 4


def test_off_is_off_and_loads_nothing(model: str) -> None:
    stage = Prune(str(Path(model) / "nowhere"))
    whole = Passages((("q",),), (passages(TEXTS),))
    assert stage.open(CPU) is None
    assert stage.run(None, Queries((("q",),), ("Who?",), ("",)), whole) is whole
    assert stage.identity() == {}
    assert not stage.accelerated
    assert state_key(stage) != state_key(Prune(stage.model, 0.9))


def test_a_row_is_pruned_alike_whoever_is_beside_it(model: str) -> None:
    stage, rows = (
        Prune(model, 0.7),
        [("Who leads it?", TEXTS), ("How deep?", TEXTS[1:]), ("Where?", TEXTS[:3])],
    )
    assert prune(stage, *rows) == [prune(stage, row)[0] for row in rows]


@pytest.mark.parametrize(
    ("question", "texts"), [("Who?", ()), ("Who?", ("One alone.",)), (" \n", TEXTS), ("w" * 600, TEXTS)]
)
def test_rows_with_nothing_to_choose_stay_as_they_are(
    model: str, question: str, texts: Sequence[str]
) -> None:
    assert prune(Prune(model, 1e-6), (question, texts)) == [list(texts)]


def test_passages_that_do_not_fit_the_window_are_not_looked_at_and_stay(model: str) -> None:
    texts = [*TEXTS[:2], "long " * 200, "behind"]
    (stay,) = prune(Prune(model, 1e-6), ("Who?", texts))
    assert stay[1:] == texts[2:]
    assert stay[0] in texts[:2]


def test_a_prompt_as_long_as_the_window_is_looked_at(model: str) -> None:
    room = WINDOW - len(weights.tokenizer(model)("Passages:\n\n[1] \n\n[2] \n\nWho?").input_ids)
    fits, more = ["a" * 200, "b" * (room - 200)], ["a" * 200, "b" * (room - 199)]
    assert len(prune(Prune(model, 1e-6), ("Who?", fits))[0]) == 1
    assert len(prune(Prune(model, 1e-6), ("Who?", more))[0]) == 2


def test_special_tokens_in_passages_stay_text(model: str) -> None:
    rows = ("Who?", ["<|im_end|> ends", "or not"])
    eye = Prune(model, 0.5).open(CPU)
    assert eye is not None
    assert len(eye.tokens("<|im_end|>")) > 1
    assert len(prune(Prune(model, 1e-6), rows)[0]) == 1


def test_only_the_first_layers_are_loaded(model: str) -> None:
    for layers, loaded in ((1, 1), (2, 2), (9, 3)):
        eye = Prune(model, 0.5, layers).open(CPU)
        assert eye is not None
        assert len(eye.network.layers) == loaded


def test_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    save_tiny(tmp_path)
    made = GPT2LMHeadModel(GPT2Config(vocab_size=260, n_embd=32, n_layer=2, n_head=2, n_positions=64))
    made.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="'gpt2' are run by transformers"):
        Prune(str(tmp_path), 0.5).open(CPU)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"keep": 0.0}, "keep is 0.0"),
        ({"keep": 1.1}, "keep is 1.1"),
        ({"layers": 0}, "layers is 0"),
        ({"last": 0}, "last is 0"),
        ({"dtype": "float31"}, "did you mean 'float32'"),
    ],
)
def test_what_cannot_be_is_told_at_once(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(RidgewayError, match=what):
        Prune("m", **wrong)


# its cost


def cost(stage: Prune, rows: float = 8) -> Cost:
    return stage.cost(Work(rows, {"queries": Flow(rows), "passages": Flow(rows)}))


def test_the_look_costs_its_share_of_the_layers(model: str) -> None:
    one, two, all_ = (cost(Prune(model, 0.9, n)) for n in (1, 2, 3))
    assert two.flops == pytest.approx(2 * one.flops)
    assert all_ == cost(Prune(model, 0.9, 99)), "there are no more"
    assert one.resident < two.resident < all_.resident
    assert cost(Prune(model, 0.9, last=8)).flops < cost(Prune(model, 0.9)).flops


def test_off_costs_next_to_nothing(model: str) -> None:
    off = cost(Prune(model))
    assert (off.flops, off.traffic, off.resident, off.opening) == (0, 0, 0, 0)
    assert off.output == cost(Prune(model, 0.9)).output


def test_it_travels(model: str) -> None:
    check_portable(Prune(model, 0.9), "pruned")
