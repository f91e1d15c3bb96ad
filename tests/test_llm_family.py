"""Networks made of models of the transformers library say what the library says."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ModelError
from stages.llm import linear
from stages.llm.attention import Past, Slab
from stages.llm.family import FAMILIES, network, refusal
from stages.llm.network import Network
from stages.llm.passes import Decoding, Pass, Prompt
from tests import llm_models
from tests.llm_models import VOCABULARY, one_thread, random_tokens, tiny

TOKENS = 50
NAMES = sorted(llm_models.FAMILIES)
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


class Case:
    """A model's logits for a random text, and the network made of it."""

    def __init__(self, model: Any, ids: Any) -> None:
        import torch

        self.ids = ids
        with torch.inference_mode():
            self.right = model(ids[None]).logits[0].float()
            self.net = network(model)

    def pass_(self, start: int, stop: int, *readers: Any) -> Any:
        import torch

        with torch.inference_mode():
            hidden = self.net.hidden(self.ids[start:stop], torch.arange(start, stop), Pass(tuple(readers)))
            return self.net.logits(hidden)

    def prompt(self, slab: Slab, start: int, stop: int, behind: int = 0, past: tuple[Past, ...] = ()) -> Any:
        reader = Prompt(self.net, slab, 1, start - behind, stop - start, past)
        return self.pass_(start, stop, reader)

    def wrong(self, start: int, found: Any) -> float:
        """The largest error, as a share of the largest logit."""
        right = self.right[start : start + len(found)]
        return float((found - right).abs().max() / self.right.abs().max())


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    import torch

    return Case(tiny(request.param), torch.from_numpy(random_tokens(TOKENS)).long())


def test_a_prompt_read_at_once_or_in_pieces_gives_the_librarys_logits(case: Case) -> None:
    slab = Slab(case.net, 3, 64)
    assert case.wrong(0, case.prompt(slab, 0, TOKENS)) < 1e-5
    for start, stop in ((0, 20), (20, 21), (21, TOKENS)):
        assert case.wrong(start, case.prompt(slab, start, stop)) < 1e-5


def test_tokens_one_by_one_and_drafts_give_the_librarys_logits(case: Case) -> None:
    slab = Slab(case.net, 3, 64)
    case.prompt(slab, 0, 30)
    for start, count in ((30, 1), (31, 1), (32, 5), (37, 1), (38, 3)):
        reader = Decoding(case.net, slab, [1], [start], [count])
        assert case.wrong(start, case.pass_(start, start + count, reader)) < 1e-5


def test_refused_drafts_leave_no_trace(case: Case) -> None:
    slab = Slab(case.net, 3, 64)
    case.prompt(slab, 0, 30)
    truth, case.ids = case.ids, case.ids.flip(0)
    try:
        case.pass_(30, 36, Decoding(case.net, slab, [1], [30], [6]))
    finally:
        case.ids = truth
    for at in range(30, 36):
        assert case.wrong(at, case.pass_(at, at + 1, Decoding(case.net, slab, [1], [at], [1]))) < 1e-5


def test_prefixes_are_read_where_they_are(case: Case) -> None:
    if case.net.has_windows:
        pytest.skip("models with windows have prefixes in their slots")
    slab, own = Slab(case.net, 3, 64), Slab(case.net, 3, 64)
    case.prompt(slab, 0, 20)
    past = slab.extent(1, 0, 16)
    pieces = (past.cut(0, 10), past.cut(10, 16))
    assert case.wrong(16, case.prompt(own, 16, 25, 16, pieces)) < 1e-5
    assert case.wrong(25, case.prompt(own, 25, 40, 16, pieces)) < 1e-5
    for start, count in ((40, 1), (41, 4), (45, 1)):
        reader = Decoding(case.net, own, [1], [start - 16], [count], [([0], pieces)])
        assert case.wrong(start, case.pass_(start, start + count, reader)) < 1e-5


def test_prompts_and_answers_of_all_lengths_share_a_pass(case: Case) -> None:
    """Slots 0 and 3 decode, slot 1 is empty, slot 2 reads its prompt meanwhile, a longer slab has another."""
    import torch

    net = case.net
    slab, longer = Slab(net, 4, 64), Slab(net, 2, 128)
    lengths = {(slab, 0): 12, (slab, 3): 33, (slab, 2): 9, (longer, 0): 40}
    for (where, slot), n in lengths.items():
        case.pass_(0, n, Prompt(net, where, slot, 0, n))
    rows = [*range(12, 14), 33, 40, *range(9, 30)]
    readers = (
        Decoding(net, slab, [0, 3], [12, 33], [2, 1]),
        Decoding(net, longer, [0], [40], [1]),
        Prompt(net, slab, 2, 9, 21),
    )
    with torch.inference_mode():
        at = torch.tensor(rows)
        found = net.logits(net.hidden(case.ids[at], at, Pass(readers)))
    assert float((found - case.right[at]).abs().max() / case.right.abs().max()) < 1e-5


def test_groups_share_prefixes_of_different_lengths() -> None:
    import torch

    case = Case(tiny("llama"), torch.from_numpy(random_tokens(TOKENS)).long())
    net, slab, own = case.net, Slab(case.net, 3, 64), Slab(case.net, 4, 64)
    case.prompt(slab, 0, 32)
    long, short = slab.extent(1, 0, 32), slab.extent(1, 0, 16)
    starts = {0: (32, 40), 1: (0, 10), 2: (16, 20), 3: (32, 35)}
    for slot, (behind, n) in starts.items():
        past = {0: (), 16: (short,), 32: (long,)}[behind]
        case.pass_(behind, n, Prompt(net, own, slot, 0, n - behind, past))
    groups = [([0, 3], (long.cut(0, 5), long.cut(5, 32))), ([2], (short,))]
    counts = [1, 1, 3, 2]
    own_starts = [n - behind for behind, n in starts.values()]
    at = torch.tensor([40, 10, 20, 21, 22, 35, 36])
    with torch.inference_mode():
        reader = Decoding(net, own, list(starts), own_starts, counts, groups)
        found = net.logits(net.hidden(case.ids[at], at, Pass((reader,))))
    assert float((found - case.right[at]).abs().max() / case.right.abs().max()) < 1e-5


