from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from pipeline.errors import GraphError, PlanError
from pipeline.graph import Graph, node
from pipeline.lookup import load
from pipeline.program import Program, flatten
from pipeline.roles import MEMORY, ROLES, memory_line, memory_share, role
from pipeline.timeline import Span, Timeline
from pipeline.values import Chunks, Embeddings, Hits, Pages, Prompts, Queries
from stages import STAGES

EXPECTED = {
    "prepare": {
        "Embed", "IndexVectors", "IndexWords", "ListPages", "ReadPages", "Recognize", "Split", "StoreChunks",
    },
    "relevancy": {"BeginSteps", "EmbedQueries", "Fuse", "NextQueries", "Search", "SearchWords"},
    "retrieve": {"Collect", "Fetch"},
    "apply": {"AskServer", "Cite", "Decide", "Decode", "EndSteps", "Generate", "Prefill", "WritePrompt"},
}  # fmt: skip
"""Most by their ports; `BeginSteps` and `NextQueries`, which make queries, say it themselves."""


@pytest.mark.parametrize(("expected", "name"), [(r, n) for r in EXPECTED for n in sorted(EXPECTED[r])])
def test_our_stages_have_the_roles_of_the_paper(expected: str, name: str) -> None:
    assert role(load(STAGES[name])) == expected


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_a_role(name: str) -> None:
    assert role(load(STAGES[name])) in ROLES


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Changes the question before the search, and says so."""

    role: ClassVar[str] = "relevancy"

    def run(self, state: Any, queries: Queries) -> Queries:
        return queries


@dataclass(frozen=True, slots=True)
class Misspelt:
    role: ClassVar[str] = "retreive"

    def run(self, state: Any, queries: Queries) -> Queries:
        return queries


@dataclass(frozen=True, slots=True)
class Speaks:
    """Has a parameter that happens to be called so."""

    role: str = "user"

    def run(self, state: Any, queries: Queries) -> Prompts:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EmbedPages:
    def run(self, state: Any, pages: Pages) -> Embeddings:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Turned:
    def run(self, state: Any, vectors: Embeddings) -> Embeddings:
        return vectors


@dataclass(frozen=True, slots=True)
class Match:
    """Embeds chunks in the light of a question."""

    def run(self, state: Any, queries: Queries, chunks: Chunks) -> Embeddings:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OwnHits(Hits):
    """A user's own kind of hits."""


@dataclass(frozen=True, slots=True)
class Rerank:
    def run(self, state: Any, hits: Hits) -> OwnHits:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Rewrite(), "relevancy"),
        (Speaks(), "apply"),
        (EmbedPages(), "prepare"),
        (Turned(), "apply"),
        (Match(), "relevancy"),
        (Rerank(), "relevancy"),
    ],
)
def test_a_stage_of_the_user_says_its_role_or_its_ports_do(stage: Any, expected: str) -> None:
    assert role(stage) == expected


def test_a_role_that_does_not_exist_is_an_error_with_the_near_miss() -> None:
    with pytest.raises(GraphError, match="stage Misspelt: no role 'retreive'; did you mean 'retrieve'"):
        role(Misspelt())


def program() -> Program:
    nodes = (node("rewrite", Rewrite(), queries="questions"), node("speak", Speaks(), queries="rewrite"))
    return flatten(Graph({"questions": Queries}, nodes, {"out": "speak"}))


def test_busy_seconds_are_summed_by_role() -> None:
    spans = (Span("rewrite", "x", 0, 2, 1), Span("speak", "x", 2, 9, 1), Span("rewrite", "y", 0, 1, 1))
    found = memory_share(Timeline(10.0, spans), program())
    assert found == {"prepare": 0, "relevancy": 3, "retrieve": 0, "apply": 7}


def test_a_timeline_of_another_program_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'rewrte'.*did you mean 'rewrite'"):
        memory_share(Timeline(1.0, (Span("rewrte", "x", 0, 1, 1),)), program())


def test_the_line_gives_the_share_of_memory_processing_and_its_parts() -> None:
    shares = dict(zip((*MEMORY, "apply"), (8.0, 3.0, 1.2, 7.8), strict=True))
    said = "memory processing = 61 % of busy time: prepare 40 %, relevancy 15 %, retrieve 6 %"
    assert memory_line(shares) == said


def test_a_run_in_which_nothing_worked_has_no_memory_processing() -> None:
    assert memory_line(dict.fromkeys(ROLES, 0.0)).startswith("memory processing = 0 % of busy time")
