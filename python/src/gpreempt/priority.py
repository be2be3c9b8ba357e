"""Priorities of processes and queues, and latency budgets."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Iterator, Optional

from . import _abi, _call
from ._call import call
from .errors import NoSuchProcess, NotControlled

_LATENCY_BUDGET_MAX = 400


def set_priority(
    priority: int, *, pid: Optional[int] = None, queue: Optional[int] = None
) -> None:
    """Gives this process, another one or one queue a priority: 0 (lowest) to 15 (highest).

    A process need not use a GPU yet, and the children it starts from now on get the same. Above 7
    is for root and the group gpreempt.
    """
    wanted = _call.priority(priority)
    if queue is None:
        call("gpreempt_set_priority", _call.process(pid), wanted)
    elif pid is None:
        call("gpreempt_set_queue_priority", _call.queue_id(queue), wanted)
    else:
        raise TypeError("set_priority() is for a process or for a queue: say pid or queue")


def set_latency_budget(percent: int, *, pid: Optional[int] = None) -> None:
    """Sets how much slower this process, or another one, may become: 0 to 400 per cent.

    A budget is exchanged for throughput of the others on its GPU; with 0 the process is as fast as
    possible. It counts while the process has a priority of 8 or more and no other process on its
    GPU has one. The children that the process starts from now on get the same.
    """
    budget = _call.whole(percent, "percent", 0, _LATENCY_BUDGET_MAX)
    call("gpreempt_set_latency_budget", _call.process(pid), budget)


def clear_queue_priority(queue: int) -> None:
    """A queue has the priority of its process again."""
    call("gpreempt_set_queue_priority", _call.queue_id(queue), _abi.PRIORITY_OF_PROCESS)


def priority_of(pid: Optional[int] = None) -> int:
    """The priority that this process or another one has.

    Raises NotControlled if it has no queue that gpreemptd controls.
    """
    found = ctypes.c_int()
    call("gpreempt_get_priority", _call.process(pid), ctypes.byref(found))
    return found.value


def detach(pid: Optional[int] = None) -> None:
    """Restores this process or another one, and leaves it alone from now on."""
    call("gpreempt_detach", _call.process(pid))


@contextlib.contextmanager
def attach(pid: int, priority: int) -> Iterator[None]:
    """A process has this priority inside of the block, and afterwards that of before.

    One that gpreemptd did not control before is detached again.
    """
    try:
        before: Optional[int] = priority_of(pid)
    except NotControlled:
        before = None
    set_priority(priority, pid=pid)
    try:
        yield
    finally:
        # A process that has ended needs nothing back.
        with contextlib.suppress(NoSuchProcess):
            if before is None:
                detach(pid)
            else:
                set_priority(before, pid=pid)
