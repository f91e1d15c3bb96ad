"""Policies by name: one file and one line each. See `pipeline.policy` for what they may decide."""

from __future__ import annotations

from pipeline.lookup import Table

NONE = "none"
"""What is named where no policy is wanted, not even those of the default."""
MODES = "modes"
"""The policy that wants lanes which share cores, so that the planner lays them out for it."""

POLICIES: Table = {
    "coalesce": "pipeline.policies.coalesce:Coalesce",
    "cut": "pipeline.policies.cut:Cut",
    "ends": "pipeline.policies.ends:Ends",
    "guided": "pipeline.policies.guided:Guided",
    "lengths": "pipeline.policies.lengths:Lengths",
    "modes": "pipeline.policies.modes:Modes",
    "pack": "pipeline.policies.pack:Pack",
    "rotate": "pipeline.policies.rotate:Rotate",
    "slices": "pipeline.policies.slices:Slices",
    "spill": "pipeline.policies.spill:Spill",
    "steal": "pipeline.policies.steal:Steal",
}
