"""Prefill and decode as two stages: together they answer as `Generate` does, however caches travel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline import models
from pipeline.cluster import local_client
from pipeline.errors import BadRowsError, GraphError, RidgewayError
from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.roofline import Flow, Work
from pipeline.stage import check_portable, ports, state_key
from pipeline.values import Completions, KVCache, Prompts
from stages.decode import Decode
from stages.generate import Generate
from stages.llm import weights
from stages.llm.opened import Opened
from stages.prefill import Prefill
from stages.prompt import WritePrompt
from tests.tiny_llm import save_tiny

CPU = Device("cpu:0", 2)
LANES = Machine((Device("cpu:0", 1, cores=(0,)), Device("cpu:1", 1, cores=(0,))))
NEW = 12
LENGTHS = (3, 40, 7, 1, 25, 12, 60, 33)
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Keys and values of two layers, two heads of 8 elements each, in float32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def state(folder: str) -> Opened:
    return whole(folder).open(CPU)


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Stages set torch's thread count; tests give it back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def whole(folder: str, **more: Any) -> Generate:
    return Generate(folder, NEW, "float32", **more)


def reading(folder: str, **more: Any) -> Prefill:
    return Prefill(folder, "float32", **more)


def speaking(folder: str, **more: Any) -> Decode:
    return Decode(folder, NEW, "float32", **more)


def rows_of(tokens: tuple[NDArray[np.int32], ...]) -> Prompts:
    n = len(tokens)
    return Prompts(tuple((f"q{i}",) for i in range(n)), tokens, ((),) * n, (0,) * n)


def prompts(lengths: tuple[int, ...] = LENGTHS) -> Prompts:
    random = np.random.default_rng(1)
    return rows_of(tuple(random.integers(3, 259, n).astype(np.int32) for n in lengths))


def said(out: Completions) -> list[tuple[Any, ...]]:
    return list(zip(out.ids, out.texts, out.prompt_tokens, out.new_tokens, out.stops, strict=True))


def split_graph(folder: str, **more: Any) -> Graph:
    nodes = (
        node("read", reading(folder), prompts="prompts", batch=3, device="cpu:0"),
        node("said", speaking(folder, **more), caches="read", batch=4),
    )
    return Graph({"prompts": Prompts}, nodes, {"said": "said"})


def outcomes(found: Outcome) -> dict[Any, Any]:
    return {r.id: said(r.rows) for r in found.results if isinstance(r.rows, Completions)}


# the same answers


def test_two_stages_answer_as_one(folder: str, state: Opened) -> None:
    caches = reading(folder).run(state, prompts())
    out = speaking(folder).run(state, caches)
    assert said(out) == said(whole(folder).run(state, prompts()))
    assert len(set(out.texts)) == len(LENGTHS)


@pytest.mark.parametrize(
    "how", [{"temperature": 0.8, "seed": 3}, {"stop": ("a", "e")}, {"regex": "[a-f]{3}"}]
)
def test_drawn_stopped_and_constrained_answers_are_the_same(
    folder: str, state: Opened, how: dict[str, Any]
) -> None:
    if "regex" in how:
        pytest.importorskip("llguidance")
    caches = reading(folder).run(state, prompts())
    assert said(speaking(folder, **how).run(state, caches)) == said(
        whole(folder, **how).run(state, prompts())
    )


def test_another_copy_of_the_model_goes_on_where_the_first_ended(folder: str, state: Opened) -> None:
    caches = reading(folder).run(whole(folder).open(CPU), prompts())
    out = speaking(folder).run(whole(folder).open(CPU), caches)
    assert said(out) == said(whole(folder).run(state, prompts()))


def test_caches_are_those_of_the_library(folder: str, state: Opened) -> None:
    """float32 [L, K, S - 1, d]; keys are turned by pairs of neighbours, so their norms are compared."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder)
    row = prompts().take([1])
    caches = reading(folder).run(state, row)
    with torch.no_grad():
        tokens = torch.from_numpy(row.tokens[0].astype(np.int64))[None]
        layers = model(tokens, use_cache=True).past_key_values.layers
    assert caches.keys_of[0].shape == (2, 2, 8, 39)
    assert caches.values_of[0].shape == (2, 2, 39, 8)
    for at, layer in enumerate(layers):
        assert torch.allclose(caches.values_of[0][at], layer.values[0, :, :-1], rtol=1e-3, atol=1e-3)
        norms = caches.keys_of[0][at].norm(dim=1), layer.keys[0, :, :-1].norm(dim=-1)
        assert torch.allclose(*norms, rtol=1e-3, atol=1e-3)


def test_a_plain_loop_over_a_graph_gives_the_same(folder: str, state: Opened) -> None:
    right = said(whole(folder).run(state, prompts()))
    found = run_local(split_graph(folder), {"prompts": prompts()})
    assert not found.failures
    assert outcomes(found) == {row[0]: [row] for row in right}


