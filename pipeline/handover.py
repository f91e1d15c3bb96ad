"""How the values of each step reach those who read them: the cheapest way that applies. Pure.

    reference   all readers are in the process that made the value: they get the very object
    arena       all are on one host: the value is written once into shared memory, and read there
    bytes       otherwise: Dask sends it

Values that hold tensors of a GPU (`leaves` of their stage, made on a CUDA lane) have ways of their own:

    cuda        all on that GPU, in one process: the tensors themselves, with an event to wait for
    peer        all on GPUs with a direct link, in one process: copied from one to the other
    staged      in one process otherwise: by pinned memory of the host, on streams beside the work
    cuda-ipc    all on that GPU, in several processes: its memory is mapped

Where none of these applies such values are brought to the host and go by arena or bytes, and the way says
why. A value is read by the lanes that its readers are planned on, and by the client where it is an output. A
step with lanes in several processes has readers in others, unless it has none but outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pipeline.buffers.device import Gpu, View, refusal
from pipeline.machine import HOST, Device, Machine
from pipeline.plan import Plan, Way
from pipeline.program import Program, Turn
from pipeline.stage import leaves

REFERENCE, ARENA, BYTES = "reference", "arena", "bytes"
CUDA, PEER, STAGED, CUDA_IPC = "cuda", "peer", "staged", "cuda-ipc"
ON_GPU = (CUDA, PEER, STAGED, CUDA_IPC)
CLIENT = ""
"""The client among the lanes."""
HERE = "here"
"""This host, and this process, in a plan."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a lane, or the client, lives. `gpu`: the UUID of a CUDA lane's; `view`: what its process sees."""

    host: str
    process: str
    gpu: str = ""
    view: View | None = None


def settled(program: Program, plan: Plan, apart: bool = False, seen: View | None = None) -> Plan:
    """The plan with all lanes in this process or, `apart`, in one each, and the ways that follow from it.

    `seen`: what this process sees of its GPUs; without it, as of a machine that is not here, each CUDA lane
    is taken to have one that processes may share.
    """
    homes = planned_homes(plan.machine, apart, seen)
    return replace(plan, apart=apart, ways=carriers(program, plan, homes))


def planned_homes(machine: Machine, apart: bool, seen: View | None = None) -> dict[str, Home]:
    """Where lanes and client will live. A lane that a cluster calls by its address is on the host it says.

    All others are on this host, where all processes see the same GPUs.
    """
    found = {CLIENT: Home(HERE, HERE)}
    view = seen or View(HERE, tuple(Gpu(d.torch) for d in machine.devices if d.kind == "cuda"))
    for d in machine.devices:
        protocol, _, address = d.name.rpartition("://")
        host = address.rpartition(":")[0] if protocol not in ("", "inproc") else HERE
        process = d.name if apart and protocol != "inproc" else HERE
        gpu = d.torch if seen is None else gpu_of(d, seen)
        found[d.name] = Home(host, process, gpu, view) if d.kind == "cuda" else Home(host, process)
    return found


def gpu_of(device: Device, view: View) -> str:
    """The UUID of a CUDA lane's GPU, as its process sees it; empty for a CPU, and where it does not."""
    at = device.torch.partition(":")[2]
    return view.gpus[int(at)].uuid if at and int(at) < len(view.gpus) else ""


def carriers(program: Program, plan: Plan, homes: Mapping[str, Home]) -> dict[str, Way]:
    """The way of each step's values, and of what comes in, which is Dask's to hand on or to send.

    `homes`: of every lane, and of the client under `CLIENT`.
    """
    makers: dict[str, tuple[str, ...]] = dict.fromkeys(program.sources, (CLIENT,))
    makers |= {s.name: plan.placements[s.name].devices for s in program.steps}
    far = {s.name for s in program.steps if leaves(s.stage) == "device"}
    readers = _readers(program)
    found = {}
    for name, lanes in makers.items():
        takers = {lane for r in readers[name] for lane in _lanes(r, plan)}
        there = {lane: homes[lane] for lane in sorted({*lanes, *takers})}
        if name in far and any(homes[lane].gpu for lane in lanes):
            found[name] = _device_way(there, plan.machine)
        else:
            found[name] = Way(_way([*there.values()], shared=name not in program.sources))
    return found


def differences(planned: Mapping[str, Way], real: Mapping[str, Way]) -> list[str]:
    """A sentence for each way that is another than was planned."""
    return [
        f"values of {name} go by {way.name}, not by {planned[name].name} as planned"
        + (f": {way.why}" if way.why else "")
        for name, way in real.items()
        if name in planned and planned[name].name != way.name
    ]


