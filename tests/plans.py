"""Random plans: who may run what, at which speed, under which policies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pipeline.graph import Graph
from pipeline.lookup import load
from pipeline.machine import Device, Machine
from pipeline.plan import WINDOW_BYTES, Placement, Plan, place
from pipeline.policies import POLICIES
from pipeline.policy import Job, Lane
from pipeline.program import flatten

QUEUES = {name for name, path in POLICIES.items() if hasattr(load(path), "queue")}
"""Policies that say how rows wait; a run has at most one."""
CHOICES = [(name,) for name in POLICIES] + [
    pair for pair in itertools.permutations(POLICIES, 2) if not set(pair) <= QUEUES
]
"""Every policy, and every pair in either order that may be combined."""

speeds = st.sampled_from([0.0, 1e-3, 1e-2, 1e-1])


@st.composite
def plans(
    draw: Any,
    graph: Graph,
    machine: Machine,
    window: int = WINDOW_BYTES,
    policies: tuple[str, ...] = (),
) -> Plan:
    """A plan with some lanes of the machine for each step; the others could run it too, says its job."""
    plain = place(flatten(graph), machine, window, policies)
    lanes = st.sets(st.sampled_from(machine.names), min_size=1)
    placements = {}
    jobs = []
    for job in plain.jobs:
        chosen = draw(lanes)
        planned = tuple(name for name in machine.names if name in chosen)
        placements[job.name] = Placement(planned, job.batch)
        jobs.append(_job(draw, replace(job, planned=planned), machine))
    return replace(plain, placements=placements, jobs=tuple(jobs))


def _job(draw: Any, job: Job, machine: Machine) -> Job:
    lanes = {d.name: _lane(draw, d) for d in machine.devices}
    return replace(job, lanes=lanes, transfer=draw(st.sampled_from([0.0, 0.1])))


def _lane(draw: Any, device: Device) -> Lane:
    bound = draw(st.sampled_from(["compute", "memory", ""]))
    return Lane(device, draw(speeds), draw(speeds), bound, draw(speeds))