def test_dask_gives_the_same_in_one_process_by_reference(folder: str, state: Opened) -> None:
    right = said(whole(folder).run(state, prompts()))
    plan = place(flatten(split_graph(folder)), LANES, 8 << 20)
    with local_client(LANES) as client:
        under_way = run(split_graph(folder), {"prompts": prompts()}, client, plan=plan)
        found = Outcome(tuple(under_way), tuple(under_way.failures))
    assert not found.failures
    assert outcomes(found) == {row[0]: [row] for row in right}
    assert sum(c.shared + c.copied for c in under_way.handed.values()) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="shared memory by memfd")
def test_dask_gives_the_same_in_two_processes_through_shared_memory(tmp_path: Path) -> None:
    wide = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "initializer_range": 0.1}
    folder = str(save_tiny(tmp_path, **wide))  # caches large enough for shared memory
    right = said(whole(folder).run(whole(folder).open(CPU), prompts()))
    nodes = [replace(n, device=f"cpu:{i}") for i, n in enumerate(split_graph(folder).nodes)]
    graph = Graph({"prompts": Prompts}, tuple(nodes), {"said": "said"})
    lanes = Machine((Device("cpu:0", 1), Device("cpu:1", 1)))
    with local_client(lanes, apart=True) as client:
        under_way = run(graph, {"prompts": prompts()}, client, plan=place(flatten(graph), lanes, 64 << 20))
        found = Outcome(tuple(under_way), tuple(under_way.failures))
    assert not found.failures
    assert outcomes(found) == {row[0]: [row] for row in right}
    cache = sum(n - 1 for n in LENGTHS) * 2 * 2 * 512 * 4
    assert under_way.handed["said"].shared >= 0.9 * cache, "read where it lies"


# rows


def test_rows_without_tokens_go_through_untouched(folder: str, state: Opened) -> None:
    one = prompts((5,)).tokens[0]
    rows = rows_of((np.zeros(0, np.int32), one, np.zeros(0, np.int32)))
    caches = reading(folder).run(state, rows)
    assert [k is None for k in caches.keys_of] == [True, False, True]
    assert [v is None for v in caches.values_of] == [True, False, True]
    assert caches.lengths == (0, 5, 0)
    out = speaking(folder).run(state, caches)
    assert out.stops == ("skipped", "length", "skipped")
    assert out.texts[1] == whole(folder).run(state, rows).texts[1]


def test_a_prompt_of_one_token_has_an_empty_cache(folder: str, state: Opened) -> None:
    caches = reading(folder).run(state, prompts((1,)))
    assert (caches.keys_of[0].shape, caches.values_of[0].shape) == ((2, 2, 8, 0), (2, 2, 0, 8))


def test_caches_are_batched_and_taken_apart_like_other_rows(folder: str, state: Opened) -> None:
    caches = reading(folder).run(state, prompts())
    again = KVCache.concat([caches.take([5, 2]), caches.take([7])])
    right = said(whole(folder).run(state, prompts()))
    assert said(speaking(folder).run(state, again)) == [right[i] for i in (5, 2, 7)]


def test_a_cache_weighs_what_its_tensors_do(folder: str, state: Opened) -> None:
    caches = reading(folder).run(state, prompts())
    tensors = sum(n - 1 for n in LENGTHS) * TOKEN_BYTES
    tokens = 4 * sum(LENGTHS)
    assert tensors + tokens < caches.nbytes < tensors + tokens + 300 * len(LENGTHS)
    assert sum(t.nbytes for t in (*caches.keys_of, *caches.values_of)) == tensors


def test_only_prompts_that_are_too_long_fail(folder: str, state: Opened) -> None:
    """Where they are read if they leave no room for a token, else where they are answered."""
    rows = prompts((128, 117, 116))
    with pytest.raises(BadRowsError) as caught:
        reading(folder).run(state, rows)
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q0",): "too long"}
    caches = reading(folder).run(state, rows.take([1, 2]))
    with pytest.raises(BadRowsError) as caught:
        speaking(folder).run(state, caches)
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q1",): "too long"}
    assert speaking(folder).run(state, caches.take([1])).new_tokens == (12,)


def test_only_rows_that_do_not_fit_into_the_caches_fail(folder: str) -> None:
    tight = {"cache_gib": 70 * TOKEN_BYTES / 2**30}  # a slot of 64
    opened = whole(folder, **tight).open(CPU)
    rows = prompts((70, 58, 40))
    with pytest.raises(BadRowsError) as caught:
        reading(folder, **tight).run(opened, rows)
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q0",): "memory"}
    caches = reading(folder, **tight).run(opened, rows.take([1, 2]))
    with pytest.raises(BadRowsError) as caught:
        speaking(folder, **tight).run(opened, caches)
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q1",): "memory"}
    assert speaking(folder, **tight).run(opened, caches.take([1])).ids == (("q2",),)


