"""Two threads submit with different priorities on the emulated GPU; the important one is first.

    GPREEMPT_EMULATED_SOCKET=/tmp/gpu python priorities.py

Start the emulated GPU and gpreemptd as serve.py says.
"""

from __future__ import annotations

import threading
import time

import gpreempt

MIX = 1
KERNELS = 60
KERNEL_NS = 2_000_000


def work(priority: int, begin: float) -> None:
    """Submits kernels and says when they are done."""
    with gpreempt.Queue(priority, backend=gpreempt.Backend.EMULATED) as queue:
        for number in range(KERNELS):
            queue.launch(MIX, grid=4, arguments=[0, number, KERNEL_NS, 128])
        queue.synchronize()
        elapsed_ms = (time.monotonic() - begin) * 1e3
        print(f"priority {priority}: {KERNELS} kernels after {elapsed_ms:.0f} ms", flush=True)


def main() -> None:
    begin = time.monotonic()
    threads = [threading.Thread(target=work, args=(priority, begin)) for priority in (2, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
