"""Ray Serve replicas with a priority of their own.

    python3 examples/ray_serve.py

The processes of Ray start the workers, so `gpreempt run` before `serve run` does not reach them
on a cluster that runs already. Ray sets the variables of `runtime_env` before it starts a worker,
and the worker has its priority when it first uses a GPU. `num_gpus` below 1 puts several replicas
on one GPU: Ray counts it, but limits neither their memory nor their time.

Here the model runs on the emulated GPU (`GPREEMPT_EMULATED_SOCKET`) and needs no GPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve

import gpreempt

MIX = 1


class Model:
    """One replica is one process."""

    def __init__(self) -> None:
        self.queue = gpreempt.Queue(7, backend=gpreempt.Backend.EMULATED)

    def __call__(self, number: int) -> dict[str, Any]:
        # The replica is the process that uses the GPU, so its hints count.
        with gpreempt.critical(deadline_us=10_000) as is_heard:
            self.queue.launch(MIX, grid=1, arguments=[0, number, 50_000, 32])
            self.queue.synchronize()
        return {"pid": os.getpid(), "is_heard": is_heard, "priority": started_with_priority()}


def started_with_priority() -> str:
    """The variable as gpreemptd reads it: of the environment with which the process was started.
    Setting `os.environ` in a replica would be too late."""
    variables = Path("/proc/self/environ").read_text().split("\0")
    found = [text.split("=", 1)[1] for text in variables if text.startswith("GPREEMPT_PRIORITY=")]
    return found[0] if found else "none"


def deployment(priority: int, replicas: int) -> Any:
    """A deployment whose replicas have a priority. On GPUs add `"num_gpus": 0.5`."""
    options = {
        "num_cpus": 0.1,
        "runtime_env": {"env_vars": {"GPREEMPT_PRIORITY": str(priority)}},
    }
    return serve.deployment(Model, num_replicas=replicas, ray_actor_options=options)


def main() -> int:
    if not os.environ.get("GPREEMPT_EMULATED_SOCKET"):
        told = "start the emulated GPU as serve.py says, and set GPREEMPT_EMULATED_SOCKET to it"
        print(f"ray_serve.py: {told}", file=sys.stderr)
        return 2
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        handle = serve.run(deployment(priority=7, replicas=2).bind(), route_prefix=None)
        answers = [handle.remote(number) for number in range(10)]
        print(json.dumps([answer.result(timeout_s=60) for answer in answers]))
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
