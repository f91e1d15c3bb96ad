from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.errors import BadRowsError, ModelError, RowError
from pipeline.machine import Device
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
