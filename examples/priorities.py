"""Two threads submit with different priorities on the emulated GPU; the important one is first.

    GPREEMPT_EMULATED_SOCKET=/tmp/gpu python priorities.py

Start the emulated GPU and gpreemptd as serve.py says.
"""

from __future__ import annotations

import sys
import threading
import time

import gpreempt

MIX = 1
KERNELS = 60
KERNEL_NS = 2_000_000


def work(queue: gpreempt.Queue, priority: int, begin: float) -> None:
    """Submits kernels and says when they are done."""
    for number in range(KERNELS):
        queue.launch(MIX, grid=4, arguments=[0, number, KERNEL_NS, 128])
    queue.synchronize()
    elapsed_ms = (time.monotonic() - begin) * 1e3
    print(f"priority {priority}: {KERNELS} kernels after {elapsed_ms:.0f} ms", flush=True)


def main() -> None:
    emulated = gpreempt.Backend.EMULATED
    try:
        queues = {priority: gpreempt.Queue(priority, backend=emulated) for priority in (2, 7)}
    except gpreempt.GPreemptError as error:
        sys.exit(f"priorities.py: {error}")
    begin = time.monotonic()
    threads = [
        threading.Thread(target=work, args=(queue, priority, begin))
        for priority, queue in queues.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for queue in queues.values():
        queue.close()


if __name__ == "__main__":
    main()
