"""An arena: memory that other processes map, from which a process hands out its values.

One segment, made as large as the budget at once and mapped once: pages that nobody touched take no memory,
and those that were touched stay warm for the next block (a first touch costs about eight times a reuse). It
is a memfd, which has no name and goes with the last process that maps it, however that dies; where others
may not open our descriptors it is a file in a folder that carries its owner (`pipeline.buffers.sweep`).

When not: values of a few KiB (send their bytes), readers in this process (hand on the value), other hosts.
"""

from __future__ import annotations

import fcntl
import mmap
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.buffers import segment, stripes
from pipeline.buffers.frames import places
from pipeline.buffers.handles import Place, StaleHandleError
from pipeline.buffers.identity import is_alive
from pipeline.buffers.layout import DEFAULT_SIZES, Layout, Slot
from pipeline.buffers.leases import DATA, DISK, FREE, MEMORY, SLOTS, Header, Later, locked, weakly
from pipeline.buffers.sweep import claim


@dataclass(slots=True)
class Block:
    """What the owner knows of a block. `due`: when it is needed next. `memory`: None once it is on disk."""

    slot: int
    generation: int
    nbytes: int
    due: int
    memory: Slot | None
    moving: bool = False
    file: Path | None = None
    released: bool = False


class Arena:
    """Blocks of one process, at most `budget` bytes of them in memory; for any number of threads.

    `folder`: where blocks go that are demoted to disk, by default where temporary files go; with `backing`,
    the very folder, which its maker removes. `sizes`: see `Layout`. `on_full`: called with the bytes that are
    lacking before `put` gives up; it may demote and release. `alive`: who of the readers still lives.
    `backing`: a segment of that size that another process has made, and that nobody has used yet (else
    ValueError): its blocks outlive this process. `threads`: how many may copy a large value.
    """

    def __init__(
        self,
        budget: int,
        folder: Path | None = None,
        sizes: tuple[int, ...] = DEFAULT_SIZES,
        on_full: Callable[[int], None] | None = None,
        alive: Callable[[str], bool] = is_alive,
        backing: Place | None = None,
        threads: int = 1,
    ) -> None:
        self.budget = budget
        self.on_full = on_full
        self._layout = Layout(budget, sizes)
        self._base, self._alive, self._lent, self._threads = folder, alive, backing is not None, threads
        self._folders: list[Path] = []
        self._fd, self.place = segment.open_or_create(backing, DATA + budget, self._folder)
        self._end = weakref.finalize(self, segment.give_up, self._fd, self._folders)
        self._memory = mmap.mmap(self._fd, DATA + budget)
        self._header = Header(self._memory)
        self._header.found(self.place.owner, secrets.randbits(30))
        self._blocks: dict[int, Block] = {}
        self._slots = list(range(SLOTS - 1, -1, -1))
        self._lingering: set[int] = set()
        self._later = Later(weakly(self._let_go))

    @property
    def used(self) -> int:
        """Bytes of the blocks in memory."""
        return self._layout.used

    @property
    def leased(self) -> int:
        """Bytes of the blocks in memory that somebody reads."""
        with self._later:
            leases = self._header.leases()
            return sum(b.memory.nbytes for b in self._blocks.values() if b.memory and leases[b.slot])

    def blocks(self) -> tuple[Block, ...]:
        """Those that their owner has not released, for who chooses what to demote."""
        with self._later:
            return tuple(b for b in self._blocks.values() if not b.released)

    def room(self, nbytes: int) -> bool:
        """Whether a block of so many bytes would fit the budget; its pages may still lie too scattered."""
        if self.used + nbytes > self.budget:
            self.collect()
        return self.used + nbytes <= self.budget

    def put(self, buffers: Sequence[memoryview], due: int = 0, kind: str = "") -> tuple[int, int, int]:
        """Copy buffers into a block, side by side (`frames.places`): its slot, generation and offset.

        Raises MemoryError that names budget, use and leases.
        """
        spots = places(b.nbytes for b in buffers)
        nbytes = sum(spots[-1]) if spots else 0
        block = self._open(nbytes, due, kind) or self._make_room(nbytes, due, kind)
        assert block.memory is not None
        offset = DATA + block.memory.offset
        for buffer, (start, size) in zip(buffers, spots, strict=True):
            if size:
                target = memoryview(self._memory)[offset + start : offset + start + size]
                stripes.copy(target, buffer, self._threads)
        return block.slot, block.generation, offset

    def release(self, slot: int, generation: int) -> None:
        """The producer needs the block no more; may be called from a finalizer.

        Raises StaleHandleError where it was released before.
        """
        self._find(slot, generation)
        self._later.add((slot, generation))

    def demote(self, slot: int, generation: int) -> None:
        """Move a block to disk: readers who come map the file; its memory is free when the others are done.

        Raises StaleHandleError, and OSError where the disk is full (the block then stays where it is).
        """
        with self._later:
            block = self._find(slot, generation)
            if block.memory is None or block.moving:
                return
            block.moving = True
            start = DATA + block.memory.offset
            self._header.folder = str(self._folder())
        file = segment.block_file(self._header.folder, slot, generation)
        try:  # where it is released meanwhile its bytes may be another's: then nobody reads the file
            segment.write(file, [(0, memoryview(self._memory)[start : start + block.nbytes])])
        except OSError:
            block.moving = False
            raise
        with self._later:
            if block.released:
                file.unlink()
            else:
                block.file = file
                self._tidy([block])

    def collect(self) -> None:
        """Free what was waiting for readers that are done, or dead."""
        with self._later:
            if self._end.alive:
                with locked(self._fd):
                    self._header.bury(self._alive)
                self._tidy([self._blocks[slot] for slot in self._lingering], fcntl.LOCK_EX)

    def warm(self, nbytes: int) -> None:
        """Fault in the first bytes, so that the first blocks cost what later ones do; for a side thread."""
        end = DATA + min(nbytes, self.budget)
        segment.populate(self._memory, DATA, end, lambda: self._end.alive)

    def close(self) -> None:
        """Give everything back, as at the end of the process; who still reads, keeps what it reads."""
        with self._later:
            self._header.close()
            self._end()

    def _find(self, slot: int, generation: int) -> Block:
        block = self._blocks.get(slot)
        if block is None or block.generation != generation or block.released:
            raise StaleHandleError(f"slot {slot} no longer holds generation {generation}: it was released")
        return block

    def _open(self, nbytes: int, due: int, kind: str) -> Block | None:
        """A block, if there is room for one."""
        with self._later:
            if self._lingering:
                self._tidy([self._blocks[slot] for slot in self._lingering])
            memory = self._layout.alloc(nbytes, kind) if self._slots else None
            if memory is None:
                return None
            slot = self._slots.pop()
            block = Block(slot, self._header.generation(slot), nbytes, due, memory)
            self._blocks[slot] = block
            self._header.mark(slot, block.generation, MEMORY)
            return block

    def _make_room(self, nbytes: int, due: int, kind: str) -> Block:
        """A block, after all that can be done. Raises MemoryError."""
        self.collect()
        block = self._open(nbytes, due, kind)
        if block is None and self.on_full is not None:
            self.on_full(nbytes)
            self.collect()
            block = self._open(nbytes, due, kind)
        if block is None:
            raise MemoryError(
                f"no room for {nbytes} bytes in an arena of {self.budget}: {self.used} in use, {self.leased} "
                f"of it leased, {len(self._blocks)} of {SLOTS} slots; give it more, or use smaller batches"
            )
        return block

    def _let_go(self, item: tuple[int, int]) -> None:
        slot, generation = item
        block = self._blocks.get(slot)
        if block is not None and block.generation == generation and not block.released:
            block.released = True
            self._tidy([block])

    def _tidy(self, blocks: Sequence[Block], how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> None:
        """Tell readers what became of these blocks, and free what nobody reads. Under our own lock.

        Waits for the lock among processes only where `how` says so: a finalizer may come here amid our own
        taking of a lease. Where that is held, the next one to come here goes on.
        """
        self._lingering.update(b.slot for b in blocks)
        if not self._end.alive:
            return
        with locked(self._fd, how) as mine:
            if not mine:
                return
            for block in blocks:
                gone = block.generation + block.released
                self._header.mark(block.slot, gone, FREE if block.released else DISK)
            leases = self._header.leases()
        for block in blocks:
            if not leases[block.slot]:
                self._free(block)

    def _free(self, block: Block) -> None:
        if block.memory is not None:
            self._layout.free(block.memory)
            block.memory = None
        self._lingering.discard(block.slot)
        if block.released:
            if block.file is not None:
                block.file.unlink(missing_ok=True)
            del self._blocks[block.slot]
            self._slots.append(block.slot)

    def _folder(self) -> Path:
        """Where blocks go on disk, made when it is first needed."""
        if self._lent and self._base is not None:
            self._base.mkdir(0o700, exist_ok=True)
            return self._base
        if not self._folders:
            self._folders.append(claim(self._base))
        return self._folders[0]
