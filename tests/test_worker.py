from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.buffers.handles import Handle, Place
from pipeline.errors import BadRowsError, ModelError, RowError
from pipeline.machine import Device
from pipeline.shelf import Carry, Shelf
from pipeline.timeline import Counts, Times
from pipeline.values import Rows
from pipeline.worker import Made, Order, States, report
from tests.toys import Collatz, Flags, Join, Numbers, Plus, Total, numbers

CPU = Device("cpu:0", 2)


def order(stage: Any, rows: tuple[int, ...] = (0,), device: Device = CPU) -> Order:
    """Rows of the one value `a`, `b`, ... through a stage with the port `a`."""
    return Order(stage, device, (("a", ((0, rows),)),), tuple(("abc"[i],) for i in rows))


def work(stage: Any, rows: Rows, index: tuple[int, ...] = (0,)) -> Made:
    return States().run(order(stage, index), [rows])


def test_a_task_runs_the_stage_on_the_rows_it_names() -> None:
    made = work(Plus(), numbers(a=1, b=2, c=3), (2, 0))
    assert made.rows == Numbers((("c",), ("a",)), (4, 2))
    assert (made.fault, made.fatal) == (None, None)
    assert made.times.start <= made.times.end


def test_rows_of_several_values_make_one_batch() -> None:
    first = States().run(order(Plus()), [numbers(a=1)])
    ports = (("a", ((0, (0,)), (1, (1,)))),)
    made = States().run(Order(Plus(), CPU, ports, (("a",), ("z",))), [first, numbers(y=5, z=6)])
    assert made.rows == numbers(a=3, z=7)


def test_each_port_gets_its_own_rows() -> None:
    ports = (("a", ((0, (0, 1)),)), ("b", ((1, (0,)),)))
    shared = Numbers(((),), (10,))
    made = States().run(Order(Join(), CPU, ports, (("a",), ("b",))), [numbers(a=1, b=2), shared])
    assert made.rows == numbers(a=11, b=12)


def test_a_gathering_stage_gets_its_rows_in_the_order_of_ids() -> None:
    rows = Numbers((("d", 10), ("d", 9)), (1, 100))
    made = States().run(Order(Total(1), CPU, (("a", ((0, (0, 1)),)),), (("d",),)), [rows])
    assert made.rows == Numbers((("d",),), (100 + 2 * 1,))


def test_an_exception_comes_back_as_a_fault_with_its_traceback() -> None:
    fault = work(Plus(1, bad=1), numbers(a=1)).fault
    assert fault is not None
    assert (fault.category, fault.message) == ("bug", "ValueError: 1 in a batch of 1")
    assert "toys.py" in fault.detail


@dataclass(frozen=True, slots=True)
class Raising:
    what: str

    def run(self, state: Any, a: Numbers) -> Numbers:
        raise {
            "row": RowError("too long", "cut it"),
            "rows": BadRowsError({("a",): RowError("encrypted", "unlock it")}),
            "memory": MemoryError("no more"),
            "user": ModelError("no such model"),
        }[self.what]


def test_a_row_error_keeps_its_words() -> None:
    fault = work(Raising("row"), numbers(a=1)).fault
    assert fault is not None
    assert (fault.category, fault.message, fault.rows) == ("too long", "cut it", None)


def test_bad_rows_keep_their_words() -> None:
    fault = work(Raising("rows"), numbers(a=1)).fault
    assert fault is not None
    assert fault.rows == {("a",): ("encrypted", "unlock it")}


def test_want_of_memory_is_known() -> None:
    fault = work(Raising("memory"), numbers(a=1)).fault
    assert fault is not None
    assert fault.category == "memory"


def test_what_the_user_can_mend_is_fatal_and_no_fault() -> None:
    made = work(Raising("user"), numbers(a=1))
    assert isinstance(made.fatal, ModelError)
    assert made.fault is None


