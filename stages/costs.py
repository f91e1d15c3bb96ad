"""The numbers behind `cost`: what rows are expected to be, what they weigh, what ordinary code takes.

Expectations hold where nothing is known before the run: English office documents, ours. Bytes are those
that `Rows.nbytes` counts, which for Python objects is an estimate, and are fitted to the rows of
configs/demo. Operations are interpreted ones, 2e7 a second: each stage was timed on configs/demo with one
core of a Sapphire Rapids machine, best of 3, and the seconds multiplied by 2e7. Take them to be right
within a factor of two; what a run measures replaces them.

Products are counted as 2 FLOP for each multiply and add (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from pipeline.machine import BYTES
from pipeline.roofline import Cost, Flow, Work
from retrieval.facts import Facts, body, facts
from stages.shapes import Shape, shape

# expectations

PAGES = 10.0
"""Pages of a document."""
PAGE_CHARACTERS = 2500.0
"""Characters of a page."""
SCANNED = 0.1
"""Share of pages that are an image without text."""
TOKEN_CHARACTERS = 4.0
"""Characters of a token, in English."""
LINES = 30.0
"""Lines of a page that is an image."""
QUESTION_CHARACTERS = 60.0
CHUNK_CHARACTERS = 640.0
"""Characters of a chunk: 160 tokens, of the 200 that it may have."""
KEPT = 8.0
"""Hits or passages of a question."""
PROMPT_TOKENS = 800.0
WIDTH = 384
"""Elements of a vector."""

# bytes of a row, as `Rows.nbytes` counts them

DOCUMENT, PAGE, FOLDER = 230.0, 250.0, 240.0
_QUESTION_ROW, _CHUNK_ROW = 110.0, 185.0
_HIT, _PASSAGE = 191.0, 32.0


def page_bytes(characters: float) -> float:
    """A page of text with a span and a box for each line."""
    return 750 + 1.33 * characters


def page_characters(pages: Flow) -> float:
    """Characters of a page, from its bytes."""
    return max(pages.nbytes - 750, 0.0) / 1.33 if pages.nbytes else PAGE_CHARACTERS


def image_bytes(dpi: int, most: int) -> float:
    """An A4 page in RGB at `dpi`, of at most `most` pixels: 11.6 MB at 200."""
    return 3 * min(8.27 * 11.69 * dpi**2, most)


def images(pages: Flow) -> float:
    """A4 pages at 200 dpi that the images of a page make up, from its thousands of pixels."""
    return pages.length * 3e3 / image_bytes(200, 2**31)


def chunk_bytes(characters: float) -> float:
    """A chunk: its source, what is matched, a box for each line."""
    return 550 + 2 * characters


def question_bytes(characters: float) -> float:
    """A question, or what is searched for it."""
    return 2 * _QUESTION_ROW + characters


def question_characters(questions: Flow) -> float:
    """Characters of a question, from its bytes."""
    return max(questions.nbytes - 2 * _QUESTION_ROW, 1.0) if questions.nbytes else QUESTION_CHARACTERS


def chunk_characters(chunks: Flow) -> float:
    """Characters of a chunk: the length of the row, where it is known."""
    return chunks.length or CHUNK_CHARACTERS


def vector_bytes(width: int, chunks: bool) -> float:
    """A vector and the id of its row, that of a chunk or of a question."""
    return (_CHUNK_ROW if chunks else _QUESTION_ROW) + 4 * width


def width_of(vectors: Flow) -> int:
    """D of vectors, from their bytes: models have widths in steps of 32."""
    return max(32 * round((vectors.nbytes - 150) / 128), 32) if vectors.nbytes else WIDTH


def hit_bytes(k: float) -> float:
    """Ids and scores of `k` hits: the scores of all other chunks never leave the search."""
    return _QUESTION_ROW + 50 + _HIT * k


def hits_in(hits: Flow) -> float:
    """Hits of a question, from their bytes."""
    return max((hits.nbytes - _QUESTION_ROW - 50) / _HIT, 0.0) if hits.nbytes else KEPT


def passage_bytes(k: float) -> float:
    """`k` passages of a question."""
    return _QUESTION_ROW + 56 + _PASSAGE * k


def passages_in(passages: Flow) -> float:
    """Passages of a question, from their bytes."""
    found = (passages.nbytes - _QUESTION_ROW - 56) / _PASSAGE
    return max(found, 0.0) if passages.nbytes else KEPT


def prompt_bytes(tokens: float, k: float) -> float:
    """A prompt: int32 tokens and the passages it shows."""
    return passage_bytes(k) + 32 + 4 * tokens


def passages_shown(prompts: Flow) -> float:
    """Passages in a prompt, from its bytes and tokens."""
    found = (prompts.nbytes - 4 * prompts.length - passage_bytes(0) - 32) / _PASSAGE
    return max(found, 0.0) if prompts.nbytes else KEPT


def prompt_tokens(prompts: Flow) -> float:
    """Tokens of a prompt: the length of the row, where it is known."""
    return prompts.length or PROMPT_TOKENS


def completion_bytes(tokens: float) -> float:
    """A completion with its counts."""
    return _QUESTION_ROW + 170 + TOKEN_CHARACTERS * tokens


def answer_bytes(k: float) -> float:
    """An answer with its citations and the `k` passages it was shown."""
    return 740 + _PASSAGE * k


def step_bytes(k: float, characters: float) -> float:
    """A multi-step question with the `k` passages found so far."""
    return 520 + 2 * characters + _PASSAGE * k


def passages_held(steps: Flow) -> float:
    """Passages of a multi-step question, from its bytes."""
    return max((steps.nbytes - step_bytes(0, QUESTION_CHARACTERS)) / _PASSAGE, 0.0) if steps.nbytes else KEPT


# encoders

BATCH_TOKENS = (2048, 65536)
"""Padded tokens to a batch of an encoder on a CPU and on CUDA: `retrieval.encoder.BATCH_TOKENS`."""
RESERVED = 1.25
"""Bytes that PyTorch's allocator reserves for one that is alive at the peak: 1.1 to 1.4 in dry runs of small
Llama and BERT models (see `pipeline.dryrun`), where the rows are not few."""
_CALL, _LAYER, _TOKEN = 120e3, 4e3, 72.0
"""Operations of a call of the library, of a layer's modules, of a token in the tokenizers."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What it takes to embed texts; the fields are those of `Cost`."""

    flops: float
    traffic: float
    scalar: float
    scratch: float


