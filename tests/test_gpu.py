"""The CUDA paths, where there is a CUDA device: the same numbers as on the CPU, and the lane is used."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.machine import Device
from pipeline.values import Prompts, Queries
from stages.embed import EmbedQueries
from stages.generate import Generate

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CPU, CUDA = Device("cpu:0", 2), Device("cuda:0")
ASKED = Queries((("a",), ("b",)), ("How deep is the snow?", "Who painted the mural in the hall?"), ("", ""))


def test_embeddings_agree_with_the_cpu() -> None:
    stage = EmbedQueries("all-MiniLM-L6-v2", "float32")
    here, there = (stage.run(stage.open(d), ASKED).vectors for d in (CPU, CUDA))
    assert (here * there).sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_answers_agree_with_the_cpu_in_float32() -> None:
    stage = Generate("SmolLM2-135M-Instruct", max_new_tokens=8, dtype="float32")
    tokens = tuple(np.arange(1000 + i, 1040 + i, dtype=np.int32) for i in range(2))
    prompts = Prompts(ASKED.ids, tokens, ((), ()), (0, 0))
    assert stage.run(stage.open(CPU), prompts).texts == stage.run(stage.open(CUDA), prompts).texts


def test_a_stage_that_gains_from_it_runs_on_the_accelerator() -> None:
    asked = node("asked", EmbedQueries("all-MiniLM-L6-v2"), queries="questions")
    under_way = run(Graph({"questions": Queries}, (asked,), {"asked": "asked"}), {"questions": ASKED})
    assert len(list(under_way)) == 2
    assert {s.device for s in under_way.spans} <= {f"cuda:{i}" for i in range(torch.cuda.device_count())}
