"""JAX training that yields to a service.

    gpreempt run -p 2 python3 examples/jax_train.py

A JAX process opens every GPU that it sees and takes 75 % of their memory when it starts. Both are
set before JAX is imported: `CUDA_VISIBLE_DEVICES` for one GPU (a process on several GPUs is
preempted only if it has a priority) and the fraction of the memory, so that a service fits beside
it.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.4")

import jax
import jax.numpy as jnp

import gpreempt

WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    steps: int = parser.parse_args().steps
    if "GPREEMPT_PRIORITY" not in os.environ:
        # Started without `gpreempt run`: the process asks for itself. Nothing happens without
        # gpreemptd, so the program runs everywhere.
        try:
            gpreempt.set_priority(2)
        except gpreempt.GPreemptError:
            print(gpreempt.status())

    def loss(weights: jax.Array, inputs: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(inputs @ weights) - inputs) ** 2)

    step = jax.jit(lambda weights, inputs: weights - 0.1 * jax.grad(loss)(weights, inputs))
    inputs = jax.random.normal(jax.random.key(1), (64, WIDTH))
    weights = jax.random.normal(jax.random.key(2), (WIDTH, WIDTH)) / WIDTH
    before = float(loss(weights, inputs))
    begin = time.monotonic()
    for _ in range(steps):
        weights = step(weights, inputs)
    after = float(loss(weights, inputs))
    took = time.monotonic() - begin
    told = {"device": str(jax.devices()[0]), "loss": [before, after], "steps_per_s": steps / took}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
