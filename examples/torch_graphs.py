"""How a PyTorch model reaches the GPU: eager, compiled, and as a CUDA graph.

    gpreempt run -p 12 python3 examples/torch_graphs.py

A graph is one launch for all kernels of a request, so they follow each other without gaps, and the
GPU need not be reserved between them. `torch.compile(mode="reduce-overhead")` uses CUDA graphs by
itself; `mode="default"` makes fewer kernels and launches them one by one. On the CPU the program
prints the time of eager and compiled requests only. Compile and capture before the service takes
requests: both launch kernels and wait for the GPU for a long time, under the same priority.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Callable

import torch

WIDTH = 256


def median_us(request: Callable[[], object], count: int, has_gpu: bool) -> float:
    """The time of a request, until its answer is there."""
    times = []
    for _ in range(count):
        begin = time.monotonic()
        request()
        if has_gpu:
            torch.cuda.synchronize()
        times.append((time.monotonic() - begin) * 1e6)
    return sorted(times)[count // 2]


def graph_of(model: Any, row: Any) -> Any:
    """The kernels of one request; `replay()` reads the same input and writes the same output."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(row)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(row)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--layers", type=int, default=24)
    arguments = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()] * arguments.layers
    model = torch.nn.Sequential(*layers).eval().to(device)
    row = torch.randn(1, WIDTH, device=device)
    found = {"device": torch.cuda.get_device_name() if has_gpu else "CPU"}
    with torch.inference_mode():
        compiled = torch.compile(model, mode="reduce-overhead" if has_gpu else "default")
        ways: dict[str, Callable[[], object]] = {
            "eager_us": lambda: model(row),
            "compiled_us": lambda: compiled(row),
        }
        if has_gpu:
            ways["graph_us"] = graph_of(model, row).replay
        for way in ways.values():
            median_us(way, 10, has_gpu)
        times = {
            name: round(median_us(way, arguments.requests, has_gpu), 1)
            for name, way in ways.items()
        }
    print(json.dumps({**found, **times}))


if __name__ == "__main__":
    main()
