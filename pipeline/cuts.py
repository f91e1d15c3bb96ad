"""Where to cut a vision-language model between two devices, and whether to cut it at all.

    vision | prefill, decode     the patches, once                  patches * width * b
    vision, prefill | decode     the KV cache of the whole context  2 * layers * context * kv_width * b

HeteroServe (Yu, arXiv 2603.12707): of the cuts that keep phases whole, the first moves the fewest bytes,
by about the number of layers. Its cost model was not readable; what is said here about time is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import PlanError
from pipeline.gates import Decision, duration, size
from pipeline.machine import Link

NONE, MODALITY, CACHE = "no split", "modality edge", "prefill/decode"


@dataclass(frozen=True, slots=True)
class Shapes:
    """What the bytes of the cuts follow from, for one row.

    `layers` L, `kv_heads` and `head` (width of one), `width` d of the model; `patches` N_v of all its images
    (0: it sees none); `context` s in tokens, patches among them; `nbytes` b of an element.
    """

    layers: int
    kv_heads: int
    head: int
    width: int
    patches: int
    context: int
    nbytes: int = 2

    def __post_init__(self) -> None:
        sizes = (self.layers, self.kv_heads, self.head, self.width, self.context, self.nbytes)
        if min(sizes) < 1 or self.patches < 0 or self.patches > self.context:
            raise PlanError(f"shapes need sizes of 1 or more, and the patches in the context; found {self}")

    @property
    def kv_width(self) -> int:
        """Elements that a token keeps in a layer, for keys and for values each."""
        return self.kv_heads * self.head

    @property
    def bytes(self) -> Mapping[str, int]:
        """Bytes that cross each legal cut, those that do not cut among them."""
        patches = {MODALITY: self.patches * self.width * self.nbytes} if self.patches else {}
        cache = 2 * self.layers * self.context * self.kv_width * self.nbytes
        return {NONE: 0, **patches, CACHE: cache}

    @property
    def formulas(self) -> Mapping[str, str]:
        """How each of the bytes comes about, for people."""
        b = f"{self.nbytes} B"
        return {
            MODALITY: f"{self.patches} patches * {self.width} * {b}",
            CACHE: f"2 * {self.layers} layers * {self.context} tokens * {self.kv_width} * {b}",
        }


def ratio(shapes: Shapes) -> float:
    """How many times more bytes the KV cache has: 2 L (s / N_v) (d_kv / d); there must be patches."""
    tokens = shapes.context / shapes.patches
    return 2 * shapes.layers * tokens * shapes.kv_width / shapes.width


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of each phase for one row, on the first and the second of two `devices`; infinite: it cannot.

    `vision` is (0, 0) where there are no images.
    """

    devices: tuple[str, str]
    vision: tuple[float, float]
    prefill: tuple[float, float]
    decode: tuple[float, float]

    def whole(self) -> tuple[float, str]:
        """All phases on the device that is faster: seconds, and where."""
        sums = [v + p + d for v, p, d in zip(self.vision, self.prefill, self.decode, strict=True)]
        return min(zip(sums, self.devices, strict=True), key=lambda way: way[0])

    def parts(self, cut: str) -> tuple[float, str]:
        """The phases before and behind a cut, each side on another device: seconds, and where."""
        each, at = (self.vision, self.prefill, self.decode), 1 if cut == MODALITY else 2
        ways = []
        for first, second in ((0, 1), (1, 0)):
            seconds = sum(p[first] for p in each[:at]) + sum(p[second] for p in each[at:])
            ways.append((seconds, f"{self.devices[first]} to {self.devices[second]}"))
        return min(ways, key=lambda way: way[0])


def where_to_cut(model: str, shapes: Shapes, phases: Phases, link: Link) -> Decision:
    """Whether to cut a model between two devices, and where: what takes the least time for a row.

    Ours: a cut pays where its bytes cross the link in less time than it saves, which is what the faster
    device takes for all phases, less what the two take for their parts. Raises PlanError where nothing
    can run. When not to: to divide a stream of rows that keeps both devices busy; see `pipeline.chains`.
    """
    alone, where = phases.whole()
    totals, told = {NONE: alone}, {NONE: f"all phases on {where} take {duration(alone)}"}
    numbers = {f"seconds of {NONE}": alone}
    for name in list(shapes.bytes)[1:]:
        apart, places = phases.parts(name)
        over = link.seconds(shapes.bytes[name])
        totals[name] = apart + over
        crossing = f"{size(shapes.bytes[name])} cross from {places} in {duration(over)}"
        told[name] = f"{_saved(alone, apart)}, and {crossing}"
        numbers |= {f"seconds of {name}": apart + over, f"link seconds of {name}": over}
    chosen = min(shapes.bytes, key=lambda name: (totals[name], shapes.bytes[name]))
    if math.isinf(totals[chosen]):
        raise PlanError(f"{model} can run on neither {' nor '.join(phases.devices)}, whole or cut in two")
    what = f"{model} is not cut" if chosen == NONE else f"{model} is cut at the {chosen}"
    lost = tuple((name, told[name]) for name in shapes.bytes if name != chosen)
    return Decision(f"cut of {model}", chosen, f"{what}: {told[chosen]}", numbers, lost)


def _saved(alone: float, apart: float) -> str:
    """What the two parts take less than the whole."""
    if math.isinf(apart):
        return "a part can run on no device"
    if math.isinf(alone):
        return "no device can run all of it"
    return f"that saves {duration(alone - apart)}" if apart < alone else "that saves nothing"
