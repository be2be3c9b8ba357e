"""Looking at the queue of a load."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

import gpreempt
from scene import Load, Scene, until


def queue_of(load: Load) -> gpreempt.QueueInfo:
    """The one queue of a load, as soon as gpreemptd has it."""
    until("its queue", lambda: bool(gpreempt.queues(pid=load.pid)))
    (queue,) = gpreempt.queues(pid=load.pid)
    return queue


def busy_load(scene: Scene, *, priority: int = 3) -> tuple[Load, int]:
    """A load that runs, and the id of its queue."""
    load = scene.load(env={"GPREEMPT_PRIORITY": str(priority)})
    id = queue_of(load).id
    until_runs(load)
    return load, id


def until_runs(load: Load) -> None:
    """Waits until kernels complete."""
    before = load.total()
    until("kernels complete", lambda: load.total() > before)


def is_still(load: Load) -> bool:
    """Whether no kernel completes for a while: five of its reports are the same."""
    seen = len(load.reports("rate"))
    until("five reports", lambda: len(load.reports("rate")) >= seen + 5)
    return len({report["total"] for report in load.reports("rate")[-4:]}) == 1


@contextlib.contextmanager
def idle_queue() -> Iterator[gpreempt.Queue]:
    """This process is important and has a queue without work: only a hint can help it."""
    gpreempt.set_priority(7)
    with gpreempt.Queue(7, backend=gpreempt.Backend.EMULATED) as queue:
        until("it is known", lambda: bool(gpreempt.queues(pid=os.getpid())))
        yield queue
