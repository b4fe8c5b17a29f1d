# SPDX-License-Identifier: Apache-2.0
"""Writes a model that llama.cpp serves at thousands of tokens a second.

The tokenizer and the chat template are those of SmolLM2, read from its file;
the weights come from a seeded generator, so the file is the same each time.
"""

from pathlib import Path

import gguf
import numpy as np

WIDTH = 64
HIDDEN = 128
BLOCKS = 2
HEADS = 4
CONTEXT_TOKENS = 8192


def write(source: Path, target: Path) -> None:
    """Write a tiny model to ``target`` with the tokenizer of the GGUF file ``source``."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_name("tiny llama")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_block_count(BLOCKS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    words = 0
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if name == "tokenizer.ggml.tokens":
            words = len(value)
        kind, *inner = field.types
        writer.add_key_value(name, value, kind, inner[0] if inner else None)
    writer.add_vocab_size(words)

    random = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = random.normal(0, columns**-0.5, (rows, columns))
        writer.add_tensor(name, weights.astype(np.float16))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    matrix("token_embd.weight", words, WIDTH)
    for block in range(BLOCKS):
        ones(f"blk.{block}.attn_norm.weight")
        ones(f"blk.{block}.ffn_norm.weight")
        for part in ("q", "k", "v", "output"):
            matrix(f"blk.{block}.attn_{part}.weight", WIDTH, WIDTH)
        matrix(f"blk.{block}.ffn_gate.weight", HIDDEN, WIDTH)
        matrix(f"blk.{block}.ffn_up.weight", HIDDEN, WIDTH)
        matrix(f"blk.{block}.ffn_down.weight", WIDTH, HIDDEN)
    ones("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