def test_rows_that_a_stage_does_not_owe_are_a_fault() -> None:
    made = States().run(Order(Plus(), CPU, (("a", ((0, (0,)),)),), (("a",), ("b",))), [numbers(a=1)])
    assert made.fault is not None
    assert made.fault.message == "ValueError: Plus owes the 2 rows it got, in order; gave 1"


@dataclass(frozen=True, slots=True)
class Counting:
    """Each open is another object; says in which state it ran."""

    name: str
    other: int = 0
    shares: ClassVar[tuple[str, ...]] = ("name",)

    def open(self, device: Device) -> Any:
        return object()

    def run(self, state: Any, a: Numbers) -> Numbers:
        return Numbers(a.ids, (id(state),) * len(a))


def state(states: States, stage: Counting, device: Device = CPU) -> int:
    rows: Any = states.run(order(stage, device=device), [numbers(a=1)]).rows
    return int(rows.x[0])


def test_a_state_is_opened_once_for_stages_that_share_it_and_for_each_device() -> None:
    states = States()
    first = state(states, Counting("m"))
    assert state(states, Counting("m")) == state(states, Counting("m", 5)) == first
    assert state(states, Counting("n")) != first
    assert state(states, Counting("m"), Device("cpu:1")) != first


@dataclass(frozen=True, slots=True)
class Flaky:
    """Opens at the second try."""

    def open(self, device: Device) -> Any:
        tries.count += 1
        if tries.count == 1:
            raise OSError("busy")
        return None

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


@dataclass
class Tries:
    count: int = 0


tries = Tries()


def test_a_state_that_does_not_open_ends_the_run_and_is_opened_again_by_the_next() -> None:
    states = States()
    first = states.run(order(Flaky()), [numbers(a=1)])
    assert str(first.fatal) == "stage Flaky cannot be opened on cpu:0: OSError: busy"
    assert states.run(order(Flaky()), [numbers(a=1)]).rows == numbers(a=1)


WAIT = 10.0
"""Seconds after which a test fails that would wait for ever."""


@dataclass
class Gate:
    """A step of a lane that is held: who comes is told, and waits until it may go on."""

    log: list[str]
    step: str
    came: dict[str, threading.Event] = field(default_factory=lambda: {n: threading.Event() for n in "abcdef"})
    may: dict[str, threading.Event] = field(default_factory=lambda: {n: threading.Event() for n in "abcdef"})
    inside: int = 0
    most: int = 0

    def pass_through(self, name: str) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.log.append(f"{name} {self.step}")
        self.came[name].set()
        assert self.may[name].wait(WAIT)
        self.inside -= 1


class Held(Shelf):
    """A shelf whose values arrive, and leave, when they may. What travels is rows."""

    def __init__(self, up: Gate, down: Gate) -> None:
        super().__init__()
        self.up, self.down = up, down

    def take(self, given: Any, moved: Counts | None = None) -> Rows:
        self.up.pass_through(given.ids[0][0])
        if moved is not None:
            moved.add(Counts(shared=given.x[0]))
        rows: Rows = given
        return rows

    def hand(self, rows: Any, carry: Carry, moved: Counts | None = None) -> tuple[Rows | None, Any]:
        self.down.pass_through(rows.ids[0][0])
        if moved is not None:
            moved.add(Counts(copied=10 * rows.x[0]))
        return rows, None


@dataclass(frozen=True, slots=True)
class Computing:
    """Computes when it may; `key` finds the gate, which is no parameter of a stage."""

    key: str

    def run(self, state: Any, a: Numbers) -> Numbers:
        GATES[self.key].pass_through(str(a.ids[0][0]))
        return a


GATES: dict[str, Gate] = {}


