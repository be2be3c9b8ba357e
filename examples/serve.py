"""A server's loop on the emulated GPU, without and with hints: what critical() is for.

    gpreempt-emu --socket /tmp/gpu --compute-units 1 &
    gpreemptd --no-nvidia --emulated /tmp/gpu &
    gpreempt-load be --socket /tmp/gpu --seconds 60 &
    GPREEMPT_EMULATED_SOCKET=/tmp/gpu python serve.py

Each request announces itself while it still prepares on the processor (here: sleeps), so that the
GPU is free when its first kernel is there.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import ContextManager

import gpreempt

MIX = 1
KERNELS = 5
PREPARE_S = 0.003


def request(queue: gpreempt.Queue, block: ContextManager[object]) -> float:
    """One request; the answer is the time its work on the GPU took, in microseconds."""
    with block:
        time.sleep(PREPARE_S)
        begin = time.monotonic()
        for number in range(KERNELS):
            queue.launch(MIX, grid=4, arguments=[0, number, 50_000, 128])
            queue.synchronize()
        return (time.monotonic() - begin) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100)
    count: int = parser.parse_args().requests
    gpreempt.set_priority(7)
    with gpreempt.Queue(7, backend=gpreempt.Backend.EMULATED) as queue:
        for name, block in (
            ("without hints", contextlib.nullcontext()),
            ("with hints", gpreempt.critical(deadline_us=10_000)),
        ):
            times = []
            for _ in range(count):
                times.append(request(queue, block))
                # Long enough that the load is back before the next one.
                time.sleep(0.02)
            times.sort()
            print(f"{name}: p50 {times[count // 2]:.0f} us, max {times[-1]:.0f} us, n {count}")


if __name__ == "__main__":
    main()
