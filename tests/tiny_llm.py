"""Tiny random language models for tests: made in milliseconds, with real files and a real tokenizer."""

from pathlib import Path
from typing import Any

import numpy as np

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def alphabet() -> list[str]:
    """Special tokens, then the 256 bytes in the form of byte-level BPE, then the merged blank line."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*SPECIAL, *sorted(ByteLevel.alphabet()), "ĊĊ"]


def save_tiny(folder: Path, **changes: Any) -> Path:
    """A random two-layer Llama in float32 with a byte-level tokenizer that has no pad token."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    vocabulary = {t: i for i, t in enumerate(alphabet())}
    words = Tokenizer(models.BPE(vocabulary, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    settings = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).save_pretrained(folder)
    return folder


def save_tiny_gguf(path: Path) -> Path:
    """A random two-layer Llama as GGUF, with the tokenizer type of SmolLM2."""
    import gguf

    tokens = alphabet()
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(32)
    w.add_feed_forward_length(64)
    w.add_block_count(2)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    w.add_token_merges(["Ċ Ċ"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    for i in range(2):
        shapes |= {f"blk.{i}.{n}_norm": (32,) for n in ("attn", "ffn")}
        shapes |= {f"blk.{i}.attn_{n}": (32, 32) for n in ("q", "output")}
        shapes |= {f"blk.{i}.attn_{n}": (16, 32) for n in ("k", "v")}
        shapes |= {f"blk.{i}.ffn_{n}": (64, 32) for n in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down": (32, 64)}
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        w.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
