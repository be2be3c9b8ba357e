"""Takes a process off its GPUs while a command runs, and lets it go on at the very instruction.

    python suspend_training.py PID -- python evaluate.py

The process keeps its GPU memory. Do not stop one rank of a collective (NCCL): its watchdog would
end the job; stop all of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import gpreempt


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pid", type=int)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    # A process that has just started is found within a second.
    end = time.monotonic() + 5
    while not gpreempt.queues(pid=arguments.pid) and time.monotonic() < end:
        time.sleep(0.1)
    with gpreempt.suspended(pid=arguments.pid) as ids:
        print(f"{arguments.pid} is off its GPUs: {len(ids)} queues", flush=True)
        status = subprocess.run(arguments.command).returncode
    print(f"{arguments.pid} runs again")
    return status


if __name__ == "__main__":
    sys.exit(main())