def test_capped_scores_share_prefixes_too() -> None:
    """Gemma 2 without windows is the only model that caps scores and may read prefixes where they are."""
    import torch

    model = tiny("gemma2", layer_types=["full_attention"] * 3)
    case = Case(model, torch.from_numpy(random_tokens(TOKENS)).long())
    assert case.net.softcap
    assert not case.net.has_windows
    slab, own = Slab(case.net, 3, 64), Slab(case.net, 3, 64)
    case.prompt(slab, 0, 20)
    past = (slab.extent(1, 0, 16),)
    case.pass_(0, 8, Prompt(case.net, own, 0, 0, 8))
    assert case.wrong(16, case.prompt(own, 16, 25, 16, past)) < 1e-5
    at = torch.tensor([8, 25])
    with torch.inference_mode():
        reader = Decoding(case.net, own, [0, 1], [8, 9], [1, 1], [([1], past)])
        found = case.net.logits(case.net.hidden(case.ids[at], at, Pass((reader,))))
    assert float((found - case.right[at]).abs().max() / case.right.abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "gemma3", "smollm3"])
def test_bfloat16_agrees_loosely(name: str) -> None:
    import torch

    ids = torch.from_numpy(random_tokens(TOKENS)).long()
    model = tiny(name)
    with torch.inference_mode():
        exact = model(ids[None]).logits[0]
        model = model.to(torch.bfloat16)
        theirs = model(ids[None]).logits[0].float()
    case = Case(model, ids)
    slab = Slab(case.net, 3, 64)
    found = [case.prompt(slab, 0, 40)]
    found += [case.pass_(n, n + 1, Decoding(case.net, slab, [1], [n], [1])) for n in range(40, TOKENS)]
    logits = torch.cat(found)
    assert logits.dtype == torch.float32
    # Both round; ours may be off by about as much as the library's own is.
    ours, other = ((x - exact).pow(2).mean().sqrt() for x in (logits, theirs))
    assert ours < 1.5 * other


def test_weights_are_held_once() -> None:
    import torch

    model = tiny("qwen2", tie_word_embeddings=True)
    weights = sum(m.weight.numel() for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear))
    embedding = model.model.embed_tokens.weight
    net = network(model)
    modules = [m for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    assert len(modules) == 7 * 3
    assert all(m.weight is None for m in modules)
    assert net.embedding.data_ptr() == embedding.data_ptr()
    assert net.nbytes == 4 * (weights + 2 * embedding.numel())


def test_sizes_are_those_of_the_configuration() -> None:
    sizes = network(tiny("qwen3")).sizes
    assert (sizes.layers, sizes.heads, sizes.kv_heads, sizes.head) == (3, 4, 2, 16)
    assert (sizes.width, sizes.vocabulary, sizes.window, sizes.element) == (32, VOCABULARY, 256, 4)
    assert sizes.token_bytes == 2 * 3 * 2 * 16 * 4


def test_families_that_are_tested_are_those_that_are_known() -> None:
    assert {tiny(name).config.model_type for name in NAMES} == FAMILIES


def _whole(model: Any) -> bool:
    return all(p is not None for m in model.modules() for p in m._parameters.values() if m is not None)


def test_other_families_are_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    assert refusal(model) == "models of type 'gpt2' are run by transformers"
    with pytest.raises(ModelError, match="'gpt2'"):
        network(model)


@pytest.mark.parametrize(
    ("rope", "named"), [(DYNAMIC, "dynamic"), (LONG, "longrope"), (HALF, "part of a head")]
)
def test_what_cannot_be_turned_once_for_all_is_refused_and_stays_whole(
    rope: dict[str, Any], named: str
) -> None:
    """The library runs it then, so nothing may be taken from it."""
    import torch

    model = tiny("llama", rope_parameters=rope)
    before = {name for name, _ in model.named_parameters()}
    assert named in refusal(model)
    with pytest.raises(ModelError, match=named):
        network(model)
    assert {name for name, _ in model.named_parameters()} == before
    with torch.inference_mode():
        assert model(torch.tensor([[3, 4, 5]])).logits.isfinite().all()


def test_models_that_look_both_ways_are_refused() -> None:
    model = tiny("gemma3", use_bidirectional_attention=True)
    assert refusal(model) == "bidirectional attention is left to transformers"


def test_known_families_are_not_refused() -> None:
    assert [name for name in NAMES if refusal(tiny(name))] == []


def test_eight_bit_products_are_for_layers_only() -> None:
    import torch

    if "onednn" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no 8-bit products")
    ids = torch.from_numpy(random_tokens(TOKENS)).long()
    model = tiny("llama", hidden_size=64, intermediate_size=128)
    with torch.inference_mode():
        right = model(ids[None]).logits[0]
    net: Network = network(model, linear.INT8)
    assert isinstance(net.layers[0].qkv, linear.Int8)
    assert not isinstance(net.head, linear.Int8)
    slab = Slab(net, 1, 64)
    with torch.inference_mode():
        found = net.logits(net.hidden(ids, torch.arange(TOKENS), Pass((Prompt(net, slab, 0, 0, TOKENS),))))
    error = float((found - right).pow(2).mean().sqrt() / right.std())
    assert 1e-4 < error < 0.2
