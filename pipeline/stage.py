"""A stage is its parameters: what a class must look like to be one, read from its signature.

    @dataclass(frozen=True, slots=True)
    class Search:
        index: Path
        k: int = 8

        def open(self, device: Device) -> Any: ...               # slow, once per worker: weights, index
        def run(self, state, queries: Queries) -> Hits: ...      # one batch; the annotations are the ports

No base class and no registration. `open` is optional. Class variables say what the types cannot:

    expands: ClassVar[bool] = True    one row in, any number out; each id is the row's plus one element
    gathers: ClassVar[int] = 0        one row out for all rows whose ids share that many first elements;
                                      its id is set for it
    batch: ClassVar[int] = 64         rows to a batch, where the node does not say
    in_flight: ClassVar[int] = 1      batches that may be in `run` at once, in threads, on one state
    accelerated: ClassVar[bool]       gains from an accelerator; otherwise it stays on the CPU
    pads: ClassVar[bool]              each row of a batch costs as much as its longest
    leaves: ClassVar[str] = "device"  on a CUDA lane its rows hold tensors of that GPU, and they stay there:
                                      readers on a GPU find them on theirs, all others on the host. Not for
                                      rows that are mostly read on the host. Default: "host"
    shares: ClassVar[tuple[str, ...]] parameters that decide what `open` returns; stages that agree on
                                      them share one state. Default: all parameters
    role: ClassVar[str]               "prepare", "relevancy", "retrieve" or "apply"; else by its output

    def cost(self, work: Work) -> Cost: ...                  # optional: what a batch asks of a device

A port that joins shorter ids (the one row `()` of an index, the document row of many pages) is passed
its distinct rows only; all other ports have equal ids in equal order. Rows are shared: never change one.

Without `expands` or `gathers` a stage gives exactly one row for each row it gets, under the same id.
"""

from __future__ import annotations

import inspect
import pickle
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from pipeline.errors import GraphError, RidgewayError, RowId
from pipeline.lookup import load
from pipeline.machine import Device
from pipeline.roofline import Cost, Work
from pipeline.values import Rows

DEFAULT_BATCH = 64
NODE_KEYS = ("stage", "loop", "device", "batch")
"""What a node says about itself, in Python or in a file; no port or parameter may be called so."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The typed inputs and the output of a stage, a loop, or a graph."""

    inputs: Mapping[str, type[Rows]]
    output: type[Rows]


def ports(stage: type) -> Ports:
    """The ports of a stage class, from the annotations of its `run`.

    Raises GraphError naming the class and the annotation that is missing or no `Rows`.
    """
    return _ports(stage)


@cache
def _ports(stage: Any) -> Ports:
    name = stage.__qualname__
    if not (is_dataclass(stage) and getattr(stage, "__dataclass_params__").frozen):  # noqa: B009
        raise GraphError(f"stage {name} must be a frozen dataclass: add @dataclass(frozen=True, slots=True)")
    run = getattr(stage, "run", None)
    if not callable(run):
        raise GraphError(f"stage {name} has no method `run(self, state, ...)`")
    names = list(inspect.signature(run).parameters)[2:]
    try:
        hints = typing.get_type_hints(run)
    except NameError as error:
        raise GraphError(f"stage {name}: cannot resolve the annotations of run: {error}") from error
    for port in [*names, "return"]:
        hint = hints.get(port)
        if not (isinstance(hint, type) and issubclass(hint, Rows)):
            raise GraphError(f"stage {name}.run: {port!r} must be annotated with a Rows type, found {hint!r}")
    taken = {*names, *(f.name for f in fields(stage))} & set(NODE_KEYS) | {"name"} & set(names)
    if taken:
        raise GraphError(f"stage {name}: {sorted(taken)} are words of the node itself; rename them")
    clash = set(names) & {f.name for f in fields(stage)}
    if clash:
        raise GraphError(f"stage {name}: {sorted(clash)} are both ports and parameters; rename one")
    return Ports({n: hints[n] for n in names}, hints["return"])


def expands(stage: Any) -> bool:
    """Whether one row becomes many."""
    return bool(getattr(stage, "expands", False))


def gathers(stage: Any) -> int | None:
    """How many first id elements the gathered rows share; None for a stage that does not gather."""
    return getattr(stage, "gathers", None)


def batch_size(stage: Any) -> int:
    """Rows to a batch by default."""
    return int(getattr(stage, "batch", DEFAULT_BATCH))


def in_flight(stage: Any) -> int:
    """How many batches may be in `run` at once, in threads; the stage merges what they ask."""
    return int(getattr(stage, "in_flight", 1))


def accelerated(stage: Any) -> bool:
    """Whether the stage gains from an accelerator."""
    return bool(getattr(stage, "accelerated", False))