def edge_ways(program: Program, ways: Mapping[str, Way], producer: str) -> list[Way]:
    """The ways of the rows of a producer; several where a loop hands on what different steps made."""
    return list(dict.fromkeys(ways[maker] for maker in sorted(_makers(producer, _aliases(program)))))


def lossy(program: Program, ways: Mapping[str, Way]) -> set[str]:
    """The steps whose vectors may travel as int8, where the user allows it: by bytes, and to no output."""
    readers = _readers(program)
    return {step for step, way in ways.items() if way.name == BYTES and CLIENT not in readers[step]}


def _lanes(reader: str, plan: Plan) -> tuple[str, ...]:
    return (CLIENT,) if reader == CLIENT else plan.placements[reader].devices


def _together(homes: Sequence[Home]) -> bool:
    """Whether all are one process."""
    return len({(h.host, h.process) for h in homes}) == 1


def _way(homes: Sequence[Home], shared: bool = True) -> str:
    if _together(homes):
        return REFERENCE
    return ARENA if shared and len({h.host for h in homes}) == 1 else BYTES


def _device_way(lanes: Mapping[str, Home], machine: Machine) -> Way:
    """The way of tensors of a GPU among these lanes."""
    homes = [*lanes.values()]
    if not _together(homes):
        why = _on_host(lanes) or _no_mapping(lanes)
        return Way(_way(homes), why, True) if why else Way(CUDA_IPC, device=True)
    if len({h.gpu for h in homes}) == 1:
        return Way(CUDA, device=True)
    why = _on_host(lanes) or _no_link(lanes, machine)
    return Way(STAGED, why, True) if why else Way(PEER, device=True)


def _on_host(lanes: Mapping[str, Home]) -> str:
    """Which lanes have no GPU; empty where all have."""
    found = [lane or "the client" for lane, home in lanes.items() if not home.gpu]
    return f"{' and '.join(found)} {'has' if len(found) == 1 else 'have'} no GPU" if found else ""


def _no_mapping(lanes: Mapping[str, Home]) -> str:
    """Why these processes cannot map the memory of their GPU; empty where they can."""
    if len({home.gpu for home in lanes.values()}) > 1:
        return f"{' and '.join(lanes)} are on several GPUs, and only processes on one map its memory"
    for one, two in combinations(lanes, 2):
        a, b = lanes[one], lanes[two]
        if a.view is None or b.view is None:
            return f"nobody has said which GPUs {one} and {two} see"
        if not _together([a, b]) and (why := refusal(a.view, b.view, a.gpu)):
            return why
    return ""


def _no_link(lanes: Mapping[str, Home], machine: Machine) -> str:
    """Why tensors cannot be copied from GPU to GPU; empty where they can."""
    for a, b in combinations(lanes, 2):
        pools = (machine.device(a).pool, machine.device(b).pool)
        if lanes[a].gpu != lanes[b].gpu and not {pools, pools[::-1]} & set(machine.links):
            return f"{a} and {b} have no link but through the {HOST}"
    return ""


def _readers(program: Program) -> dict[str, set[str]]:
    """The steps that read each step's rows, through loops too; `CLIENT` for outputs."""
    direct: dict[str, set[str]] = {name: set() for name in program.sources}
    direct |= {s.name: set() for s in program.steps}
    aliases = _aliases(program)
    for s in program.steps:
        for e in s.edges:
            for maker in _makers(e.producer, aliases):
                direct.setdefault(maker, set()).add(s.name)
    for producer in program.outputs.values():
        for maker in _makers(producer, aliases):
            direct.setdefault(maker, set()).add(CLIENT)
    return direct


def _aliases(program: Program) -> dict[str, set[str]]:
    """Producers that only hand on what others made: the entries and outputs of loops."""
    found: dict[str, set[str]] = {}
    for turn in (n for n in program.nodes if isinstance(n, Turn)):
        for output, inner in turn.outputs.items():
            found.setdefault(output, set()).add(inner)
        for entry, carried in turn.carried.items():
            port = entry.rpartition("/")[2]
            first = next(e.producer for e in turn.edges if e.port == port)
            found.setdefault(entry, set()).update({carried, first})
    return found


def _makers(producer: str, aliases: Mapping[str, set[str]]) -> set[str]:
    """The steps and sources that rows of a producer come from."""
    found, todo, seen = set(), [producer], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in aliases:
            todo += sorted(aliases[name])
        else:
            found.add(name)
    return found
