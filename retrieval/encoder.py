"""Texts to vectors, with a sentence-transformers model.

The idea: work follows tokens, not texts. `encode` counts the tokens of all texts at once, sorts by length
and forms batches of a fixed number of padded tokens, so that short texts do not pay for long ones. What
can be known from a model's configuration (window, width, prompts) is read from there in milliseconds,
without torch; weights are read by `load` only, from a local folder, and nothing asks the network.

Deliberately not here: cutting texts to the window (see `retrieval.chunk`), code that comes with a model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.lookup import near_miss
from pipeline.machine import Device
from retrieval.facts import Facts, Kind, facts, read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DTYPES = ("auto", "float32", "bfloat16", "float16")
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Padded tokens to a batch: enough to fill the device, few enough to stay in its caches."""
PADDING = 0.8
"""A batch ends at a text shorter than this share of its longest one."""
AGREEMENT = 0.999
"""Cosine with float32 that "auto" demands of bfloat16."""

_PROBES = (
    "What was the net income of the third quarter?",
    "Die Glocke wiegt 42 Zentner und hängt seit 1623 im Turm.",
    "Total comprehensive income $ 16,639 $ 22,088 $ 69,622 $ 74,593",
    "The quick brown fox jumps over the lazy dog. " * 8,
)
_log = logging.getLogger("ridgeway")


def check_dtype(dtype: str) -> None:
    """Raise ModelError unless `dtype` is one of `DTYPES`."""
    if dtype not in DTYPES:
        raise ModelError(f"no dtype {dtype!r}{near_miss(dtype, DTYPES)}")


def load(model: str, device: Device, dtype: str = "auto") -> Encoder:
    """The encoder called `model`, on `device`; slow, imports torch.

    "auto" is bfloat16 where that is fast (CUDA; CPUs with AMX) and where its vectors agree with float32 on a
    few fixed sentences (cosine above `AGREEMENT`), else float32, which is logged. Raises ModelError where
    the device is missing, or cannot do the dtype.
    """
    check_dtype(dtype)
    _check_device(model, device, dtype)
    known = facts(model)
    if dtype != "auto":
        return _open(known, device, dtype)
    exact = _open(known, device, "float32")
    return agreed(_open(known, device, "bfloat16"), exact) if _has_fast_bfloat16(device) else exact


def agreed(fast: Encoder, exact: Encoder) -> Encoder:
    """`fast` where its vectors agree with those of `exact`; else `exact`, and a notice in the log."""
    cosine = float((fast.encode(_PROBES) * exact.encode(_PROBES)).sum(axis=1).min())
    if cosine > AGREEMENT:
        return fast
    _log.warning(
        "%s in %s differs from float32 (cosine %.4f): float32 is used", exact.name, fast.dtype, cosine
    )
    return exact


class Encoder:
    """A loaded model.

    Attributes: `name`, the folder; `device`; `dtype` of its weights; `tokenizer` (a `tokenizers.Tokenizer`);
    `window` in tokens; `width`, D; `cut`, how many texts were longer than the window so far.
    """

    def __init__(self, known: Facts, device: Device, dtype: str, model: Any, tokenizer: Tokenizer) -> None:
        self.name = known.folder.name
        self.device = device
        self.dtype = dtype
        self.tokenizer = tokenizer
        self.window = int(model.max_seq_length or known.window)
        self.width = known.width
        self.cut = 0
        self._model = model
        self._prompts = known.prompts

    def encode(self, texts: Sequence[str], kind: Kind = "document") -> NDArray[np.float32]:
        """float32 [B, D], unit length; no texts give [0, D].

        A text of no tokens gets a vector like any other; a model that fails numerically gives NaN or zeros,
        which are left in. Equal texts get equal vectors. What lies beyond the window is cut; the first time
        that happens the log says how much.
        """
        import torch

        if not texts:
            return np.zeros((0, self.width), dtype=np.float32)
        if self.device.kind == "cpu":
            torch.set_num_threads(self.device.threads)
        unique = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        order, batches = self._batches(list(unique), kind)
        parts = [self._forward(batch, kind) for batch in batches]
        vectors: NDArray[np.float32] = torch.cat(parts).cpu().numpy()
        place = np.argsort(order)
        return vectors[place[[unique[text] for text in texts]]]

    def _batches(self, texts: Sequence[str], kind: Kind) -> tuple[list[int], list[list[str]]]:
        """The order of the texts, longest first, and the texts in that order, in batches."""
        prompt = self._prompts[kind]
        counted = self.tokenizer.encode_batch_fast([prompt + text for text in texts])
        lengths = [len(c.ids) for c in counted]
        self._notice(texts, lengths)
        order = sorted(range(len(texts)), key=lambda i: (-lengths[i], i))
        sizes = [min(lengths[i], self.window) for i in order]
        cuts = list(cut_batches(sizes, BATCH_TOKENS[self.device.kind]))
        return order, [[texts[i] for i in order[a:b]] for a, b in pairwise([*cuts, len(order)])]

    def _forward(self, texts: list[str], kind: Kind) -> Any:
        """float32 tensor [B, D] on the device."""
        import torch

        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        made = encode(texts, batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False)
        return torch.nn.functional.normalize(made.float(), dim=1)

    def _notice(self, texts: Sequence[str], lengths: Sequence[int]) -> None:
        """Count the texts beyond the window; log it the first time."""
        beyond = [i for i, n in enumerate(lengths) if n > self.window]
        if beyond and not self.cut:
            worst = max(beyond, key=lambda i: lengths[i])
            _log.warning(
                "%d of %d texts are longer than the %d tokens that %s sees, %d tokens are cut; the longest, "
                "of %d tokens, begins %r: split into smaller chunks",
                len(beyond), len(texts), self.window, self.name,
                sum(lengths[i] - self.window for i in beyond), lengths[worst], texts[worst][:60],
            )  # fmt: skip
        self.cut += len(beyond)


def cut_batches(sizes: Sequence[int], tokens: int) -> Iterator[int]:
    """Where batches begin, for texts of `sizes` tokens in falling order.

    A batch holds at most `tokens` padded tokens (but at least one text), and none shorter than `PADDING`
    times its longest.
    """
    begin = 0
    for i, size in enumerate(sizes):
        full = (i - begin + 1) * sizes[begin] > tokens or size < PADDING * sizes[begin]
        if i == 0 or full:
            begin = i
            yield i


def _open(known: Facts, device: Device, dtype: str) -> Encoder:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # loading takes a second; a bar in the log of a worker helps nobody
    kwargs = {"dtype": getattr(torch, dtype)}
    folder = str(known.folder)
    model = SentenceTransformer(folder, device=device.torch, local_files_only=True, model_kwargs=kwargs)
    return Encoder(known, device, dtype, model.eval(), read_tokenizer(known.folder))


def _check_device(model: str, device: Device, dtype: str) -> None:
    import torch

    if device.kind == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"model {model!r} cannot run on {device.name}: torch sees no CUDA device; use cpu:0")
    if device.kind == "cpu" and dtype == "float16":
        raise ModelError(f"model {model!r} cannot run in float16 on {device.name}: use float32 or bfloat16")


def _has_fast_bfloat16(device: Device) -> bool:
    """Whether `device` multiplies bfloat16 matrices faster than float32 ones."""
    import torch

    if device.kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    info = Path("/proc/cpuinfo")
    return info.is_file() and "amx_bf16" in info.read_text()
