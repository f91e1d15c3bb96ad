"""Formulas against what they claim: FLOP against torch's counter, bytes against tensors and rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from pipeline.dryrun import peak_of
from pipeline.roofline import Flow, Work
from pipeline.rows import Rows
from pipeline.values import Chunks, Embeddings, Hits, PageTexts, Passage, Passages, Prompts, Queries
from stages import costs
from stages.llm.cost import (
    CHUNK,
    cache_bytes,
    decode_flops,
    generating,
    prefill_flops,
    resident_bytes,
    scratch_bytes,
)
from stages.shapes import Shape

torch = pytest.importorskip("torch")

# models on the meta device


@cache
def llama(dtype: str = "float32") -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=5000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


@cache
def bert() -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=5000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("meta"):
        return BertModel(config).eval()


def known(model: Any) -> Shape:
    """The shape as the model itself has it."""
    c = model.config
    keys = getattr(c, "num_key_value_heads", c.num_attention_heads) * c.hidden_size // c.num_attention_heads
    own = [
        (n, p) for n, p in model.named_parameters() if p.dim() == 2 and any(x.isdigit() for x in n.split("."))
    ]
    linear, total = sum(p.numel() for _, p in own), sum(p.numel() for p in model.parameters())
    return Shape(
        c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.hidden_size, keys, c.vocab_size, 512,
        linear, total, 0,
    )  # fmt: skip


def ids(rows: int, tokens: int) -> Any:
    return torch.zeros(rows, tokens, dtype=torch.long, device="meta")


def counted(call: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(("rows", "tokens"), [(1, 64), (8, 256), (2, 512)])
def test_flop_of_prefill(rows: int, tokens: int) -> None:
    shape = known(llama())
    found = counted(lambda: llama()(input_ids=ids(rows, tokens), use_cache=True, logits_to_keep=1))
    # On the meta device the counter sees all pairs of tokens, not the half that a causal model needs.
    unseen = rows * 2 * shape.layers * tokens**2 * shape.heads
    assert prefill_flops(shape, rows, tokens) + unseen == pytest.approx(found, rel=0.02)


def cached(model: Any, rows: int, tokens: int) -> Any:
    """The KV cache of `rows` prompts; it is passed by place, since its name changes with the library."""
    from transformers import DynamicCache

    made = DynamicCache()
    with torch.no_grad():
        model(ids(rows, tokens), None, None, made, use_cache=True, logits_to_keep=1)
    return made


@pytest.mark.parametrize(("rows", "context"), [(1, 64), (16, 300)])
def test_flop_of_a_decode_step(rows: int, context: int) -> None:
    before = cached(llama(), rows, context - 1)
    found = counted(lambda: llama()(ids(rows, 1), None, None, before, use_cache=True))
    assert decode_flops(known(llama()), rows, context) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 64), (8, 256), (2, 512)])
def test_flop_of_an_encoder(rows: int, tokens: int) -> None:
    found = counted(lambda: bert()(input_ids=ids(rows, tokens)))
    assert costs.encoding(known(bert()), rows, tokens, "float32").flops == pytest.approx(found, rel=0.02)


def test_generation_is_a_prefill_and_a_step_for_each_further_token() -> None:
    shape = known(llama())
    one, three = (generating(shape, 2, 100, new, "float32") for new in (1, 3))
    steps = decode_flops(shape, 2, 101) + decode_flops(shape, 2, 102)
    assert one.flops == prefill_flops(shape, 2, 100)
    assert three.flops - one.flops == pytest.approx(steps, rel=1e-6)


# bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_cache_weigh_what_tensors_do(dtype: str) -> None:
    model, shape = llama(dtype), known(llama(dtype))
    layers = cached(model, 3, 50).layers
    assert 3 * 50 * cache_bytes(shape, dtype) == sum(x.keys.nbytes + x.values.nbytes for x in layers)
    weights = generating(shape, 3, 50, 8, dtype).resident
    assert weights == sum(p.nbytes for p in model.parameters())


def test_a_step_reads_the_weights_once_and_the_cache_of_each_row() -> None:
    shape = known(llama())
    read = [generating(shape, 4, 100, new, "float32").traffic for new in (1, 2)]
    weights = 4 * (shape.linear + shape.head)
    # The cache grows by half a token on average where one more is asked for.
    assert read[1] - read[0] == pytest.approx(weights + 4 * 101 * cache_bytes(shape, "float32"), rel=1e-3)


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine of a model with heads of 64 elements, its products as torch has them, to be watched."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from stages.llm import family
    from stages.llm.engine import Engine
    from stages.llm.limits import Limits
    from stages.llm.linear import Plain

    config = LlamaConfig(
        vocab_size=4000, hidden_size=256, intermediate_size=768, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
    )  # fmt: skip
    monkeypatch.setattr(family, "forms", lambda *_: Plain)
    model = LlamaForCausalLM(config).to(getattr(torch, request.param)).eval()
    shape = known(model)
    return Engine(family.network(model), frozenset(), lambda _: "", Limits(100_000)), shape


@pytest.mark.parametrize("engine", ["float32", "bfloat16"], indirect=True)
@pytest.mark.parametrize(("rows", "tokens", "new"), [(1, 200, 4), (4, 500, 4), (32, 100, 4), (4, 1500, 2)])
def test_scratch_of_generation_is_that_of_the_engine(engine: Any, rows: int, tokens: int, new: int) -> None:
    """Beside the slots, which are taken before: a dry run sees what a call makes."""
    from stages.llm.decoder import Ask
    from stages.llm.rooms import capacity

    decoder, shape = engine
    dtype = {4: "float32", 2: "bfloat16"}[decoder._net.sizes.element]
    random = np.random.default_rng(0)
    asks = [Ask(random.integers(0, 4000, tokens).astype(np.int32), new) for _ in range(rows)]
    found = peak_of(lambda: decoder.answer(asks))
    slots = rows * capacity(tokens + new) * cache_bytes(shape, dtype)
    said = scratch_bytes(shape, rows, tokens, new, dtype) / costs.RESERVED - slots
    assert 0.95 * found.live < said < 1.8 * found.live


def test_a_step_reads_as_many_tokens_as_the_formula_says() -> None:
    from stages.llm.limits import Limits

    assert Limits(1).chunk == CHUNK


def test_a_tied_table_is_there_twice() -> None:
    shape = Shape(2, 8, 16, 8, 8, 100, 64, linear=1000, total=1820, stored=0)
    assert resident_bytes(shape, "float32") == 4 * (1000 + 2 * 800)
    assert resident_bytes(shape, "bfloat16") == 2 * (1000 + 2 * 800)


@pytest.mark.parametrize(("rows", "tokens"), [(16, 512), (64, 512), (100, 100)])
def test_scratch_of_an_encoder_is_that_of_a_dry_run(rows: int, tokens: int) -> None:
    mask = torch.ones(rows, tokens, dtype=torch.long, device="meta")
    found = peak_of(lambda: bert()(input_ids=ids(rows, tokens), attention_mask=mask))
    said = costs.encoding(known(bert()), rows, tokens, "float32").scratch
    assert said / costs.RESERVED == pytest.approx(found.live, rel=0.05)
    assert said == pytest.approx(found.reserved, rel=0.3)


def test_an_encoder_reads_its_weights_once_a_batch_of_tokens() -> None:
    shape = known(bert())
    read = [costs.encoding(shape, texts, 256, "float32").traffic for texts in (4, 8, 9)]
    each = (read[1] - read[0]) / 4  # both are one batch of 2,048 tokens
    assert read[2] - read[1] == pytest.approx(each + 4 * shape.linear)


# rows

ID, NO_BOXES = ("a-report.pdf", 12, 3), np.zeros((0, 4), np.float32)
ASKED = (("q7",),) * 3


def each(rows: Rows) -> float:
    return rows.nbytes / len(rows)


def passages(k: int) -> tuple[Passage, ...]:
    return tuple(Passage(ID, "text", "", 0, 4, 0.5) for _ in range(k))


def test_bytes_of_rows_are_those_of_real_rows() -> None:
    text, boxes = "x" * 600, np.zeros((8, 4), np.float32)
    lines = np.zeros((12, 2), np.int32), np.zeros((12, 4), np.float32)
    chunks = Chunks((ID,) * 2, (text,) * 2, (text,) * 2, ("Heading",) * 2, (0,) * 2, (9,) * 2, (boxes,) * 2)
    page = PageTexts((ID[:2],), (text * 2,), (None,), lines[:1], lines[1:], ((),), ("pdf",))
    hits = Hits(ASKED, ((ID,) * 12,) * 3, (np.zeros(12, np.float32),) * 3)
    prompts = Prompts(ASKED, (np.zeros(700, np.int32),) * 3, (passages(4),) * 3, (0,) * 3)
    asked = Queries(ASKED, ("What is it?" * 5,) * 3, ("",) * 3)
    near = {
        each(chunks): costs.chunk_bytes(600),
        each(page): costs.page_bytes(1200),
        each(hits): costs.hit_bytes(12),
        each(prompts): costs.prompt_bytes(700, 4),
        each(Passages(ASKED, (passages(4),) * 3)): costs.passage_bytes(4),
        each(asked): costs.question_bytes(55),
        each(Embeddings(ASKED, np.zeros((3, 384), np.float32))): costs.vector_bytes(384, chunks=False),
        each(Embeddings((ID,), np.zeros((1, 384), np.float32))): costs.vector_bytes(384, chunks=True),
    }
    assert {real: pytest.approx(real, rel=0.2) for real in near} == near


@pytest.mark.parametrize("width", [32, 384, 768, 1024, 4096])
def test_the_width_of_vectors_follows_from_their_bytes(width: int) -> None:
    for chunks in (True, False):
        assert costs.width_of(Flow(9, 0.0, costs.vector_bytes(width, chunks))) == width


@pytest.mark.parametrize("k", [0, 1, 4, 12, 100])
def test_how_many_there_are_follows_from_the_bytes(k: int) -> None:
    assert costs.hits_in(Flow(1, 0.0, costs.hit_bytes(k))) == pytest.approx(k)
    assert costs.passages_in(Flow(1, 0.0, costs.passage_bytes(k))) == pytest.approx(k)
    assert costs.passages_shown(Flow(1, 700, costs.prompt_bytes(700, k))) == pytest.approx(k)
    assert costs.passages_held(Flow(1, 0.0, costs.step_bytes(k, 60))) == pytest.approx(k)
    assert costs.question_characters(Flow(1, 0.0, costs.question_bytes(k + 1))) == pytest.approx(k + 1)


def test_nothing_known_is_the_documented_expectation() -> None:
    flow = Flow(1)
    found = (costs.hits_in(flow), costs.passages_in(flow), costs.width_of(flow))
    assert found == (costs.KEPT, costs.KEPT, costs.WIDTH)


def test_pages_without_pixels_leave_nothing_to_recognize() -> None:
    assert costs.images(Flow(9, 0.0, costs.page_bytes(2500))) == 0


@pytest.mark.parametrize(("scans", "texts"), [(0, 3), (1, 9), (2, 2), (1, 0)])
def test_the_share_of_images_follows_from_the_pixels_of_pages(scans: int, texts: int) -> None:
    n, none = scans + texts, np.zeros((0, 2), np.int32)
    a4 = np.broadcast_to(np.uint8(0), (2338, 1654, 3))  # 200 dpi
    pages = PageTexts(
        tuple(("a.pdf", i) for i in range(n)), ("",) * scans + ("text",) * texts,
        (a4,) * scans + (None,) * texts, (none,) * n, (NO_BOXES,) * n, ((),) * n, ("pdf",) * n,
    )  # fmt: skip
    assert costs.images(Flow(n, sum(pages.lengths) / n)) == pytest.approx(scans / n, rel=1e-3)


def test_auto_is_what_the_device_has_for_it() -> None:
    work = Work(1, {}, "bfloat16")
    assert costs.number_type("auto", work) == "bfloat16"
    assert costs.number_type("float32", work) == "float32"
