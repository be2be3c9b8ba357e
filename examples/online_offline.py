"""Online work first: keeps an offline process off the GPU while an online one has work.

    python online_offline.py ONLINE_PID OFFLINE_PID --seconds 60

Prints what it does and, at the end, what it cost, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import gpreempt


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("online", type=int)
    parser.add_argument("offline", type=int)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    scheduler = gpreempt.GPreemptScheduler(
        on_suspend=lambda queues: say("suspended", queues),
        on_resume=lambda queues: say("resumed", queues),
        on_error=lambda error: print(f"error: {error}", flush=True),
    )
    scheduler.add_online(pid=arguments.online)
    scheduler.add_offline(pid=arguments.offline)
    with scheduler:
        time.sleep(arguments.seconds)
    print(json.dumps(scheduler.statistics().to_dict(), indent=2))


def say(what: str, queues: list[gpreempt.QueueInfo]) -> None:
    pids = sorted({str(queue.pid) for queue in queues})
    print(f"{what} {' '.join(pids)}", flush=True)


if __name__ == "__main__":
    main()
