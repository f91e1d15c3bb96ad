"""A look with the first layers of a model: how much a question attends to each passage before it.

What MInference (Jiang et al. 2024, arXiv 2407.02490, section 3.2) estimates of a head from the attention of
the last 64 tokens, for whole passages: the mass of all heads and of the layers that are run.

When not: over a prompt that is read in full anyway by layers this many; the look would be all of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.llm.attention import Slab, causal
from stages.llm.network import Network
from stages.llm.passes import Prompt

__all__ = ["Look", "fewest", "masses"]


class Look:
    """Attention of one prompt of `count` tokens; adds up what its `last` tokens see. See `network.Attend`.

    `mass`: float32 [count], the weights that each token got, over heads, layers and those who looked.
    """

    def __init__(self, network: Network, count: int, last: int) -> None:
        import torch

        self._net, self._start = network, count - last
        self._prompt = Prompt(network, Slab(network, 1, count), 0, 0, count)
        self.mass = torch.zeros(count, device=network.device)

    def __call__(self, at: int, q: Any, k: Any, v: Any) -> Any:
        """What each token sees in layer `at`."""
        import torch

        net, groups = self._net, q.shape[1] // k.shape[1]
        asked = q[self._start :].unflatten(1, (-1, groups)).transpose(0, 1).flatten(1, 2)
        scores = torch.bmm(asked, k.permute(1, 2, 0)).float().mul_(net.scale)
        if net.softcap:
            scores = scores.div_(net.softcap).tanh_().mul_(net.softcap)
        mask = causal(self._start, len(q) - self._start, net.layers[at].window, net.device)
        weights = torch.softmax(scores + mask.repeat_interleave(groups, 0), -1)
        self.mass += weights.sum((0, 1))
        return self._prompt.attend(at, q, k, v)


def masses(
    network: Network, tokens: Sequence[int], spans: Sequence[tuple[int, int]], last: int
) -> NDArray[np.float64]:
    """float64 [spans]: the attention that each span of a prompt gets from its `last` tokens."""
    import torch

    with torch.inference_mode():
        look = Look(network, len(tokens), last)
        at = torch.arange(len(tokens), device=network.device)
        network.hidden(torch.tensor(tokens, device=network.device), at, look)
        mass = look.mass.double().cpu().numpy()
    return np.array([mass[start:stop].sum() for start, stop in spans])


def fewest(mass: NDArray[np.float64], keep: float) -> list[int]:
    """The fewest places that have at least the share `keep` of the mass, ascending; never none.

    Of equal ones the first stay. All stay where the mass is not finite, or nothing: nothing is known then.
    """
    total = mass.sum()
    if not (np.isfinite(total) and total > 0):
        return list(range(len(mass)))
    order = np.argsort(-mass, kind="stable")
    reached = np.cumsum(mass[order]) >= keep * total
    count = int(reached.argmax()) + 1 if reached.any() else len(mass)
    return sorted(order[:count].tolist())
