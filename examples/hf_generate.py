"""Hugging Face `generate` with a small random model: a hint for each token.

    gpreempt run -p 12 python3 examples/hf_generate.py --tokens 64

The model is built from a configuration, so nothing is downloaded. One generation lasts longer
than a hint (`hint_max_ms`), so the hooks of torch_hook.py give one for each token. In eager mode,
as here, the CPU launches every kernel and limits the speed, so a priority gains little on a GPU;
a server with CUDA graphs, such as vLLM, gains most. `disable_compile` keeps the hooks out of
compiled code.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch_hook import give_hints
from transformers import LlamaConfig, LlamaForCausalLM

import gpreempt


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval().to(device)
    remove = give_hints(model)
    per_token = []
    for _ in range(arguments.requests):
        prompt = torch.randint(1, config.vocab_size, (1, 16), device=device)
        begin = time.monotonic()
        tokens = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=arguments.tokens,
            max_new_tokens=arguments.tokens,
            do_sample=False,
            disable_compile=True,
        )
        count = tokens.shape[1] - prompt.shape[1]
        per_token.append((time.monotonic() - begin) / count * 1e3)
    remove()
    told = {"device": device, "tokens": count, "ms_per_token": round(min(per_token), 3)}
    print(json.dumps({**told, "status": gpreempt.status()}))


if __name__ == "__main__":
    main()
