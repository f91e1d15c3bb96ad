"""What is to be done: stages, typed edges, loops.

A `Graph` that exists is well formed: names are known, ports fit, there is no cycle but in a `Loop`, and
every node is used. How rows meet (which id is a prefix of which) is checked where the graph is
flattened, since a loop's body cannot know it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import GraphError
from pipeline.lookup import near_miss
from pipeline.node import Node, check_name, in_order, node
from pipeline.stage import NODE_KEYS, check_portable, ports
from pipeline.values import Rows

__all__ = ["Graph", "Loop", "Node", "node", "node_inputs", "node_outputs"]


@dataclass(frozen=True, slots=True)
class Loop:
    """A body that rows go through again and again, each row until it is done.

    `carry`: body input to the body output that is its value in the next round; the other inputs stay.
    `until`: the body output whose column `done` (bool [B]) says which rows leave; after `max_rounds`
    rounds all do. The loop's outputs are the body's, as of each row's last round.
    """

    body: Graph
    carry: Mapping[str, str]
    until: str
    max_rounds: int

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise GraphError(f"max_rounds must be 1 or more, found {self.max_rounds!r}", "max_rounds")
        taken = {*NODE_KEYS, "name", "carry", "until", "max_rounds"} & set(self.body.inputs)
        if taken:
            raise GraphError(
                f"inputs {sorted(taken)} are words of the loop itself; rename them", "loop", "inputs"
            )
        if not self.carry:
            raise GraphError(
                "a loop must carry something from round to round: `carry: {input: output}`", "carry"
            )
        for name, output in self.carry.items():
            self._check_carry(name, output)
        if "done" not in _field_names(self._output(self.until, "until")):
            raise GraphError(f"until: the rows of {self.until!r} have no column `done`", "until")

    def _check_carry(self, name: str, output: str) -> None:
        if name not in self.body.inputs:
            miss = near_miss(name, self.body.inputs)
            raise GraphError(f"carry: the body has no input {name!r}{miss}", "carry", name)
        given, wanted = self._output(output, "carry"), self.body.inputs[name]
        if not issubclass(given, wanted):
            raise GraphError(
                f"carry: input {name!r} takes {wanted.__name__}, output {output!r} gives {given.__name__}",
                "carry",
                name,
            )

    def _output(self, name: str, key: str) -> type[Rows]:
        if name not in self.body.outputs:
            raise GraphError(
                f"{key}: the body has no output {name!r}{near_miss(name, self.body.outputs)}", key
            )
        return self.body.type_of(self.body.outputs[name])


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes between named inputs and outputs.

    `inputs`: name to the type of its rows; `outputs`: name to the node (or `loop.output`) behind it.
    `policies`: what the Scheduler follows beyond its own rules, by name (see `pipeline.policies`).
    Nodes are kept in an order in which each follows what it reads. Raises GraphError.
    """

    inputs: Mapping[str, type[Rows]]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, str]
    policies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "policies", tuple(self.policies))
        self._check_names()
        for n in self.nodes:
            self._check_inputs(n)
        object.__setattr__(self, "nodes", in_order(self.nodes))
        for n in self.nodes:
            self._check_types(n)
        for output, ref in self.outputs.items():
            self._resolve(ref, f"output {output!r}", "outputs", output)
        self._check_used()
        for n in self.nodes:
            self._check_stage(n)

    def __getitem__(self, name: str) -> Node:
        for n in self.nodes:
            if n.name == name:
                return n
        raise GraphError(f"no node {name!r}{near_miss(name, (n.name for n in self.nodes))}", "stages", name)

    def type_of(self, ref: str) -> type[Rows]:
        """The type of the rows that `ref` (an input, a node, or `loop.output`) stands for."""
        return self._resolve(ref, "reference")

    def upstream(self, *names: str) -> Iterator[Node]:
        """The nodes that feed the refs `names`, themselves included, each once, in order."""
        wanted = {n.partition(".")[0] for n in names}
        found = []
        for n in reversed(self.nodes):
            if n.name in wanted:
                wanted |= {ref.partition(".")[0] for ref in n.inputs.values()}
                found.append(n)
        return reversed(found)

    def _check_names(self) -> None:
        for name in self.inputs:
            check_name(name, "inputs")
        seen = set(self.inputs)
        for n in self.nodes:
            if n.name in seen:
                raise GraphError(f"two nodes or inputs are called {n.name!r}", "stages", n.name)
            seen.add(n.name)
        if not self.outputs:
            raise GraphError("a graph needs an output: `outputs: {answers: some_node}`", "outputs")

    def _check_inputs(self, n: Node) -> None:
        wanted = node_inputs(n.stage)
        for port in n.inputs:
            if port not in wanted:
                raise GraphError(
                    f"node {n.name!r}: {_kind(n.stage)} has no port {port!r}{near_miss(port, wanted)}",
                    "stages", n.name, port,
                )  # fmt: skip
        for port, kind in wanted.items():
            if port not in n.inputs:
                raise GraphError(
                    f"node {n.name!r}: port {port!r} ({kind.__name__}) is not connected: add `{port}: NODE`",
                    "stages", n.name,
                )  # fmt: skip
        for port, ref in n.inputs.items():
            self._known(ref, f"node {n.name!r}, port {port!r}", "stages", n.name, port)

    def _known(self, ref: str, where: str, *at: str) -> str:
        """The name of the input or node that `ref` names."""
        base = ref.partition(".")[0]
        names = {*self.inputs, *(n.name for n in self.nodes)}
        if base not in names:
            raise GraphError(f"{where}: no node or input {ref!r}{near_miss(base, names)}", *at)
        return base

    def _resolve(self, ref: str, where: str, *at: str) -> type[Rows]:
        base = self._known(ref, where, *at)
        if base in self.inputs and base == ref:
            return self.inputs[base]
        if base in self.inputs or ref.endswith("."):
            raise GraphError(f"{where}: no node or input {ref!r}; did you mean {base!r}?", *at)
        found = node_outputs(self[base].stage)
        port = ref.partition(".")[2] or (next(iter(found)) if len(found) == 1 else "")
        if port not in found:
            miss = (
                near_miss(port, found) if port else f"; say which: {', '.join(f'{base}.{o}' for o in found)}"
            )
            raise GraphError(f"{where}: {base!r} has no output {port!r}{miss}", *at)
        return found[port]

    def _check_types(self, n: Node) -> None:
        for port, wanted in node_inputs(n.stage).items():
            given = self._resolve(n.inputs[port], f"node {n.name!r}, port {port!r}", "stages", n.name, port)
            if not issubclass(given, wanted):
                raise GraphError(
                    f"node {n.name!r}: port {port!r} takes {wanted.__name__}, "
                    f"{n.inputs[port]!r} gives {given.__name__}",
                    "stages", n.name, port,
                )  # fmt: skip

    def _check_used(self) -> None:
        used = {n.name for n in self.upstream(*self.outputs.values())}
        for n in self.nodes:
            if n.name not in used:
                raise GraphError(
                    f"nothing uses node {n.name!r}: connect it, name it in outputs, or remove it",
                    "stages", n.name,
                )  # fmt: skip
        read = {r for n in self.nodes for r in n.inputs.values()} | set(self.outputs.values())
        for name in self.inputs:
            if name not in read:
                raise GraphError(f"nothing uses input {name!r}: connect it or remove it", "inputs", name)

    def _check_stage(self, n: Node) -> None:
        if isinstance(n.stage, Loop):
            return
        check_portable(n.stage, n.name)
        check = getattr(n.stage, "check", None)
        if check is not None:
            try:
                check(tuple(u.stage for u in self.upstream(n.name) if u is not n))
            except GraphError as error:
                raise GraphError(f"node {n.name!r}: {error}", "stages", n.name) from None


def node_inputs(stage: Any) -> Mapping[str, type[Rows]]:
    """The input ports of a stage or loop."""
    return stage.body.inputs if isinstance(stage, Loop) else ports(type(stage)).inputs


def node_outputs(stage: Any) -> Mapping[str, type[Rows]]:
    """The outputs of a stage (one, without a name) or loop."""
    if isinstance(stage, Loop):
        return {name: stage.body.type_of(ref) for name, ref in stage.body.outputs.items()}
    return {"": ports(type(stage)).output}


def _kind(stage: Any) -> str:
    return "the loop" if isinstance(stage, Loop) else type(stage).__name__


def _field_names(rows: type[Rows]) -> tuple[str, ...]:
    return tuple(getattr(rows, "__dataclass_fields__", {}))
