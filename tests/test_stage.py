from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipeline.errors import GraphError
from pipeline.machine import Device
from pipeline.stage import (
    batch_length,
    check_outputs,
    check_portable,
    gathers,
    length_of,
    open_stage,
    ports,
    state_key,
)
from pipeline.values import Rows
from tests.toys import Fan, Flags, Join, Numbers, Plus, Strip, Total, numbers

CPU = Device("cpu:0")


def frozen(**members: Any) -> Any:
    """A stage class with these members; `run` passes numbers on where none is given."""

    def run(self: Any, state: Any, a: Numbers) -> Numbers:
        return a

    return dataclass(frozen=True)(type("Made", (), {"run": run, **members}))


def test_ports_are_the_annotations_of_run() -> None:
    assert ports(Join).inputs == {"a": Numbers, "b": Numbers}
    assert ports(Strip).inputs == {"a": Flags}
    assert ports(Strip).output is Numbers


def test_a_class_that_can_change_is_no_stage() -> None:
    with pytest.raises(GraphError, match="stage Local must be a frozen dataclass: add @dataclass"):
        ports(dataclass(type("Local", (), {"run": Plus.run})))


def test_a_class_without_run_is_no_stage() -> None:
    with pytest.raises(GraphError, match=r"stage Device has no method `run\(self, state, ...\)`"):
        ports(Device)


def no_annotation(self: Any, state: Any, a) -> Numbers:  # type: ignore[no-untyped-def]
    return a  # type: ignore[no-any-return]


def no_rows(self: Any, state: Any, a: Numbers) -> int:
    return 1