def test_a_bad_row_of_a_graph_does_not_take_others_with_it(folder: str, state: Opened) -> None:
    rows = prompts((9, 127, 20, 128))
    found = run_local(split_graph(folder), {"prompts": rows})
    assert {(f.id, f.stage, f.category) for f in found.failures} == {
        (("q1",), "said", "too long"),
        (("q3",), "read", "too long"),
    }
    right = said(whole(folder).run(state, rows.take([0, 2])))
    assert {k: v for k, v in outcomes(found).items() if v} == {row[0]: [row] for row in right}


# one model


def test_equal_parameters_share_one_model() -> None:
    more: dict[str, Any] = {"cache_gib": 1.0, "drafts": 2, "quantize": "int8"}
    stages = (Generate("m", **more), Decode("m", 9, **more), Prefill("m", **more))
    assert len({state_key(s) for s in stages}) == 1
    assert len({state_key(s) for s in (Prefill("m"), Decode("m", drafts=1), Generate("other"))}) == 3


def test_the_model_is_opened_once_for_all_three(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    plain = weights.model

    def counted(name: str, *more: Any) -> Any:
        loaded.append(name)
        return plain(name, *more)

    monkeypatch.setattr(weights, "model", counted)
    nodes = (
        *split_graph(folder).nodes,
        node("both", whole(folder), prompts="prompts", device="cpu:0"),
    )
    nodes = tuple(replace(n, device="cpu:0") for n in nodes)
    graph = Graph({"prompts": Prompts}, nodes, {"said": "said", "both": "both"})
    rows = prompts()
    with local_client(Machine((CPU,))) as client:
        under_way = run(graph, {"prompts": rows}, client)
        found = {(r.output, r.id): said(r.rows) for r in under_way if isinstance(r.rows, Completions)}
    assert loaded == [folder]
    assert all(found["said", i] == found["both", i] for i in rows.ids)
    loaded.clear()
    run_local(graph, {"prompts": rows})
    assert loaded == [folder]


# parameters


def test_the_stages_fit_together_and_travel() -> None:
    assert (ports(Prefill).inputs, ports(Prefill).output) == ({"prompts": Prompts}, KVCache)
    assert (ports(Decode).inputs, ports(Decode).output) == ({"caches": KVCache}, Completions)
    check_portable(Prefill("m"), "read")
    check_portable(Decode("m"), "said")


@pytest.mark.parametrize("kind", [Prefill, Decode])
def test_what_no_model_has_is_refused_in_the_name_of_the_stage(kind: Any) -> None:
    with pytest.raises(
        RidgewayError, match=rf"{kind.__name__}: dtype is 'float23'; did you mean 'float32'\?"
    ):
        kind("m", dtype="float23")
    with pytest.raises(RidgewayError, match=f"{kind.__name__}: decoder is 'x'; known: auto, engine"):
        kind("m", decoder="x")


def test_answers_that_cannot_be_are_refused() -> None:
    with pytest.raises(RidgewayError, match="Decode: max_new_tokens is 0"):
        Decode("m", 0)
    with pytest.raises(RidgewayError, match="Decode: temperature is -1"):
        Decode("m", temperature=-1)


def test_both_stages_have_the_identity_of_the_model(folder: str) -> None:
    found = {"fingerprint": models.fingerprint(Path(folder))}
    assert (Prefill(folder).identity(), Decode(folder).identity()) == (found, found)


def test_both_must_name_the_same_model(folder: str) -> None:
    for other, key in ((Decode("other"), "model"), (Decode(folder, dtype="bfloat16"), "dtype")):
        nodes = (node("read", Prefill(folder), prompts="prompts"), node("said", other, caches="read"))
        with pytest.raises(GraphError, match=f"prompts are read with {key} .*, Decode goes on with"):
            Graph({"prompts": Prompts}, nodes, {"said": "said"})
    Decode("a").check((Prefill("a"), Prefill("b")))
    Decode("a").check(())


def test_prompts_must_leave_room_for_the_answer() -> None:
    with pytest.raises(GraphError, match="max_new_tokens is 100, but WritePrompt keeps only 64 tokens"):
        Decode("any", 100).check((WritePrompt("any"), Prefill("any")))


# cost


def test_the_two_stages_cost_what_the_one_does(folder: str) -> None:
    """But for the token that is computed once more, and the weights that both read."""
    asked = Work(8, {"prompts": Flow(8, 100)})
    one = Generate(folder).cost(asked)
    read = Prefill(folder).cost(asked)
    rest = Decode(folder).cost(Work(8, {"caches": read.output}))
    assert read.output.length == 100
    assert read.output.nbytes == pytest.approx(100 * TOKEN_BYTES)
    assert one.flops < read.flops + rest.flops < 1.05 * one.flops
    assert read.resident == rest.resident == one.resident
    assert rest.output == one.output
