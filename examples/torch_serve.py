"""A PyTorch inference server that gives a hint for each request.

    gpreempt run -p 12 uvicorn torch_serve:app --app-dir examples
    python3 examples/torch_serve.py --requests 200

The second command sends requests to the application without a server and prints their latencies.

One process owns the GPU: with `--workers` each worker has a model and a queue of its own, and all
of them have the priority of the command. The model runs in one thread, because a CUDA graph has
one input and one output; the event loop stays free to read the next request, whose hint begins
there. On a GPU the model is a CUDA graph: without it the CPU launches each kernel, and PyTorch
with small batches is limited by that, so no priority makes it faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import torch

import gpreempt

WIDTH = 512
LAYERS = 8


class Model:
    """A stack of layers; on a GPU a CUDA graph of it."""

    def __init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.net = torch.nn.Sequential(*layers).eval().to(self.device)
        self.graph: Any = None
        if self.device == "cuda":
            self.capture()

    def capture(self) -> None:
        """Records the kernels of a request. Memory and kernels are prepared before, in a stream of
        its own, as capturing requires."""
        self.input = torch.zeros(1, WIDTH, device=self.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(3):
                self.net(self.input)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(self.graph):
            self.output = self.net(self.input)

    def answer(self, value: float) -> float:
        """One request, from its number to its answer on the CPU."""
        with torch.inference_mode():
            row = torch.full((1, WIDTH), value)
            if self.graph is None:
                return float(self.net(row).sum())
            self.input.copy_(row)
            self.graph.replay()
            return float(self.output.sum())


class App:
    """`POST /predict` with a number as its body; `GET /health` does not use the GPU."""

    def __init__(self) -> None:
        self.model: Optional[Model] = None
        self.thread = ThreadPoolExecutor(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.lifespan(receive, send)
        body = b""
        is_whole = False
        while not is_whole:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        answer: dict[str, Any] = {"ready": self.model is not None}
        if scope["path"] == "/predict" and self.model is not None:
            loop = asyncio.get_running_loop()
            sum = await loop.run_in_executor(self.thread, self.model.answer, float(body))
            answer = {"sum": sum}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def lifespan(self, receive: Any, send: Any) -> None:
        """Loads the model before the first request."""
        await receive()
        loop = asyncio.get_running_loop()
        self.model = await loop.run_in_executor(self.thread, Model)
        print(gpreempt.status(), flush=True)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


service = App()
app = gpreempt.asgi.Hints(service, deadline_us=10_000, paths=["/predict"])


async def ask(requests: int, every_s: float) -> list[float]:
    """Sends requests that do not wait for each other; the answer is their latencies."""

    async def one(due: float, value: float) -> float:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        part = {"type": "http.request", "body": str(value).encode()}
        scope = {
            "type": "http",
            "path": "/predict",
            "headers": [(b"content-length", str(len(part["body"])).encode())],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return part

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        assert "sum" in json.loads(sent[-1]["body"]), sent
        return (time.monotonic() - due) * 1e6

    service.model = Model()
    # A new process and its queues are found within a second.
    begin = time.monotonic() + 1.5
    answers = await asyncio.gather(*(one(begin + n * every_s, n) for n in range(requests)))
    return list(answers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--every-ms", type=float, default=10.0)
    arguments = parser.parse_args()
    times = sorted(asyncio.run(ask(arguments.requests, arguments.every_ms / 1e3)))
    found = {f"p{part}_us": times[len(times) * part // 100] for part in (50, 99)}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(json.dumps({"device": device, "n": len(times), **found, "status": gpreempt.status()}))


if __name__ == "__main__":
    main()
