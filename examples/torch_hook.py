"""Hints from a forward pre-hook: for programs whose request loop is not yours.

    gpreempt run -p 12 python3 examples/torch_hook.py

The hint begins right before the first kernel is launched. That is later than a hint around the
whole request, which also covers reading and preparing the input; use `gpreempt.critical()` there
where you can. With `torch.compile`, add the hooks to the module that the program calls.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

import gpreempt


def give_hints(model: Any, deadline_us: int = 0) -> Callable[[], None]:
    """Gives a hint for each call of a module; the answer is a function that ends that."""
    # Not gpreempt.critical() in each call: the block is made once.
    block = gpreempt.critical(deadline_us=deadline_us)

    def begin(module: Any, inputs: Any) -> None:
        block.__enter__()

    def end(module: Any, inputs: Any, output: Any) -> None:
        block.__exit__(None, None, None)

    handles = [
        model.register_forward_pre_hook(begin),
        # Also when the module raises: a hint that does not end reserves the GPU for hint_max_ms.
        model.register_forward_hook(end, always_call=True),
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to(device)
    remove = give_hints(model, deadline_us=5_000)
    with torch.inference_mode():
        for _ in range(100):
            model(torch.randn(1, 64, device=device))
        try:
            model(torch.randn(1, 63, device=device))
        except RuntimeError:
            print("a call that fails ends its hint")
    remove()
    print(gpreempt.status())


if __name__ == "__main__":
    main()