class Lane:
    """A lane as Dask feeds it: a task starts in a thread of its own once the one before has begun."""

    def __init__(self, key: str) -> None:
        self.log: list[str] = []
        self.up, self.run, self.down = (Gate(self.log, step) for step in ("prepares", "runs", "hands"))
        GATES[key] = self.run
        self.states = States()
        self.states.shelf = Held(self.up, self.down)
        self.key = key
        self.made: dict[str, Made] = {}
        self.threads: list[threading.Thread] = []
        self.slot = threading.Lock()

    def start(self, name: str, number: int = 1) -> None:
        value = Made(None, None, None, Times(0, 0), Numbers(((name,),), (number,)))
        task = Order(Computing(self.key), CPU, (("a", ((0, (0,)),)),), ((name,),))

        def work() -> None:
            self.slot.acquire()
            self.made[name] = self.states.run(task, [value], self.slot.release)

        self.threads.append(threading.Thread(target=work, daemon=True))
        self.threads[-1].start()

    def let(self, gate: Gate, *names: str) -> None:
        """Let these through, one after the other."""
        for name in names:
            assert gate.came[name].wait(WAIT)
            gate.may[name].set()

    def end(self) -> None:
        for thread in self.threads:
            thread.join(WAIT)
            assert not thread.is_alive()


@dataclass
class Together:
    """How many are inside; `met` is set when two are."""

    inside: int = 0
    met: threading.Event = field(default_factory=threading.Event)


together = Together()


@dataclass(frozen=True, slots=True)
class Meeting:
    """Waits a moment for somebody else to come in."""

    def run(self, state: Any, a: Numbers) -> Numbers:
        together.inside += 1
        if together.inside == 2:
            together.met.set()
        together.met.wait(0.1)
        together.inside -= 1
        return a