def encoding(known: Shape, texts: float, tokens: float, dtype: str) -> Encoding:
    """`texts` of `tokens` tokens each through an encoder, padding left aside (batches follow tokens).

    A token takes 2 FLOP for each parameter of the layers, a row 4·L·S²·H·d for attention. Traffic: the
    layers' weights once a batch of the CPU's size, and what the modules of a BERT layer read and write,
    24·D + 4·F elements a token; attention is fused, so its S² scores are not moved. Scratch: the two F and
    three D wide tensors that are alive in an MLP, and a mask of a byte a pair, for a batch of CUDA's size,
    the larger one. Ours; checked against dry runs.
    """
    layers, width, inner = known.layers, known.width, known.inner
    size, total = BYTES[dtype], texts * tokens
    calls = ceil(total / max(BATCH_TOKENS[0], tokens)) if total else 0
    held = min(total, max(BATCH_TOKENS[1], tokens))
    return Encoding(
        flops=2.0 * known.linear * total + 4.0 * layers * tokens * total * known.heads,
        traffic=size * (calls * known.linear + total * layers * (24 * width + 4 * inner)),
        scalar=calls * (_CALL + layers * _LAYER) + total * _TOKEN,
        scratch=RESERVED * held * (size * (2 * inner + 3 * width) + tokens),
    )


def number_type(dtype: str, work: Work) -> str:
    """What `dtype` means on the device of `work`."""
    return work.dtype if dtype == "auto" else dtype


@cache
def encoder(model: str) -> tuple[Shape, Facts]:
    """What the folder of an encoder says. Raises ModelError."""
    return shape(body(model)), facts(model)


def embedded(model: str, dtype: str, work: Work, texts: Flow, chunks: bool) -> Cost:
    """The cost of a stage that embeds `texts`, whose `length` is in characters: those of `chunks`, or not."""
    known, said = encoder(model)
    tokens = min(texts.length / TOKEN_CHARACTERS + 2, said.window)  # 2: begin and end
    kind = number_type(dtype, work)
    made = encoding(known, texts.rows, tokens, kind)
    return Cost(
        output=Flow(texts.rows, 0.0, vector_bytes(said.width, chunks)),
        flops=made.flops,
        traffic=made.traffic,
        scalar=made.scalar,
        resident=float(known.total * BYTES[kind]),
        scratch=made.scratch,
        opening=float(known.stored),
        dtype=kind,
    )
