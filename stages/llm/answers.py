"""What `Generate` and `Decode` have in common: the checks of their parameters, prompts in, rows out.

How answers come about: `max_new_tokens` at most; `temperature` 0 is greedy, else drawn by `seed` among the
most probable that reach `top_p`; `stop`: texts that end an answer; `json_schema` or `regex`: what the whole
answer must match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.errors import BadRowsError, GraphError, RidgewayError, RowError, RowId
from pipeline.stage import ports
from pipeline.values import Completions, KVCache
from stages.llm.constrain import Constraint
from stages.llm.decoder import Ask, Said
from stages.llm.opened import Opened
from stages.llm.sampling import Sampling

__all__ = [
    "asks_of", "check_housed", "check_read", "check_room", "check_speaker", "completions", "too_long",
]  # fmt: skip

_SKIPPED = Said((), "", "skipped")
_FAULTS = {
    "invalid": RowError("model", "the model computed numbers that are not finite; try dtype 'float32'"),
    "grammar": RowError("model", "the answer cannot be held to its form; simplify json_schema or regex"),
    "memory": RowError(
        "memory",
        "its cache and answer do not fit into the memory for caches; raise cache_gib, or shorten the prompt",
    ),
}


def check_speaker(stage: Any) -> None:
    """Raise RidgewayError for what cannot be."""
    name = type(stage).__name__
    if stage.max_new_tokens < 1:
        raise RidgewayError(f"{name}: max_new_tokens is {stage.max_new_tokens!r}; give at least 1")
    if stage.json_schema and stage.regex:
        raise RidgewayError(f"{name}: json_schema and regex both say what the answer looks like; give one")
    try:
        _sampling(stage)
        _constraint(stage)
    except RidgewayError as error:
        raise RidgewayError(f"{name}: {error}") from error


def check_room(stage: Any, upstream: tuple[Any, ...]) -> None:
    """Raise GraphError where the prompts leave less room than the answers may take."""
    for other in upstream:
        reserve = getattr(other, "reserve", stage.max_new_tokens)
        if reserve < stage.max_new_tokens:
            raise GraphError(
                f"max_new_tokens is {stage.max_new_tokens}, but {type(other).__name__} keeps only "
                f"{reserve} tokens free for the answer; raise its reserve, or lower max_new_tokens"
            )


def check_read(stage: Any, upstream: tuple[Any, ...]) -> None:
    """Raise GraphError where nothing before this stage reads prompts for its model."""
    readers = [other for other in upstream if ports(type(other)).output is KVCache]
    for key in ("model", "dtype", "quantize"):
        theirs, own = {getattr(r, key, None) for r in readers}, getattr(stage, key)
        if readers and own not in theirs:
            raise GraphError(
                f"prompts are read with {key} {min(map(str, theirs))!r}, {type(stage).__name__} goes on with "
                f"{own!r}; give both the same"
            )


def asks_of(stage: Any, state: Opened, ids: Sequence[RowId], tokens: Sequence[Any]) -> dict[int, Ask]:
    """An ask for each row that has tokens, by place. Raises BadRowsError for prompts that are too long."""
    bad = too_long(ids, [len(t) for t in tokens], state.window, stage.max_new_tokens)
    if bad:
        raise BadRowsError(bad)
    sampling, constraint = _sampling(stage), _constraint(stage)
    grammar = state.grammar(constraint) if constraint else None
    return {
        i: Ask(t, stage.max_new_tokens, ids[i], sampling, grammar) for i, t in enumerate(tokens) if len(t)
    }


def too_long(ids: Sequence[RowId], lengths: Sequence[int], window: int, new: int) -> dict[RowId, RowError]:
    """Faults of the prompts that leave no room for an answer in the model's window."""
    room = max(window - new, 0)
    return {
        i: RowError(
            "too long",
            f"the prompt has {n} tokens, but the model's window of {window} leaves {room} beside "
            f"an answer of {new}; put fewer passages in it, or lower max_new_tokens",
        )
        for i, n in zip(ids, lengths, strict=True)
        if n > room
    }


def check_housed(lost: Iterable[RowId]) -> None:
    """Raise BadRowsError for prompts whose cache had no room."""
    bad = dict.fromkeys(lost, _FAULTS["memory"])
    if bad:
        raise BadRowsError(bad)


def completions(ids: tuple[RowId, ...], lengths: tuple[int, ...], said: dict[int, Said]) -> Completions:
    """A row for each; those that were not asked are skipped. Raises BadRowsError for answers that mean
    nothing.
    """
    bad = {ids[i]: _FAULTS[s.stop] for i, s in said.items() if s.stop in _FAULTS}
    if bad:
        raise BadRowsError(bad)
    rows = [said.get(i, _SKIPPED) for i in range(len(ids))]
    return Completions(
        ids,
        tuple(r.text for r in rows),
        lengths,
        tuple(len(r.tokens) for r in rows),
        tuple(r.stop for r in rows),
        tuple(r.reused for r in rows),
        tuple(r.drafted for r in rows),
        tuple(r.accepted for r in rows),
    )


def _sampling(stage: Any) -> Sampling:
    return Sampling(stage.temperature, stage.top_p, stage.seed, stage.stop)


def _constraint(stage: Any) -> Constraint | None:
    if stage.json_schema:
        return Constraint("json", stage.json_schema)
    return Constraint("regex", stage.regex) if stage.regex else None
