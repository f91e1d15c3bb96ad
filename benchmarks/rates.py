"""What this machine reaches on a model's own shapes: the limits that generation is measured against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stages.llm.network import Network

_BIG = 1 << 30
"""Bytes read to measure bandwidth: well past the last cache."""


@dataclass(frozen=True, slots=True)
class Rates:
    """`flops` a second of all products of the layers with many rows; `read` bytes a second."""

    flops: float
    read: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds at least, by arithmetic and by memory."""

    compute: float
    memory: float

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.compute, self.memory)

    @property
    def name(self) -> str:
        """Which it is."""
        return "compute" if self.compute > self.memory else "memory"


def rates(network: Network, rows: int) -> Rates:
    """Measured now: the layers' products with `rows` rows, and a sum over a gibibyte."""
    import torch

    products = [p for y in network.layers for p in (y.qkv, y.out, y.up, y.down)]
    widths = _widths(network)
    inputs = [torch.randn(rows, widths[i % 4]).to(network.embedding.dtype) for i in range(4)]

    def all_products() -> None:
        for i, product in enumerate(products):
            product(inputs[i % 4])

    big = torch.ones(_BIG // 4)
    with torch.inference_mode():
        seconds, reading = best(all_products, 3), best(big.sum, 5)
    return Rates(2 * layer_parameters(network) * rows / seconds, _BIG / reading)


def best(call: Callable[[], Any], times: int) -> float:
    """The least seconds of several calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def layer_parameters(network: Network) -> int:
    """Parameters that multiply every token."""
    s, inner = network.sizes, _widths(network)[3]
    both = (s.heads + 2 * s.kv_heads) * s.head
    return s.layers * (s.width * both + s.heads * s.head * s.width + 3 * s.width * inner)


def step_bound(network: Network, at: Rates, rows: int, context: float) -> Bound:
    """One decode step of `rows` rows with `context` tokens each: weights and caches are read once."""
    s = network.sizes
    head = s.vocabulary * s.width
    flops = rows * (2 * (layer_parameters(network) + head) + 4 * s.layers * s.heads * s.head * context)
    nbytes = network.nbytes - (network.embedding.numel() * s.element) + rows * context * s.token_bytes
    return Bound(flops / at.flops, nbytes / at.read)


def _widths(network: Network) -> tuple[int, int, int, int]:
    """Inputs of qkv, out, up, down."""
    s = network.sizes
    return s.width, s.heads * s.head, s.width, s.inner
