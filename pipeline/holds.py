"""What is still needed: values by the number of rows that someone will read, inputs by what they await."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import repeat
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import Failure, RowId
from pipeline.events import Emit, Free, Instruction, Key, Meta, Part
from pipeline.policy import Waiting
from pipeline.program import Program
from pipeline.rows import row_order

LIGHT = 8
"""How many times less than it reads a step makes that may run however much waits: what it adds is bounded."""


class Item(NamedTuple):
    """A row of a value. `length`: its cost hint; `done`: it wants to leave its loop; `mate`: see `Meta`."""

    key: Key
    row: int
    length: int = 0
    done: bool = False
    mate: Hashable = None


Held = TypeVar("Held", Item, Failure, Item | Failure)
What = TypeVar("What")


class Longest(Generic[What]):
    """The plain queue: the longest first, so that rows of like length share a batch; then what came first.

    One line of rows for each length that occurs, and a heap of those lengths.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[What]] = {}
        self._lengths: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Waiting[What]) -> None:
        """One more row."""
        line = self._lines.get(row.length)
        if line is None:
            line = self._lines[row.length] = deque()
            heappush(self._lengths, -row.length)
        line.append(row.what)
        self._count += 1

    def take(self, most: int, lane: str) -> list[What]:
        """The next `most`, or as many as there are; all lanes are alike."""
        found: list[What] = []
        while len(found) < most and self._lengths:
            line = self._lines[-self._lengths[0]]
            while line and len(found) < most:
                found.append(line.popleft())
            if not line:
                del self._lines[-heappop(self._lengths)]
        self._count -= len(found)
        return found


class Holds:
    """Counts the rows of each value that will still be read; says `Free` when none is left."""

    def __init__(self, said: list[Instruction]) -> None:
        self.live_bytes = 0
        self._said = said
        self._counts: dict[Key, int] = defaultdict(int)
        self._sizes: dict[Key, tuple[int, int]] = {}

    def add(self, key: Key, nbytes: int, rows: int) -> None:
        """A new value, held once by the caller, who releases it after handing its rows on."""
        self._sizes[key] = (nbytes, rows)
        self.live_bytes += nbytes
        self._counts[key] += 1

    def keep(self, item: Held) -> Held:
        """Keep the row's value until it is released; a failure has none."""
        if isinstance(item, Item):
            self._counts[item.key] += 1
        return item

    def keep_all(self, items: Iterable[Item]) -> None:
        """Keep many rows."""
        for key, number in Counter(item.key for item in items).items():
            self._counts[key] += number

    def release_all(self, items: Collection[Item]) -> None:
        """Undo a `keep` of each."""
        if len(items) == 1:  # by far the most frequent
            self.drop(next(iter(items)).key)
            return
        for key, number in Counter(item.key for item in items).items():
            self.drop(key, number)

    def drop(self, key: Key, number: int = 1) -> None:
        """Undo `add`, or so many of `keep`."""
        self._counts[key] -= number
        if not self._counts[key]:
            del self._counts[key]
            self.live_bytes -= self._sizes.pop(key)[0]
            self._said.append(Free(key))

    def weigh(self, part: Part) -> int:
        """Bytes of some rows of a value, each taken to weigh the same."""
        nbytes, rows = self._sizes[part.key]
        return nbytes * len(part.rows) // rows


class Weights:
    """Bytes that the steps of a run made of the bytes that they read, as seen so far."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = defaultdict(int)
        self._read: dict[str, int] = defaultdict(int)
        self._made: dict[str, int] = defaultdict(int)

    def see(self, step: str, rows: int, read: int, made: int) -> None:
        """A batch is done."""
        self._rows[step] += rows
        self._read[step] += read
        self._made[step] += made

    def expected(self, step: str, rows: int) -> int:
        """Bytes that so many rows will become: 0 before the first batch is done."""
        return self._made[step] * rows // max(self._rows[step], 1)

    def is_light(self, step: str) -> bool:
        """Whether a step makes little of what it reads, so that running it makes room sooner or later."""
        return bool(self._rows[step]) and self._made[step] * LIGHT <= self._read[step]


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
        ordered = sorted(found, key=row_order) if len(found) > 1 else found
        items = [found[row] for row in ordered]
        failures = dict.fromkeys(i for i in items if isinstance(i, Failure))
        rows = [i for i in items if isinstance(i, Item)]
        self._said.append(Emit(output, root, parts_of(rows), tuple(failures)))
        self._holds.release_all(rows)


def length_of(ports: Mapping[str, tuple[Item, ...]]) -> int:
    """The cost hint of an instance: that of the longest row it reads."""
    longest = 0
    for items in ports.values():
        for i in items:
            if i.length > longest:
                longest = i.length
    return longest


def mate_of(ports: Mapping[str, tuple[Item, ...]]) -> Hashable:
    """What an instance would like to share a lane with: what the first row that says anything does."""
    for items in ports.values():
        if items and items[0].mate is not None:
            return items[0].mate
    return None


def parts_of(items: Iterable[Item]) -> tuple[Part, ...]:
    """The items in order, neighbours of one value together, no row of a value twice in a part."""
    parts: list[tuple[Key, list[int]]] = []
    for item in items:
        if parts and parts[-1][0] == item.key:
            parts[-1][1].append(item.row)
        else:
            parts.append((item.key, [item.row]))
    return tuple(Part(key, tuple(rows)) for key, rows in parts)


def items_of(key: Key, meta: Meta) -> list[Item]:
    """The rows of a value."""
    rows = range(len(meta.ids))
    lengths = meta.lengths or repeat(0, len(rows))
    done = meta.done or repeat(False, len(rows))
    keys = meta.keys or repeat(None, len(rows))
    return list(map(Item, repeat(key), rows, lengths, done, keys))
