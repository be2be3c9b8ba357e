"""The process of one model: `python -m gpreempt.testkit.model '{"role": "online", ...}'`.

Says what it does in lines of JSON, as the loads of gpreempt-load do: `ready`, `rate` every now and
then, `final`. Begins when the file `start` exists and ends in good order on SIGTERM.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Sequence

from ..errors import GPreemptError
from .programs import TestkitError
from .shape import Offline, Online
from .work import EmulatedWork, Work

_DRAIN_S = 60.0


class Stop:
    """Whether a signal asked to stop."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.is_asked = True


def main(arguments: Sequence[str]) -> int:
    """Runs a model; 0 if every kernel ran exactly once."""
    options = json.loads(arguments[0])
    stop = Stop()
    try:
        shape = _shape(options)
        work = _work(options, shape)
        _say("ready", pid=os.getpid(), device=work.device, at_ns=time.monotonic_ns())
        if not _wait_for(Path(options["start"]), stop):
            return 0
        if isinstance(shape, Online):
            final = _serve(work, shape, stop)
        else:
            final = _train(work, shape, stop, options["report_ms"] / 1e3)
        is_drained = _drain(work)
        is_exact = is_drained and work.is_exact()
        _say("final", **final, drained=is_drained, exactness={"result": _verdict(is_exact)})
        work.close()
        return 0 if is_exact else 1
    except (GPreemptError, TestkitError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2


def _shape(options: dict[str, Any]) -> Online | Offline:
    kind = Online if options["role"] == "online" else Offline
    return kind(**options["shape"])


def _work(options: dict[str, Any], shape: Online | Offline) -> Work:
    if options["backend"] == "emulated":
        return EmulatedWork(int(options["priority"]), shape)
    from .torch_work import TorchWork

    return TorchWork(shape, options.get("device", "cuda"))


def _serve(work: Work, shape: Online, stop: Stop) -> dict[str, Any]:
    """Requests at fixed times. A latency counts from when the request was due, not from when its
    turn came."""
    every_s = shape.every_us / 1e6
    latencies: list[float] = []
    services: list[float] = []
    begin = time.monotonic()
    number = 0
    while not stop.is_asked:
        due = begin + number * every_s
        if not _sleep_until(due, stop):
            break
        began = time.monotonic()
        if not _request(work, shape.kernels, stop):
            break  # Half a request says nothing.
        done = time.monotonic()
        latencies.append((done - due) * 1e6)
        services.append((done - began) * 1e6)
        number += 1
    end = time.monotonic()
    # What was due and had no turn waited until the end at least; leaving it out would flatter.
    due_count = max(number, math.floor((end - begin) / every_s))
    unserved = [(end - (begin + late * every_s)) * 1e6 for late in range(number, due_count)]
    return {
        "from_ns": int(begin * 1e9),
        "until_ns": int(end * 1e9),
        "n": due_count,
        "unserved": len(unserved),
        "latency_us": _quantiles(latencies + unserved),
        "service_us": _quantiles(services),
    }


def _request(work: Work, kernels: int, stop: Stop) -> bool:
    asked_at = math.inf
    for _ in range(kernels):
        while not work.submit():
            pass
    while not work.wait():
        if stop.is_asked:
            # It gets the time it may still need; a queue that is off for good does not hang us.
            asked_at = min(asked_at, time.monotonic())
            if time.monotonic() > asked_at + _DRAIN_S:
                return False
    return not math.isfinite(asked_at)


def _train(work: Work, shape: Offline, stop: Stop, report_s: float) -> dict[str, Any]:
    begin = time.monotonic()
    said = begin
    while not stop.is_asked and not (shape.count and work.submitted >= shape.count):
        work.submit()
        if time.monotonic() >= said + report_s:
            said = time.monotonic()
            _say("rate", until_ns=int(said * 1e9), total=work.completed())
    if shape.count:
        _drain(work)
    end = time.monotonic()
    total = work.completed()
    return {
        "from_ns": int(begin * 1e9),
        "until_ns": int(end * 1e9),
        "total": total,
        "per_second": total / max(end - begin, 1e-9),
    }


def _drain(work: Work) -> bool:
    end = time.monotonic() + _DRAIN_S
    while not work.wait():
        if time.monotonic() > end:
            return False
    return True


def _wait_for(start: Path, stop: Stop) -> bool:
    while not start.exists():
        if stop.is_asked:
            return False
        time.sleep(0.001)
    return True


def _sleep_until(due: float, stop: Stop) -> bool:
    while not stop.is_asked:
        left_s = due - time.monotonic()
        if left_s <= 0:
            return True
        time.sleep(min(left_s, 0.05))
    return False


def _quantiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)

    def at(part: float) -> float:
        return ordered[max(0, math.ceil(len(ordered) * part) - 1)]

    return {
        "min": ordered[0],
        "mean": sum(ordered) / len(ordered),
        "p50": at(0.5),
        "p90": at(0.9),
        "p95": at(0.95),
        "p99": at(0.99),
        "p99.9": at(0.999),
        "max": ordered[-1],
    }


def _verdict(is_exact: bool) -> str:
    return "pass" if is_exact else "fail"


def _say(line: str, **values: Any) -> None:
    print(json.dumps({"line": line, **values}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
