"""What a worker does with a task: find the state, cut the rows, run the stage, tell how it went.

It decides nothing. Errors of a batch come back as values, so that Dask's own error path is left for
workers that die.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pipeline.apply import Fault, apply, assemble, fault
from pipeline.buffers.stations import Stations
from pipeline.clock import Clock
from pipeline.errors import RidgewayError, RowId
from pipeline.events import Meta, describe
from pipeline.machine import Device
from pipeline.shelf import BY_REFERENCE, Carry, Shelf, Token, token
from pipeline.stage import Ports, in_flight, length_of, open_stage, ports, state_key
from pipeline.timeline import Counts, Times
from pipeline.values import Rows


@dataclass(frozen=True, slots=True)
class Order:
    """A task in full: `ports` say which rows of which of the values that come with it.

    `carry`: how to hand over what it makes; `freed`: values of this worker that nobody needs any more.
    `kinds` are found where the order is made: a stage class from a function or a script leaves the names
    in its annotations behind when it travels.
    """

    stage: Any
    device: Device
    ports: tuple[tuple[str, tuple[tuple[int, tuple[int, ...]], ...]], ...]
    owed: tuple[RowId, ...]
    carry: Carry = BY_REFERENCE
    freed: tuple[Token, ...] = ()
    kinds: Ports = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", ports(type(self.stage)))


@dataclass(frozen=True, slots=True)
class Made:
    """What a task made: rows, or a fault of the batch, or an error that ends the run.

    `given`: what travels to other processes in place of the rows; None: the rows themselves. `meta`: what the
    Scheduler needs to know of them.
    """

    rows: Rows | None
    fault: Fault | None
    fatal: RidgewayError | None
    times: Times
    given: Any = None
    meta: Meta | None = None

    def __reduce__(self) -> Any:
        rows = self.rows if self.given is None else None
        return Made, (rows, self.fault, self.fatal, self.times, self.given, self.meta)


@dataclass(frozen=True, slots=True)
class Report:
    """A `Made` without its payload, for the client. `token`: what it is called when it is freed."""

    meta: Meta | None
    fault: Fault | None
    fatal: RidgewayError | None
    times: Times
    token: Token | None = None


class States:
    """The opened stages of one lane, which runs one batch at a time, and the values that it keeps.

    A stage that merges what several batches ask may have as many of them open as it says.

    While a batch runs, the next puts its inputs together, and the value of the one before is handed on.
    """

    def __init__(self) -> None:
        self._states: dict[tuple[Any, ...], Any] = {}
        self.shelf = Shelf()
        self._lane = Stations(3)
        self._lock = Lock()
        self._ended = 0.0

    def run(
        self, order: Order, values: Sequence[Made | Rows], begun: Callable[[], None] = lambda: None
    ) -> Made:
        """Carry out an order; never raises for what goes wrong in a stage.

        `begun` is called when it begins: the next order may come then, and waits until this one has the
        lane. So they run in the order in which they come.
        """
        clock = Clock()
        try:
            with self._lane.through(clock.mark) as onward:
                begun()
                pin(order.device.cores)
                batch = self._prepare(order, values, clock)
                onward(state_key(order.stage), in_flight(order.stage))
                made = self._apply(order, batch, clock)
                del batch  # else two of them would live while this value waits to be handed on
                onward()
                rows, given = self.shelf.hand(made, order.carry, clock.moved)
        except RidgewayError as error:
            return Made(None, None, error, clock.times())
        except Exception as error:
            return Made(None, fault(error), None, clock.times())
        return Made(rows, None, None, clock.times(), given, describe(made))

    def _prepare(self, order: Order, values: Sequence[Made | Rows], clock: Clock) -> dict[str, Rows]:
        """The inputs. What is freed makes room for what comes."""
        self.shelf.begin(order.device.torch, order.carry, order.freed)
        whole = [rows_of(value, self.shelf, clock.moved) for value in values]
        parts = {port: [taken(whole[at], rows) for at, rows in found] for port, found in order.ports}
        batch = assemble(order.stage, order.kinds, parts)
        clock.length = length_of(order.stage, batch)
        return batch

    def _apply(self, order: Order, batch: dict[str, Rows], clock: Clock) -> Rows:
        """Run the stage. Of batches that share the lane each has the time since another ended."""
        try:
            return apply(order.stage, order.kinds, self._state(order, clock), batch, order.owed)
        finally:
            with self._lock:
                clock.since, clock.ended = self._ended, time.monotonic()
                self._ended = clock.ended

    def _state(self, order: Order, clock: Clock) -> Any:
        key = (order.device.name, *state_key(order.stage))
        with self._lock:
            if key not in self._states:
                began = time.monotonic()
                self._states[key] = open_stage(order.stage, order.device)
                clock.opening = time.monotonic() - began
        return self._states[key]


def pin(cores: tuple[int, ...]) -> None:
    """Keep this thread, and the threads and processes that it starts, on the lane's cores."""
    if cores and hasattr(os, "sched_setaffinity") and set(cores) < os.sched_getaffinity(os.getpid()):
        os.sched_setaffinity(0, cores)


def report(made: Made) -> Report:
    """What the client needs to know of a value that stays on the worker."""
    return Report(made.meta, made.fault, made.fatal, made.times, token(made.given))


def rows_of(value: Made | Rows, shelf: Shelf, moved: Counts | None = None) -> Rows:
    """The rows of a value: a source, or one that a task made, here or elsewhere. Counts what that moves."""
    if isinstance(value, Rows):
        return value
    return value.rows if value.rows is not None else shelf.take(value.given, moved)


def taken(value: Rows, rows: tuple[int, ...]) -> Rows:
    """Rows of a value; the value itself where these are all, in order: nothing is copied."""
    return value if rows == tuple(range(len(value))) else value.take(rows)
