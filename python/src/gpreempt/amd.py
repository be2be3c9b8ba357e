"""Queues of this process on AMD GPUs, changed from inside. Needs no gpreemptd."""

from __future__ import annotations

import enum

from . import _call
from ._call import call


class PipePriority(enum.IntEnum):
    """What AMD hardware makes of a queue's priority."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


def pipe_priority(priority: int) -> PipePriority:
    """What the hardware makes of a priority from 0 to 15.

    It prefers the higher one for new work and preempts nothing; since gfx11 it compares
    queues of one process only.
    """
    wanted = _call.priority(priority)
    if wanted <= 6:
        return PipePriority.LOW
    return PipePriority.MEDIUM if wanted <= 10 else PipePriority.HIGH


def update_queue(
    queue: int, *, ring_address: int, ring_bytes: int, on: bool = True, priority: int = 7
) -> None:
    """Takes a queue of this process off its GPU, or lets it on, and gives it a priority.

    queue is KFD's number for it: a folder in /sys/class/kfd/kfd/proc/PID/queues. The kernel does
    not keep where its ring is, so that is said each time. A queue that is off stays off until it
    is let on again, even if this process forgets it.
    """
    for name, value, limit in (
        ("queue", queue, 2**32),
        ("ring_address", ring_address, 2**64),
        ("ring_bytes", ring_bytes, 2**32),
    ):
        if not isinstance(value, int) or not 0 <= value < limit:
            raise ValueError(f"{name} must be a whole number from 0 to {limit - 1}")
    wanted = _call.priority(priority)
    call("gpreempt_amd_update_queue", queue, ring_address, ring_bytes, int(on), wanted)
