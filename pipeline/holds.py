"""What is still needed: values by the number of rows that someone will read, inputs by what they await."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import Failure, RowId
from pipeline.events import Emit, Free, Instruction, Key, Part
from pipeline.program import Program
from pipeline.rows import row_order


class Item(NamedTuple):
    """A row of a value. `length`: its cost hint; `done`: it wants to leave its loop."""

    key: Key
    row: int
    length: int = 0
    done: bool = False


Held = TypeVar("Held", Item, Failure, Item | Failure)
What = TypeVar("What")


class Ready(Generic[What]):
    """What can run: the longest first, so that rows of like length share a batch; then what came first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, What]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, length: int, what: What) -> None:
        """One more, of this length."""
        heappush(self._heap, (-length, next(self._numbers), what))

    def take(self, most: int) -> list[What]:
        """The next `most`, or as many as there are; they are ready no more."""
        return [heappop(self._heap)[2] for _ in range(min(most, len(self._heap)))]


class Holds:
    """Counts the rows of each value that will still be read; says `Free` when none is left."""

    def __init__(self, said: list[Instruction]) -> None:
        self.live_bytes = 0
        self._said = said
        self._counts: dict[Key, int] = defaultdict(int)
        self._sizes: dict[Key, int] = {}

    def add(self, key: Key, nbytes: int) -> None:
        """A new value, held once by the caller, who releases it after handing its rows on."""
        self._sizes[key] = nbytes
        self.live_bytes += nbytes
        self._counts[key] += 1

    def keep(self, item: Held) -> Held:
        """Keep the row's value until it is released; a failure has none."""
        if isinstance(item, Item):
            self._counts[item.key] += 1
        return item

    def release(self, item: Item | Failure) -> None:
        """Undo one `keep`."""
        if isinstance(item, Item):
            self.drop(item.key)

    def drop(self, key: Key) -> None:
        """Undo `add`."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self.live_bytes -= self._sizes.pop(key)
            self._said.append(Free(key))


class Outlets:
    """The outputs: collects the rows of each input, and says `Emit` once it has them all.

    With `ordered`, inputs leave in the order in which they came, else as they finish.
    """

    def __init__(self, program: Program, ordered: bool, said: list[Instruction], holds: Holds) -> None:
        self.by_producer: dict[str, list[str]] = defaultdict(list)
        for output, producer in program.outputs.items():
            self.by_producer[producer].append(output)
        self.depths = {o: 1 if root else 0 for o, root in program.roots.items()}
        self._ordered = ordered
        self._said = said
        self._holds = holds
        self._found: dict[str, dict[RowId, dict[RowId, Item | Failure]]] = {o: {} for o in program.outputs}
        self._waiting: dict[str, dict[RowId, bool]] = {o: {} for o in program.outputs}
        self._order: dict[str, deque[RowId]] = {}

    def expect(self, output: str, roots: tuple[RowId, ...]) -> None:
        """The inputs that `output` owes."""
        self._waiting[output] = dict.fromkeys(roots, False)
        self._order[output] = deque(roots)

    def record(self, producer: str, row: RowId, item: Item | Failure) -> None:
        """A row of `producer`, which may be an output."""
        for output in self.by_producer.get(producer, ()):
            found = self._found[output].setdefault(row[: self.depths[output]], {})
            found[row] = self._holds.keep(item)

    def open(self, output: str, root: RowId) -> list[RowId]:
        """The inputs still owed under `root`, which may be shorter than they are."""
        waiting = self._waiting[output]
        if len(root) >= self.depths[output]:
            at = root[: self.depths[output]]
            return [at] if waiting.get(at) is False else []
        return [r for r, closed in waiting.items() if not closed]

    def close(self, output: str, root: RowId) -> None:
        """`root` has all that it will get at `output`."""
        waiting = self._waiting[output]
        waiting[root] = True
        if not self._ordered:
            self._emit(output, root)
            return
        order = self._order[output]
        while order and waiting[order[0]]:
            self._emit(output, order.popleft())

    @property
    def empty(self) -> bool:
        """Whether everything has left."""
        return not any(self._waiting.values())

    def _emit(self, output: str, root: RowId) -> None:
        del self._waiting[output][root]
        found = self._found[output].pop(root, {})
        items = [found[row] for row in sorted(found, key=row_order)]
        failures = dict.fromkeys(i for i in items if isinstance(i, Failure))
        parts = parts_of([i for i in items if isinstance(i, Item)])
        self._said.append(Emit(output, root, parts, tuple(failures)))
        for item in items:
            self._holds.release(item)


def length_of(ports: Mapping[str, tuple[Item, ...]]) -> int:
    """The cost hint of an instance: that of the longest row it reads."""
    return max((i.length for items in ports.values() for i in items), default=0)


def parts_of(items: list[Item]) -> tuple[Part, ...]:
    """The items in order, neighbours of one value together, no row of a value twice in a part."""
    parts: list[tuple[Key, list[int]]] = []
    for item in items:
        if parts and parts[-1][0] == item.key:
            parts[-1][1].append(item.row)
        else:
            parts.append((item.key, [item.row]))
    return tuple(Part(key, tuple(rows)) for key, rows in parts)
