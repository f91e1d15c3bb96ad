"""A network is held to the library's logits when a model is opened."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ModelError
from pipeline.machine import Device
from stages.llm import agreement, weights
from stages.llm.family import network
from tests.tiny_llm import save_tiny

CPU = Device("cpu:0", 2)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(save_tiny(tmp_path_factory.mktemp("tiny")))
    model, words = weights.model(folder, CPU, "float32"), weights.tokenizer(folder)
    known = agreement.sample(model, words)
    return folder, known, network(model)


def test_a_network_agrees_with_the_library(opened: Any) -> None:
    _, known, net = opened
    found = agreement.compared(net, known)
    assert found.error < 1e-4
    assert found.same == found.count


def test_one_that_does_not_is_refused_and_the_other_decoder_named(opened: Any) -> None:
    _, known, net = opened
    wrong = replace(net, scale=2 * net.scale)
    with pytest.raises(ModelError, match="decoder: transformers"):
        agreement.tell(wrong, known, "m", "")


def test_numbers_that_are_not_finite_are_no_agreement(opened: Any) -> None:
    _, known, net = opened
    broken = replace(net, embedding=net.embedding * float("nan"))
    with pytest.raises(ModelError, match="nan"):
        agreement.tell(broken, known, "m", "")


def test_what_8_bits_cost_is_told(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder, known, _ = opened
    eight = network(weights.model(folder, CPU, "float32"), "int8")
    with caplog.at_level(logging.INFO, "ridgeway"):
        agreement.tell(eight, known, "m", "int8")
    assert "model m in int8: logits differ by up to" in caplog.text
    assert f"of {len(known.tokens)} places" in caplog.text


def test_the_paragraph_is_short_enough_for_any_window(opened: Any, tmp_path: Path) -> None:
    _, known, _ = opened
    assert len(known.tokens) <= agreement.TOKENS
