"""Questions and passages to prompts: a strict template, in the model's own chat form, within its window.

The template is one user turn. Its fields are checked when the stage is made, so that a misspelt one ends
the program before any work. Only the text around the turn comes from the model's chat template and may
hold special tokens; whatever a document or a question says stays text.

A prompt that is too long loses its lowest-ranked passages first, then the end of the only one left; never
the question, never an instruction. Deliberately not here: ranking, compression of passages, few-shot
examples (small models copy them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, RidgewayError, RowError, RowId
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Passage, Passages, Prompts, Queries
from retrieval.text import normalize
from stages import costs
from stages import template as templates
from stages.llm import weights
from stages.shapes import named
from stages.template import DEFAULT, PromptPassage

__all__ = ["WritePrompt"]


@dataclass(frozen=True)
class _Chat:
    """A tokenizer, the tokens before and after the user's turn, and the model's window in tokens."""

    tokenizer: Any
    before: tuple[int, ...]
    after: tuple[int, ...]
    window: int

    def tokens(self, text: str) -> NDArray[np.int32]:
        """int32 [S]: the turn that says `text`; special tokens in `text` are plain characters."""
        said = _encode(self.tokenizer, text, plain=True)
        return np.array([*self.before, *said, *self.after], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class WritePrompt:
    """The prompt of each question, with as many of its passages as the model's window holds.

    `template` is the text of a Jinja template, or a path that ends in .j2 or .jinja (read when the stage is
    made); it may use `question` and `passages`, see `PromptPassage`. `reserve`: tokens kept free for the
    answer; no less than Generate's `max_new_tokens`. `max_tokens`: a window smaller than the model's.

    A blank question, or one without passages, gets no tokens: no model is asked. Raises BadRowsError
    ("too long") for questions that leave no room for a passage.
    """

    model: str
    template: str = DEFAULT
    reserve: int = 64
    max_tokens: int | None = None

    shares: ClassVar[tuple[str, ...]] = ("model",)

    def __post_init__(self) -> None:
        if self.reserve < 1:
            raise RidgewayError(f"WritePrompt: reserve is {self.reserve}; give the answer at least 1 token")
        if self.max_tokens is not None and self.max_tokens <= self.reserve:
            raise RidgewayError(
                f"WritePrompt: max_tokens is {self.max_tokens}, all of it reserved for the answer "
                f"(reserve is {self.reserve}); raise max_tokens or lower reserve"
            )
        object.__setattr__(self, "template", templates.read(self.template))
        templates.check(self.template)

    def open(self, device: Device) -> _Chat:
        """The model's tokenizer and chat form. Reads no weights."""
        tokenizer = weights.tokenizer(self.model)
        return _Chat(tokenizer, *_around(tokenizer), weights.window(self.model))

    def cost(self, work: Work) -> Cost:
        """About 47 operations a token, to render and to count it (ours, timed).

        A prompt has the question, the passages, and as many tokens of instructions and chat form as the
        default template; never more than the model's window leaves.
        """
        queries, k = work.port("queries"), costs.passages_in(work.port("passages"))
        characters = costs.question_characters(queries) + k * costs.CHUNK_CHARACTERS
        tokens = min(characters / costs.TOKEN_CHARACTERS + 60, self._room())
        given = Flow(queries.rows, tokens, costs.prompt_bytes(tokens, k))
        return Cost(given, scalar=47 * queries.rows * tokens)

    def _room(self) -> float:
        """Tokens that a prompt may have, as far as the configuration says."""
        window = named(self.model).window or costs.PROMPT_TOKENS + self.reserve
        return max(min(window, self.max_tokens or window) - self.reserve, 1)

    def run(self, state: _Chat, queries: Queries, passages: Passages) -> Prompts:
        """One prompt for each question."""
        window = state.window if self.max_tokens is None else min(state.window, self.max_tokens)
        write = partial(_write, _Fit(state, templates.compiled(self.template), window - self.reserve))
        made: list[_Prompt] = []
        bad: dict[RowId, RowError] = {}
        for row, question, found in zip(queries.ids, queries.texts, passages.passages, strict=True):
            try:
                made.append(write(question, found))
            except RowError as error:
                bad[row] = error
        if bad:
            raise BadRowsError(bad)
        return Prompts(
            queries.ids,
            tuple(m.tokens for m in made),
            tuple(m.passages for m in made),
            tuple(m.trimmed for m in made),
        )


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One row of `Prompts`."""

    tokens: NDArray[np.int32]
    passages: tuple[Passage, ...]
    trimmed: int


@dataclass(frozen=True)
class _Fit:
    """A template and the room for what it renders: `room` tokens, the chat form included."""

    chat: _Chat
    template: Any
    room: int

    def render(self, question: str, shown: Sequence[tuple[Passage, str]]) -> NDArray[np.int32]:
        """int32 [S]: the tokens of `question` with the passages `shown`, each with its text."""
        views = [
            PromptPassage(n, str(p.id[0]), int(p.id[1]), p.heading, text)
            for n, (p, text) in enumerate(shown, start=1)
        ]
        return self.chat.tokens(self.template.render(question=question, passages=views))


def _write(fit: _Fit, question: str, found: tuple[Passage, ...]) -> _Prompt:
    """The longest prompt that fits. Raises RowError where not even the question does."""
    if not question.strip() or not found:
        return _Prompt(np.empty(0, np.int32), found, 0)
    shown = [(p, normalize(p.text).text) for p in found]
    while len(shown) > 1:
        tokens = fit.render(question, shown)
        if len(tokens) <= fit.room:
            return _Prompt(tokens, found[: len(shown)], len(found) - len(shown))
        shown.pop()
    return _write_one(fit, question, found)


def _write_one(fit: _Fit, question: str, found: tuple[Passage, ...]) -> _Prompt:
    """A prompt with the first passage only; where it is too long its end is cut, and it counts as trimmed."""
    best, text = found[0], normalize(found[0].text)
    low, high = 0, len(text.text)
    tokens = fit.render(question, [(best, text.text)])
    if len(tokens) <= fit.room:
        return _Prompt(tokens, found[:1], len(found) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        short = len(fit.render(question, [(best, text.text[:middle])])) <= fit.room
        low, high = (middle, high) if short else (low, middle)
    if low == 0:
        raise _too_long(fit, question)
    end = text.span(0, low)[1]
    cut = replace(best, text=best.text[:end], end=best.start + end)
    return _Prompt(fit.render(question, [(best, text.text[:low])]), (cut,), len(found))


def _too_long(fit: _Fit, question: str) -> RowError:
    needed = len(fit.render(question, []))
    return RowError(
        "too long",
        f"the question takes {needed} tokens with its instructions, {fit.room} are free for a prompt, and a "
        f"passage must fit too; shorten the question, or give a model with a larger window",
    )


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens before and after the user's turn: the chat template around a mark, cut at the mark.

    A model without a chat template continues the text: only what its tokenizer begins every text with.
    """
    if not tokenizer.chat_template:
        return tuple(tokenizer("", add_special_tokens=True).input_ids), ()
    mark = "user's turn"
    turn = [{"role": "user", "content": mark}]
    before, _, after = tokenizer.apply_chat_template(
        turn, tokenize=False, add_generation_prompt=True
    ).rpartition(mark)
    return tuple(_encode(tokenizer, before, plain=False)), tuple(_encode(tokenizer, after, plain=False))


def _encode(tokenizer: Any, text: str, plain: bool) -> list[int]:
    """Token ids of `text` alone; `plain`: special tokens in it are characters like any other."""
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=plain).input_ids)
