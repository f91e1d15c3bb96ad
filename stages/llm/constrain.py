"""Answers that keep to a JSON schema or a regular expression: which tokens may come next.

The idea: llguidance (Rust, nothing else needed; the extra `constrained`) turns the schema or expression and
a vocabulary into an automaton over tokens; a row holds a place in it. Masks go into the logits before a
token is chosen (-inf where False), so greedy choice, sampling and drafts stay what they are.

When not: a constraint says what an answer looks like, not that it is true, and a model that would rather
say something else gives its most probable answer of that form. Give `max_new_tokens` room to finish.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError, RidgewayError, RowError
from pipeline.lookup import near_miss

__all__ = ["Constraint", "Grammar", "State", "Words", "compile", "words"]

_KINDS = ("json", "regex")

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One line, as models write it: where blanks are free, a small model may write nothing else."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like: `kind` "json" with a schema as `text`, or "regex" with an expression.

    The whole answer must match. Schemas are those of JSON Schema (2020-12) as far as the library goes, and
    what it cannot hold an answer to is refused; expressions are those of Rust, without look-around.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise RidgewayError(f"constraint: kind is {self.kind!r}{near_miss(self.kind, _KINDS)}")
        if not self.text:
            raise RidgewayError(f"constraint: the {self._noun} is empty; give one, or no constraint")
        grammar = _grammar(self)
        fault = _library().LLMatcher.validate_grammar(grammar)
        if fault:
            raise RidgewayError(
                f"constraint: the {self._noun} {_shortened(self.text)} cannot be used: {_line(fault)}"
            )

    @property
    def _noun(self) -> str:
        return "JSON schema" if self.kind == "json" else "regular expression"


@dataclass(frozen=True, slots=True)
class Words:
    """A vocabulary as the library wants it, of `size` tokens, as many as logits; `ends` end an answer."""

    made: Any
    size: int
    ends: frozenset[int]


def words(tokenizer: Any, size: int, ends: Collection[int]) -> Words:
    """The vocabulary of a fast tokenizer for logits of `size` tokens: made once per model, takes a second.

    Raises ModelError where the extra is not installed or the tokenizer cannot be read.
    """
    _library()
    from llguidance.hf import from_tokenizer

    if not ends:
        raise ModelError("constraint: the model has no token that ends an answer, so none could end")
    try:
        made = from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(ends))
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"constraint: the tokenizer cannot be used: {error}") from error
    return Words(made, size, frozenset(ends))


class Grammar:
    """A constraint for one vocabulary, compiled; any number of rows start from it."""

    def __init__(self, matcher: Any, known: Words) -> None:
        self._matcher = matcher
        self._words = known

    def start(self) -> State:
        """The state of a row that has said nothing yet."""
        return State(self._matcher.deep_copy(), self._words)


class State:
    """Where a row is in its grammar."""

    def __init__(self, matcher: Any, known: Words) -> None:
        self._matcher = matcher
        self._words = known

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow; end tokens need not be waited for."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> NDArray[np.bool_]:
        """The tokens that may come next, bool [V]; end tokens where the answer may end here.

        Raises RowError where the library gives up.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(packed, count=self._words.size, bitorder="little").view(np.bool_)

    def masks(self, drafted: Sequence[int]) -> NDArray[np.bool_]:
        """The masks before each of `drafted` and after them, bool [n + 1, V]; the state stays where it is.

        n is how many of them may come: verify no more than those.
        """
        found = [self.mask()]
        for token in drafted:
            if token in self._words.ends or not found[-1][token]:
                break
            self.advance(token)
            found.append(self.mask())
        self._matcher.rollback(len(found) - 1)
        return np.stack(found)

    def advance(self, token: int) -> None:
        """Go on by a token that the mask allows. Raises RowError where the library gives up."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RowError(
                "model", f"the answer cannot be held to its constraint: {_line(self._matcher.get_error())}"
            )


def compile(constraint: Constraint, known: Words) -> Grammar:  # noqa: A001
    """The constraint for a vocabulary. Raises ModelError where the two do not go together."""
    matcher = _library().LLMatcher(known.made, _grammar(constraint), log_level=0)
    if matcher.is_error():
        raise ModelError(f"constraint {_shortened(constraint.text)}: {_line(matcher.get_error())}")
    return Grammar(matcher, known)


def _grammar(constraint: Constraint) -> str:
    """The constraint in the library's own language. Raises RidgewayError for what is not JSON."""
    matcher = _library().LLMatcher
    if constraint.kind == "regex":
        return str(matcher.grammar_from_regex(constraint.text))
    try:
        schema = json.loads(constraint.text)
    except json.JSONDecodeError as error:
        raise RidgewayError(f"constraint: the JSON schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RidgewayError(f"constraint: the JSON schema is {_shortened(constraint.text)}; give an object")
    return str(matcher.grammar_from_json_schema(schema, defaults=_COMPACT))


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise RidgewayError(
            "constrained output needs the package llguidance: pip install 'ridgeway[constrained]'"
        ) from error
    return llguidance


def _line(fault: str) -> str:
    return " ".join(fault.split())


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