def test_a_lane_runs_one_batch_at_a_time() -> None:
    states = States()
    threads = [threading.Thread(target=states.run, args=(order(Meeting()), [numbers(a=1)])) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not together.met.is_set()


def test_the_next_batch_prepares_while_one_runs_and_the_value_before_is_handed_on() -> None:
    lane = Lane("overlap")
    for name in "abc":
        lane.start(name)
        lane.let(lane.up, name) if name != "c" else None
        lane.let(lane.run, name) if name == "a" else None
    for gate, name in ((lane.down, "a"), (lane.run, "b"), (lane.up, "c")):
        assert gate.came[name].wait(WAIT)
    assert (lane.up.inside, lane.run.inside, lane.down.inside) == (1, 1, 1)
    lane.let(lane.down, "a")
    lane.let(lane.run, "b")
    lane.let(lane.up, "c")
    lane.let(lane.run, "c")
    lane.let(lane.down, "b", "c")
    lane.end()
    assert {name: made.rows for name, made in lane.made.items()} == {
        name: Numbers(((name,),), (1,)) for name in "abc"
    }


def test_each_step_keeps_the_order_and_has_one_batch_at_a_time() -> None:
    lane, names = Lane("order"), "abcdef"
    for name in names:
        for gate in (lane.up, lane.run, lane.down):
            gate.may[name].set()
        lane.start(name)
        assert lane.up.came[name].wait(WAIT)
    lane.end()
    for step in ("prepares", "runs", "hands"):
        assert [said for said in lane.log if said.endswith(step)] == [f"{name} {step}" for name in names]
    assert (lane.up.most, lane.run.most, lane.down.most) == (1, 1, 1)


def test_inputs_of_no_more_than_two_batches_are_there() -> None:
    """One that runs and one behind it: a third takes nothing until the first leaves the lane."""
    lane = Lane("bound")
    for name in "abc":
        lane.start(name)
        lane.let(lane.up, name) if name != "c" else None
    assert lane.run.came["a"].wait(WAIT)
    assert not lane.up.came["c"].is_set()
    lane.let(lane.run, "a")
    assert lane.up.came["c"].wait(WAIT)
    lane.let(lane.down, "a")
    lane.let(lane.run, "b")
    lane.let(lane.down, "b")
    lane.let(lane.up, "c")
    lane.let(lane.run, "c")
    lane.let(lane.down, "c")
    lane.end()
    assert lane.log.index("a hands") < lane.log.index("b hands")


def test_bytes_are_counted_for_the_order_that_moves_them_though_two_overlap() -> None:
    lane = Lane("counts")
    for name, number in (("a", 1), ("b", 2)):
        lane.start(name, number)
        lane.let(lane.up, name)
    lane.let(lane.run, "a", "b")
    lane.let(lane.down, "a", "b")
    lane.end()
    moved = {name: made.times.moved for name, made in lane.made.items()}
    assert moved == {"a": Counts(1, 10), "b": Counts(2, 20)}


def test_seconds_of_the_three_steps_are_told_apart() -> None:
    lane = Lane("times")
    lane.start("a")
    lane.let(lane.up, "a")
    assert lane.run.came["a"].wait(WAIT)
    inside = time.monotonic()
    lane.let(lane.run, "a")
    assert lane.down.came["a"].wait(WAIT)
    after = time.monotonic()
    lane.let(lane.down, "a")
    lane.end()
    times = lane.made["a"].times
    assert times.start <= inside <= times.end <= after
    assert times.preparing > 0 < times.handing


def test_an_error_in_preparing_is_of_its_own_task_and_the_lane_goes_on() -> None:
    states = States()
    gone = Made(None, None, None, Times(0, 0), Handle(Place("file", "/nowhere", "x"), 0, 0, 0, 0, b"", ()))
    bad = states.run(order(Plus()), [gone])
    assert bad.fault is not None
    assert bad.rows is None
    assert bad.times.start == bad.times.end
    assert states.run(order(Plus()), [numbers(a=1)]).rows == numbers(a=2)


def test_an_error_in_handing_is_of_its_own_task_and_the_lane_goes_on() -> None:
    class Refusing(Shelf):
        def hand(self, rows: Any, carry: Carry, moved: Counts | None = None) -> tuple[Rows | None, Any]:
            if rows.x == (2,):
                raise OSError("no room")
            return super().hand(rows, carry, moved)

    states = States()
    states.shelf = Refusing()
    bad = states.run(order(Plus()), [numbers(a=1)])
    assert bad.fault is not None
    assert bad.fault.message == "OSError: no room"
    assert states.run(order(Plus()), [numbers(a=2)]).rows == numbers(a=3)


def test_the_begin_of_a_task_is_told_before_the_stage_runs() -> None:
    told: list[str] = []
    States().run(order(Plus(1, bad=1)), [numbers(a=1)], lambda: told.append("begun"))
    assert told == ["begun"]


def test_a_report_describes_a_value_without_holding_it() -> None:
    made = work(Collatz(), numbers(a=2, b=3), (0, 1))
    told = report(made)
    assert told.meta is not None
    assert told.meta.ids == (("a",), ("b",))
    assert told.meta.done == (True, False)
    assert isinstance(made.rows, Flags)
    assert told.meta.nbytes == made.rows.nbytes
    assert not any(isinstance(getattr(told, name), Rows) for name in told.__slots__)


meeting = threading.Barrier(2, timeout=10)


@dataclass(frozen=True, slots=True)
class Merging:
    """Batches that must be in it at once; each open is another object."""

    number: int = 0
    in_flight: ClassVar[int] = 2
    shares: ClassVar[tuple[str, ...]] = ()

    def open(self, device: Device) -> Any:
        return object()

    def run(self, state: Any, a: Numbers) -> Numbers:
        meeting.wait()
        return Numbers(a.ids, (id(state),) * len(a))


def test_batches_of_a_stage_that_merges_them_are_in_it_at_once_on_one_state_and_share_the_time() -> None:
    states, made = States(), dict[int, Made]()

    def run(number: int) -> None:
        made[number] = states.run(order(Merging(number)), [numbers(a=1)])

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    first, second = sorted((m.times for m in made.values()), key=lambda t: t.end)
    assert [m.fault for m in made.values()] == [None, None]
    assert made[0].rows == made[1].rows
    assert second.start >= first.end  # no second of the lane is counted twice