def unknown(self: Any, state: Any, a: Nowhere) -> Numbers:  # type: ignore[name-defined]  # noqa: F821
    return numbers()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (no_annotation, r"Made\.run: 'a' must be annotated with a Rows type, found None"),
        (no_rows, r"Made\.run: 'return' must be annotated with a Rows type, found <class 'int'>"),
        (unknown, "Made: cannot resolve the annotations of run: name 'Nowhere' is not defined"),
    ],
)
def test_a_port_without_rows_is_refused_by_name(run: Callable[..., Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        ports(frozen(run=run))


def test_a_parameter_and_a_port_of_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match=r"\['a'\] are both ports and parameters"):
        ports(frozen(__annotations__={"a": "int"}))


@pytest.mark.parametrize("name", ["stage", "loop", "device", "batch"])
def test_words_of_the_node_are_no_parameters(name: str) -> None:
    with pytest.raises(GraphError, match=rf"\['{name}'\] are words of the node itself"):
        ports(frozen(__annotations__={name: "int"}))


def test_a_port_that_node_could_not_connect_is_refused() -> None:
    def run(self: Any, state: Any, name: Numbers) -> Numbers:
        return name

    with pytest.raises(GraphError, match=r"\['name'\] are words of the node itself"):
        ports(frozen(run=run))


# state


def test_equal_stages_share_a_state_and_others_do_not() -> None:
    assert state_key(Plus(1)) == state_key(Plus(1))
    assert state_key(Plus(1)) != state_key(Plus(2))
    assert state_key(Plus(1)) != state_key(Total(1))


@dataclass(frozen=True, slots=True)
class Weights:
    """Opens a model; its answers differ by `k`, its weights do not."""

    model: str
    k: int = 1
    shares: ClassVar[tuple[str, ...]] = ("model",)

    def open(self, device: Device) -> str:
        return f"{self.model} on {device.name}"

    def run(self, state: str, a: Numbers) -> Numbers:
        return a


def test_stages_that_name_the_same_weights_share_them() -> None:
    assert state_key(Weights("m", 1)) == state_key(Weights("m", 2))
    assert state_key(Weights("m")) != state_key(Weights("n"))


def test_a_stage_without_open_has_no_state() -> None:
    assert open_stage(Plus(), CPU) is None
    assert open_stage(Weights("m"), CPU) == "m on cpu:0"


# what a stage owes


@pytest.mark.parametrize(
    ("stage", "made", "message"),
    [
        (Plus(), numbers(a=1), "Plus owes the 2 rows it got, in order; gave 1"),
        (Plus(), numbers(b=1, a=2), "Plus owes the 2 rows it got, in order; gave 2"),
        (Total(), numbers(a=1, b=2), "Total owes one row for all that it gathers; gave 2"),
        (Fan(), numbers(a=1), r"Fan gave row \('a',\), which is no child of a row it got"),
        (Fan(), Numbers((("a", 0), ("a", 0)), (1, 1)), "Fan gave a row twice"),
        (Fan(), Numbers((("c", 0),), (1,)), r"Fan gave row \('c', 0\), which is no child"),
    ],
)
def test_rows_that_a_stage_does_not_owe_are_refused(stage: Any, made: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_outputs(stage, (("a",), ("b",)), made)


def test_an_expanding_stage_may_give_nothing_for_a_row() -> None:
    check_outputs(Fan(), (("a",), ("b",)), Numbers((("b", 0), ("b", 1)), (1, 1)))


def test_gathering_by_nothing_is_not_no_gathering() -> None:
    assert gathers(Total(0)) == 0
    assert gathers(Plus()) is None


# what can travel (B53)


@dataclass(frozen=True, slots=True)
class Holding:
    what: Any = None

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


@pytest.mark.parametrize("value", [None, 1, "x", 0.5, Path("a"), ("a", 1)])
def test_plain_parameters_travel(value: Any) -> None:
    check_portable(Holding(value), "it")


@pytest.mark.parametrize(
    ("value", "kind"),
    [(threading.Lock(), "lock"), ((x for x in "ab"), "generator"), ([1], "list"), (lambda: 1, "function")],
)
def test_a_parameter_that_cannot_travel_is_named(value: Any, kind: str) -> None:
    with pytest.raises(GraphError, match=rf"stage 'it' \(Holding\): parameter 'what' holds a {kind}"):
        check_portable(Holding(value), "it")


def test_an_open_file_is_named(tmp_path: Path) -> None:
    with (
        (tmp_path / "x").open("w") as file,
        pytest.raises(GraphError, match="parameter 'what' holds a TextIOWrapper"),
    ):
        check_portable(Holding(file), "it")


def closing_over(what: Any) -> Any:
    @dataclass(frozen=True, slots=True)
    class Local:
        def run(self, state: Any, a: Numbers) -> Numbers:
            return numbers(x=len(what))

    return Local()


def test_a_class_in_a_function_travels_with_what_it_uses() -> None:
    check_portable(closing_over("text"), "it")


def test_what_a_class_in_a_function_closes_over_is_named() -> None:
    with pytest.raises(GraphError, match=r"stage 'it' \(.*Local\): its methods use 'what', a lock"):
        check_portable(closing_over(threading.Lock()), "it")


LOCK = threading.Lock()


def test_a_global_that_a_class_in_a_function_uses_is_named() -> None:
    @dataclass(frozen=True, slots=True)
    class Local:
        def open(self, device: Device) -> Any:
            return LOCK

        def run(self, state: Any, a: Numbers) -> Numbers:
            return a

    with pytest.raises(GraphError, match="its methods use 'LOCK', a lock"):
        check_portable(Local(), "it")


def test_a_class_that_cannot_travel_for_another_reason_is_named() -> None:
    @dataclass(frozen=True)
    class Local:
        lock: ClassVar[Any] = threading.Lock()

        def run(self, state: Any, a: Numbers) -> Numbers:
            return a

    with pytest.raises(GraphError, match=r"stage 'it' \(.*Local\): the class cannot travel to a worker"):
        check_portable(Local(), "it")


# lengths


@dataclass(frozen=True, slots=True)
class Words(Numbers):
    """Numbers that are as long as they are large."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.x


@dataclass(frozen=True, slots=True)
class Pads(Plus):
    """A batch is a rectangle."""

    pads: ClassVar[bool] = True


@pytest.mark.parametrize(("stage", "expected"), [(Plus(), 12), (Pads(), 27)])
def test_a_batch_is_as_long_as_its_rows_or_as_its_longest_for_each(stage: Plus, expected: float) -> None:
    assert batch_length(stage, (1, 9, 2)) == expected
    assert length_of(stage, {"a": Words((("a",), ("b",), ("c",)), (1, 9, 2))}) == expected
    assert batch_length(stage, ()) == length_of(stage, {}) == length_of(stage, {"a": numbers(a=1)}) == 0


def test_rows_that_others_share_do_not_make_a_batch_longer() -> None:
    batch = {"a": Words((("d", 1), ("d", 2)), (3, 4)), "b": Words((("d",),), (1000,)), "c": Words((), ())}
    assert length_of(Join(), batch) == 7
    assert length_of(Join(), {"a": Words(((),), (1000,))}) == 0
