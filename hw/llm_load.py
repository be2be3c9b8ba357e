#!/usr/bin/env python3
"""An unmodified PyTorch program for hw/idle_fences.py: an LLM server, or training of its model.

A request of the server is an eager prefill of 96 tokens, then 12 tokens, each one replay of a CUDA
graph and `.item()`. Requests arrive at random (Poisson, open loop). Both roles print lines of JSON
like gpreempt-load: `ready`, `rate`, `final`.
"""

import argparse
import json
import os
import random
import time

import torch
from torch import nn

LAYERS, WIDTH, HEADS, WORDS, BATCH, PREFILL, TOKENS, LONGEST = 16, 2048, 16, 8192, 4, 96, 12, 128


def say(line):
    print(json.dumps(line), flush=True)


class Model(nn.Module):
    """A transformer; what it computes does not matter, how much does."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "before": nn.LayerNorm(WIDTH), "three": nn.Linear(WIDTH, 3 * WIDTH),
            "out": nn.Linear(WIDTH, WIDTH), "after": nn.LayerNorm(WIDTH),
            "wide": nn.Linear(WIDTH, 4 * WIDTH), "narrow": nn.Linear(4 * WIDTH, WIDTH),
        }) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, cache=None, place=None):
        """Whole sequences, or one more token of each if there is a cache."""
        batch, length = tokens.shape
        x = self.words(tokens)
        for index, layer in enumerate(self.layers):
            parts = layer["three"](layer["before"](x))
            parts = parts.view(batch, length, 3, HEADS, WIDTH // HEADS)
            query, key, value = (parts[:, :, i].transpose(1, 2) for i in range(3))
            mask = None
            if cache is not None:
                keys, values = cache[index]
                keys.index_copy_(2, place, key)
                values.index_copy_(2, place, value)
                key, value = keys, values
                mask = (torch.arange(LONGEST, device=x.device) <= place).view(1, 1, 1, LONGEST)
            mixed = nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=cache is None)
            x = x + layer["out"](mixed.transpose(1, 2).reshape(batch, length, WIDTH))
            x = x + layer["narrow"](torch.relu(layer["wide"](layer["after"](x))))
        return self.last(x)


def quantiles(lengths):
    lengths = sorted(lengths)
    at = lambda part: lengths[min(len(lengths) - 1, int(len(lengths) * part))]
    return {"count": len(lengths), "p50": at(0.5), "p99": at(0.99), "max": lengths[-1]}


def serve(arguments):
    model = Model().cuda().bfloat16().eval()
    prompt = torch.randint(0, WORDS, (BATCH, PREFILL), device="cuda")
    token = torch.zeros(BATCH, 1, dtype=torch.long, device="cuda")
    place = torch.full((1,), PREFILL, dtype=torch.long, device="cuda")
    shape = (BATCH, HEADS, LONGEST, WIDTH // HEADS)
    cache = [tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
             for _ in range(LAYERS)]
    step = lambda: model(token, cache, place).argmax(-1)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def one():
        begin = time.monotonic_ns()
        model(prompt)[0, -1].argmax().item()
        first, last = time.monotonic_ns(), []
        for _ in range(TOKENS):
            before = time.monotonic_ns()
            graph.replay()
            result[0, 0].item()
            last.append((time.monotonic_ns() - before) / 1e3)
        return (first - begin) / 1e3, last

    for _ in range(20):
        one()
    say({"line": "ready", "load": "lc", "pid": os.getpid()})
    chance, begin = random.Random(7), time.monotonic_ns()
    due, end = begin, begin + int(arguments.seconds * 1e9)
    first, tokens, whole = [], [], []
    while due < end and time.monotonic_ns() < end:
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        prefill_us, token_us = one()
        if due - begin > arguments.warmup_s * 1e9:
            first.append(prefill_us)
            tokens.extend(token_us)
            whole.append((time.monotonic_ns() - due) / 1e3)
        due += int(chance.expovariate(arguments.per_second) * 1e9)
    say({"line": "final", "service_us": quantiles(tokens), "first_us": quantiles(first),
         "request_us": quantiles(whole)})


def train(arguments):
    model = Model().cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, WORDS, (16, 256), device="cuda")

    def step():
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    say({"line": "ready", "load": "be", "pid": os.getpid()})
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        since = time.monotonic_ns()
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        say({"line": "rate", "from_ns": since, "until_ns": time.monotonic_ns(), "count": 2})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("serve", "train"))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup-s", type=float, default=1.5)
    parser.add_argument("--per-second", type=float, default=14)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.role == "serve":
        with torch.inference_mode():
            serve(arguments)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
