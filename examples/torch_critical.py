"""PyTorch inference beside other work on the same GPU, with and without critical().

Needs PyTorch, a GPU and gpreemptd; start something heavy beside it, such as a training job with
`gpreempt run -p 2 -- python train.py`, then

    python torch_critical.py --requests 500

Requests come at fixed times. Each is prepared on the processor first; with hints, critical() is
entered before that, so that the GPU is free when the first kernel is there. Prints JSON: the time
from when a request was due until its answer was on the processor, in microseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import time
from typing import Any, ContextManager

import gpreempt

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None


def small_model(width: int, layers: int) -> Any:
    """A stack of transformer layers: many short kernels, as in decoding."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def serve(
    model: Any, *, requests: int, every_s: float, prepare_s: float, block: ContextManager[object]
) -> list[float]:
    """Serves requests that do not wait for each other; the answer is their latencies."""
    times = []
    start = time.monotonic()
    for number in range(requests):
        due = start + number * every_s
        time.sleep(max(0.0, due - time.monotonic()))
        with block:
            # Stands for reading and tokenizing a request.
            prepared_at = time.monotonic() + prepare_s
            tokens = torch.randn(1, 32, 512)
            while time.monotonic() < prepared_at:
                pass
            model(tokens.cuda(non_blocking=True)).sum().item()
        times.append((time.monotonic() - due) * 1e6)
    return times


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    names = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99}
    found = {name: ordered[int(len(ordered) * part)] for name, part in names.items()}
    return {"n": len(ordered), **found, "max_us": ordered[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--every-ms", type=float, default=50.0)
    parser.add_argument("--prepare-us", type=float, default=400.0)
    parser.add_argument("--priority", type=int, default=12)
    arguments = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("this example needs PyTorch and a GPU that it can use", file=sys.stderr)
        return 2
    gpreempt.set_priority(arguments.priority)
    model = small_model(512, 6).eval().cuda()
    results: dict[str, Any] = {}
    with torch.inference_mode():
        for _ in range(20):
            model(torch.randn(1, 32, 512).cuda()).sum().item()
        # A new process and its queues are found within a second.
        time.sleep(1.5)
        for name, block in (
            ("without_hints", contextlib.nullcontext()),
            ("with_hints", gpreempt.critical(deadline_us=20_000)),
        ):
            times = serve(
                model,
                requests=arguments.requests,
                every_s=arguments.every_ms / 1e3,
                prepare_s=arguments.prepare_us / 1e6,
                block=block,
            )
            results[name] = summary(times)
    with gpreempt.critical() as is_heard:
        results["hints_are_heard"] = is_heard
    print(json.dumps({"gpu": torch.cuda.get_device_name(), **results}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