def pads(stage: Any) -> bool:
    """Whether the rows of a batch are padded to its longest."""
    return bool(getattr(stage, "pads", False))


def batch_length(stage: Any, lengths: Sequence[float]) -> float:
    """The cost hints of a batch in sum; of a stage that pads, each is as long as the longest."""
    return float(len(lengths) * max(lengths) if pads(stage) and lengths else sum(lengths))


def length_of(stage: Any, batch: Mapping[str, Rows]) -> float:
    """As `batch_length`, of the port where it is largest; rows that others share do not count."""
    depth = max((len(i) for rows in batch.values() for i in rows.ids[:1]), default=0)
    own = [rows.lengths or () for rows in batch.values() if len(rows) and len(rows.ids[0]) == depth > 0]
    return max((batch_length(stage, lengths) for lengths in own), default=0.0)


def leaves(stage: Any) -> str:
    """Where the rows lie that it makes on a CUDA lane, "host" or "device". Raises GraphError for others."""
    found = str(getattr(stage, "leaves", "host"))
    if found not in ("host", "device"):
        raise GraphError(f'stage {type(stage).__name__}: `leaves` is "host" or "device", not {found!r}')
    return found


def cost_of(stage: Any, work: Work) -> Cost | None:
    """What a batch asks of a device; None for a stage that does not say, which is then measured."""
    cost = getattr(stage, "cost", None)
    found: Cost | None = cost(work) if cost is not None else None
    return found


def state_key(stage: Any) -> tuple[Any, ...]:
    """What decides the state: stages with equal keys share what `open` returns."""
    names = getattr(stage, "shares", None)
    names = tuple(f.name for f in fields(stage)) if names is None else names
    owner = getattr(type(stage), "open", type(stage))
    return (owner.__module__, owner.__qualname__, *(getattr(stage, n) for n in names))


def open_stage(stage: Any, device: Device) -> Any:
    """The stage's state on `device`: what its `open` returns, None where it has none. Slow.

    Raises RidgewayError where it cannot be opened: no row could be processed, so none is to be blamed.
    """
    opener = getattr(stage, "open", None)
    try:
        return opener(device) if opener is not None else None
    except RidgewayError:
        raise
    except Exception as error:
        what = f"stage {type(stage).__name__} cannot be opened on {device.name}"
        raise RidgewayError(f"{what}: {type(error).__name__}: {error}") from error


def check_outputs(stage: Any, owed: tuple[RowId, ...], made: Rows) -> None:
    """Raise if the ids of `made` are not what the stage owes: those of `owed`, or their children."""
    name = type(stage).__name__
    if gathers(stage) is not None:
        if len(made) != 1:
            raise ValueError(f"{name} owes one row for all that it gathers; gave {len(made)}")
    elif expands(stage):
        parents = set(owed)
        for i in made.ids:
            if i[:-1] not in parents:
                raise ValueError(f"{name} gave row {i}, which is no child of a row it got")
        if len(set(made.ids)) != len(made.ids):
            raise ValueError(f"{name} gave a row twice")
    elif made.ids != owed:
        raise ValueError(f"{name} owes the {len(owed)} rows it got, in order; gave {len(made.ids)}")


def check_portable(stage: Any, name: str) -> None:
    """Raise GraphError where a stage cannot travel to a worker, naming what it is that cannot.

    That is a parameter, or, for a class that workers cannot import (one in a function or a script, which
    travels whole), what its methods use from around them.
    """
    where = f"stage {name!r} ({type(stage).__qualname__})"
    for f in fields(stage):
        value = getattr(stage, f.name)
        try:
            pickle.dumps(value)
            hash(value)
        except Exception as error:
            raise GraphError(
                f"{where}: parameter {f.name!r} holds a {type(value).__name__}, which cannot travel to a "
                f"worker or be compared ({error}); pass what it is made from and make it in `open`"
            ) from error
    if not _is_importable(type(stage)):
        _check_class(type(stage), where)


def _is_importable(kind: type) -> bool:
    try:
        return kind.__module__ != "__main__" and load(f"{kind.__module__}:{kind.__qualname__}") is kind
    except (ImportError, AttributeError):
        return False


def _check_class(kind: type, where: str) -> None:
    import cloudpickle

    used = [v for f in vars(kind).values() if inspect.isfunction(f) for v in inspect.getclosurevars(f)[:2]]
    for name, value in [item for names in used for item in names.items() if item[1] is not kind]:
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise GraphError(
                f"{where}: its methods use {name!r}, a {type(value).__name__}, which cannot travel to a "
                f"worker ({error}); make it in `open`"
            ) from error
    try:
        cloudpickle.dumps(kind)
    except Exception as error:
        raise GraphError(f"{where}: the class cannot travel to a worker ({error})") from error
