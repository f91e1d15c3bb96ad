"""Dry runs: which tensors a call makes, and what they take at their peak."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pipeline.allocator import Event, Peak
from pipeline.dryrun import peak_of, trace

torch = pytest.importorskip("torch")
MIB = 1 << 20


def tensor(*shape: int, device: str = "meta") -> Any:
    return torch.zeros(*shape, device=device)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_what_is_made_begins_and_what_is_dropped_ends(device: str) -> None:
    x = tensor(256, device=device)
    assert trace(lambda: (x + 1) * 2) == (Event(0, 1024), Event(1, 1024), Event(0))


def test_views_and_changes_in_place_are_no_new_tensors() -> None:
    x = tensor(4, 8)
    assert trace(lambda: x.T.reshape(8, 4)[1:].add_(1)) == ()


def test_a_view_keeps_what_it_looks_at() -> None:
    x = tensor(256)

    def call() -> Any:
        part = (x + 1)[:2]
        return part + (x * 2).sum()

    events = trace(call)
    assert events.index(Event(0)) > events.index(Event(3, 8))


def test_nothing_is_left_of_tensors_without_elements() -> None:
    assert trace(lambda: tensor(0) + 1) == ()


def test_attention_is_fused_on_the_meta_device() -> None:
    q = tensor(1, 4, 1024, 8)
    attention = torch.nn.functional.scaled_dot_product_attention
    assert trace(lambda: attention(q, q, q)) == (Event(0, 4 * 1024 * 8 * 4),)


def test_attention_on_real_tensors_is_computed() -> None:
    q = torch.ones(1, 1, 3, 8)
    made = []
    trace(lambda: made.append(torch.nn.functional.scaled_dot_product_attention(q, q, q)))
    assert torch.equal(made[0], q)


def test_a_number_that_is_asked_for_is_none_that_stops_the_run() -> None:
    x = tensor(4)
    assert len(trace(lambda: x + 1 if bool(x.sum()) else (x + 1) + 1)) > 2


def test_the_peak_is_replayed_through_the_allocator() -> None:
    x = tensor(MIB)  # 4 MiB
    assert peak_of(lambda: ((x + 1) + 1) + 1) == Peak(8 * MIB, 20 * MIB)


def llama(device: str = "meta") -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=5000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device(device):
        return LlamaForCausalLM(config).eval()


def prefill(model: Any, rows: int, tokens: int) -> Any:
    device = model.device
    ids = torch.zeros(rows, tokens, dtype=torch.long, device=device)
    mask = torch.ones(rows, tokens, dtype=torch.long, device=device)
    return lambda: model(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)


def test_more_rows_take_more_memory() -> None:
    model = llama()
    found = [peak_of(prefill(model, rows, 128)) for rows in (1, 2, 4, 8, 16)]
    assert all(a.live < b.live and a.reserved <= b.reserved for a, b in pairwise(found))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_peak_is_what_the_device_reserves() -> None:
    model = llama("cuda")
    call = prefill(model, 16, 1024)
    with torch.no_grad():
        call()  # libraries take their workspaces with the first call
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        call()
    taken = torch.cuda.max_memory_reserved() - before
    assert peak_of(prefill(llama(), 16, 1024)).reserved == pytest.approx(taken, rel=0.25)
