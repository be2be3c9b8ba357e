"""The work of a model in PyTorch, for CUDA and ROCm. Nothing but PyTorch is asked to do anything.

gpreempt is not called here: the model does not know that it is preempted.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from .programs import TestkitError
from .shape import Offline, Online
from .work import Work

_LOOK_S = 0.05
_PAUSE_S = 100e-6


class TorchWork(Work):
    """Inference of a small network for an online model, training of a wide one for offline."""

    def __init__(self, shape: Online | Offline, device: str = "cuda") -> None:
        super().__init__()
        self._torch = _torch(device)
        self._device = self._torch.device(device)
        self._depth = shape.depth if isinstance(shape, Offline) else shape.kernels
        is_training = isinstance(shape, Offline)
        self._step = self._training() if is_training else self._inference()
        self._state = self._torch.zeros(64, dtype=self._torch.int64, device=self._device)
        self._in_flight: deque[Any] = deque()
        self._complete = 0
        # The first step compiles and allocates; it is no part of any measurement.
        self._step()
        self._synchronize()

    @property
    def device(self) -> str:
        if self._device.type == "cpu":
            return "processor"
        return str(self._torch.cuda.get_device_name(self._device))

    def wait(self) -> bool:
        end = time.monotonic() + _LOOK_S
        while self._collect() and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        return not self._in_flight

    def completed(self) -> int:
        self._collect()
        return self._complete

    def close(self) -> None:
        self._synchronize()

    def _submit(self, number: int) -> bool:
        end = time.monotonic() + _LOOK_S
        while self._collect() >= self._depth:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE_S)
        self._step()
        # On the device, in the order of the steps: whatever is lost or done twice shows.
        self._state.mul_(1_664_525).add_(number + 1_013_904_223).bitwise_and_(2**32 - 1)
        self._in_flight.append(self._mark())
        return True

    def _words(self) -> set[int]:
        return set(self._state.tolist())

    def _collect(self) -> int:
        """Takes off what is complete; the answer is how many are not."""
        while self._in_flight and (self._in_flight[0] is None or self._in_flight[0].query()):
            self._in_flight.popleft()
            self._complete += 1
        return len(self._in_flight)

    def _mark(self) -> Any:
        if self._device.type == "cpu":
            return None  # Whatever is submitted is complete.
        event = self._torch.cuda.Event()
        event.record()
        return event

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            self._torch.cuda.synchronize()

    def _network(self, width: int, layers: int) -> Any:
        nn = self._torch.nn
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*parts).to(self._device)

    def _inference(self) -> Any:
        network = self._network(1024, 8).eval()
        batch = self._torch.randn(32, 1024, device=self._device)

        def step() -> None:
            with self._torch.no_grad():
                network(batch)

        return step

    def _training(self) -> Any:
        is_cpu = self._device.type == "cpu"
        width, rows = (64, 16) if is_cpu else (4096, 4096)
        network = self._network(width, 4).train()
        batch = self._torch.randn(rows, width, device=self._device)
        optimizer = self._torch.optim.SGD(network.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            network(batch).square().mean().backward()
            optimizer.step()

        return step


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        raise TestkitError(
            "PyTorch is not installed here, and the backend cuda needs it; install it, or take "
            "the backend emulated"
        ) from None
    if device == "cuda" and not torch.cuda.is_available():
        raise TestkitError(
            "PyTorch finds no GPU here; install one that has CUDA or ROCm, or take the backend "
            "emulated"
        )
    return torch


def require() -> str:
    """What PyTorch is here, or why the backend cannot be used."""
    torch = _torch("cuda")
    return f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}"
