"""The best placement of a chain: which stages run together on which device, proven and not guessed.

The model is that of EdgePipe (Hu et al., arXiv 2110.14895): a device takes one run of neighbouring stages,
or none, and what passes from one run to the next crosses a link. With h(j, S, u) the best value of the
first j stages on the devices S, the last run on u,

    h(j, S + u, u) = min over i < j and v in S of  max(h(i, S, v), link_i(v, u), compute_u(i..j))

and `+` in place of `max` for the latency of one batch. Every value is tried, for all stages at once in
numpy. Keeping only the farthest stage that a set of devices reaches would be faster and is wrong: a link
costs more after one stage than after another, so the shorter run may be the one that can go on.

When not to: for graphs that are no chain, for devices that should take turns at distant stages, and for
stages that several devices share; those need the search over simulated runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from pipeline.errors import PlanError

MOST_DEVICES = 12
"""The work doubles with every device: 8 take hundredths of a second, 12 about half of one."""

Array = np.ndarray[Any, np.dtype[np.float64]]
Objective = Literal["bottleneck", "latency"]


@dataclass(frozen=True, slots=True)
class Chain:
    """n stages in a row and m devices, as numbers.

    `seconds`: [stage][device], infinite where a stage cannot run; `memory`: bytes that each stage keeps;
    `capacity`: bytes of each device; `links`: [cut][from][to] seconds to hand on what leaves stage `cut`
    (n - 1 cuts; infinite where there is no way; from and to the same is never used); `stages`, `devices`:
    their names in messages. Devices that share a memory each count for their own part of it.
    """

    seconds: tuple[tuple[float, ...], ...]
    memory: tuple[float, ...]
    capacity: tuple[float, ...]
    links: tuple[tuple[tuple[float, ...], ...], ...]
    stages: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, m = len(self.memory), len(self.capacity)
        if not n or not 0 < m <= MOST_DEVICES:
            raise PlanError(
                f"the exact planner takes 1 or more stages and 1 to {MOST_DEVICES} devices, "
                f"found {n} and {m}: leave out devices that are like another, or search instead"
            )
        for name, found, shape in (
            ("seconds", self.seconds, (n, m)),
            ("memory", self.memory, (n,)),
            ("capacity", self.capacity, (m,)),
            ("links", self.links, (n - 1, m, m)),
        ):
            values = np.asarray(found, float)
            if values.size != math.prod(shape) or (values.size and values.shape != shape):
                raise PlanError(f"{name} of a chain must be of shape {shape}, found {values.shape}")
            if not (values >= 0).all():
                raise PlanError(f"{name} of a chain must be numbers of 0 or more")
        if math.inf in self.memory:
            raise PlanError(f"{self.stage(self.memory.index(math.inf))} cannot keep endless bytes")

    def stage(self, i: int) -> str:
        """What messages call a stage."""
        return repr(self.stages[i]) if self.stages else f"stage {i}"

    def device(self, u: int) -> str:
        """What messages call a device."""
        return self.devices[u] if self.devices else f"device {u}"


@dataclass(frozen=True, slots=True)
class Chained:
    """Where each stage runs. `bottleneck`: seconds per batch once the pipeline is full; `latency`: of one.

    `bound_by`: what takes the bottleneck's seconds, ("device", its number) or ("link", the cut's).
    """

    devices: tuple[int, ...]
    bottleneck: float
    latency: float
    bound_by: tuple[Literal["device", "link"], int]


@dataclass(frozen=True, slots=True)
class Short:
    """`nbytes` more on `device` would let it hold `stages`, from the first to the last of them."""

    device: int
    stages: tuple[int, int]
    nbytes: float


def place_chain(chain: Chain, objective: Objective = "bottleneck") -> Chained:
    """The placement with the smallest bottleneck, or the smallest latency; no other is better.

    Among equal bottlenecks it is one of the smallest latency, then one of the fewest devices. Raises
    PlanError where nothing fits; for want of memory it says how many bytes on which device would help.
    """
    runs, links = _runs(chain), _links(chain)
    runs[_bytes(chain) > np.asarray(chain.capacity)[:, None, None]] = math.inf
    if objective == "bottleneck":
        limit = _table(runs, links, np.maximum)[:, :, -1].min()
        runs, links = (np.where(a <= limit, a, math.inf) for a in (runs, links))
    found = _path(runs, links)
    if not found:
        raise PlanError(_advice(chain, shortage(chain)))
    return _weigh(chain, found)


def shortage(chain: Chain) -> tuple[Short, ...]:
    """The fewest bytes, all devices together, that would make the chain fit; none if it does.

    Ours: the same recurrence, with the bytes that a run lacks in place of its seconds. Raises PlanError
    where no amount of memory would help.
    """
    runs, links = _runs(chain), _links(chain)
    lack = np.maximum(_bytes(chain) - np.asarray(chain.capacity)[:, None, None], 0.0)
    lack, free = np.where(np.isinf(runs), math.inf, lack), np.where(np.isinf(links), math.inf, 0.0)
    found = _path(lack, free)
    if not found:
        raise PlanError(_stuck(chain, _table(lack, free, np.add)))
    return tuple(Short(u, (i, j - 1), float(lack[u, i, j])) for u, i, j in found if lack[u, i, j])


def _sums(values: Array, none: float) -> Array:
    """[device, i, j]: sums of the stages i to j - 1; `none` where that is no stage."""
    n, m = values.shape
    sums = np.full((m, n + 1, n + 1), none)
    for i in range(n):
        sums[:, i, i + 1 :] = np.cumsum(values[i:], axis=0).T
    return sums


def _runs(chain: Chain) -> Array:
    return _sums(np.asarray(chain.seconds, float), math.inf)


def _bytes(chain: Chain) -> Array:
    memory = np.asarray(chain.memory, float)
    return _sums(np.repeat(memory[:, None], len(chain.capacity), axis=1), 0.0)


def _links(chain: Chain) -> Array:
    """[from, to, stages done]: seconds of the hand-over; infinite before the first and after the last."""
    n, m = len(chain.memory), len(chain.capacity)
    links = np.full((m, m, n + 1), math.inf)
    if n > 1:
        links[:, :, 1:n] = np.moveaxis(np.asarray(chain.links, float), 0, 2)
    return links


def _table(runs: Array, links: Array, join: np.ufunc) -> Array:
    """h as [set of devices, last device, stages done]; a set comes before all that contain it."""
    m, size, _ = runs.shape
    best = np.full((1 << m, m, size), math.inf)
    for u in range(m):
        best[1 << u, u] = runs[u, 0]
    for used in range(1, (1 << m) - 1):
        arrived = join(best[used][:, None, :], links).min(axis=0)
        reached = join(arrived[:, :, None], runs).min(axis=1)
        for u in range(m):
            if not used >> u & 1:
                best[used | 1 << u, u] = reached[u]
    return best


def _path(runs: Array, links: Array) -> list[tuple[int, int, int]]:
    """The runs (device, from stage, up to stage) of the smallest sum, in order; none where all are infinite.

    The table holds values only, so each step back is decided again; of equal ends, that of fewest devices.
    """
    best = _table(runs, links, np.add)
    ends = best[:, :, -1]
    if np.isinf(ends.min()):
        return []
    used, last = min(np.argwhere(ends == ends.min()).tolist(), key=lambda e: (e[0].bit_count(), e))
    path, j = [], runs.shape[1] - 1
    while used := used & ~(1 << last):
        ways = best[used] + links[:, last] + runs[last, :, j]
        before, i = divmod(int(ways.argmin()), ways.shape[1])
        path.append((last, i, j))
        last, j = before, i
    return [(last, 0, j), *reversed(path)]


def _weigh(chain: Chain, path: list[tuple[int, int, int]]) -> Chained:
    """A placement with what it takes."""
    runs = _runs(chain)
    parts: list[tuple[float, Literal["device", "link"], int]] = []
    parts += [(float(runs[step]), "device", step[0]) for step in path]
    parts += [(chain.links[b[1] - 1][a[0]][b[0]], "link", b[1] - 1) for a, b in pairwise(path)]
    worst = max(parts, key=lambda part: part[0])
    devices = tuple(u for u, i, j in path for _ in range(i, j))
    return Chained(devices, worst[0], math.fsum(p[0] for p in parts), worst[1:])


def _advice(chain: Chain, short: tuple[Short, ...]) -> str:
    """What does not fit, and the smallest change that would help."""
    wishes = []
    for lack in short:
        first, last = (chain.stage(i) for i in lack.stages)
        what = first if first == last else f"{first} to {last}"
        nbytes = math.ceil(lack.nbytes)
        device = chain.device(lack.device)
        wishes.append(f"{nbytes / 2**30:.1f} GiB ({nbytes} bytes) more on {device}, for {what}")
    return f"the stages do not fit into memory; the least that would help is {' and '.join(wishes)}"


def _stuck(chain: Chain, best: Array) -> str:
    """Why not even endless memory would help."""
    stage = int(np.flatnonzero(np.isfinite(best).any(axis=(0, 1))).max(initial=0))
    names = ", ".join(chain.device(u) for u in range(len(chain.capacity)))
    if np.isinf(chain.seconds[stage]).all():
        return f"{chain.stage(stage)} can run on none of the devices {names}"
    return (
        f"{chain.stage(stage)} cannot run behind the stages before it: among {names}, each device takes one "
        "run of neighbouring stages; let more devices run it, or declare the link that is missing"
    )
