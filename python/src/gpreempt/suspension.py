"""Taking queues off their devices and letting them on again.

gpreemptd resumes the queues that a process suspended when it ends, in any way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import Counter
from typing import Iterable, Iterator, Optional, Union

from . import _abi
from ._call import call, process, queue_id, whole
from .connection import LEASE_MS_MAX, disconnect, lease_ms
from .errors import Disconnected, GPreemptError, NoDaemon, NoSuchQueue, WrongState
from .queue_info import QueueInfo, queues

GRACE_US_MAX = 60_000_000

QueueLike = Union[int, QueueInfo]
"""A queue, by its number or as queues() returned it."""


def suspend(which: Union[QueueLike, Iterable[QueueLike]], *, grace_us: int = 0) -> None:
    """Takes queues off their devices, all of them or none, and waits until they are.

    Each may finish what it has within `grace_us` microseconds. They stay off until resume(), the
    end of the lease, or the end of this process.
    """
    _suspend_ids(_ids(which), whole(grace_us, "grace_us", 0, GRACE_US_MAX))


def resume(which: Union[QueueLike, Iterable[QueueLike]]) -> None:
    """Ends suspensions by this process.

    Raises WrongState, and nothing is changed, if one of the queues is not suspended by it.
    """
    _resume_ids(_ids(which))


def suspend_process(pid: int, *, lease: Optional[int] = None) -> None:
    """Takes a process off its devices, for at most `lease` milliseconds. Does not wait.

    Unlike a suspension of queues this one outlives the calling process.
    """
    wanted = whole(lease_ms() if lease is None else lease, "lease", 1, LEASE_MS_MAX)
    call("gpreempt_suspend_process", process(pid), wanted)


def resume_process(pid: int) -> None:
    """Ends the suspension of a process."""
    call("gpreempt_resume_process", process(pid))


def preempt(which: QueueLike, *, timeout_us: Optional[int] = None, wait: bool = True) -> None:
    """Takes one queue off at once; it stays off until resume().

    Waits for that, at most `timeout_us` microseconds: after TimedOut nothing is suspended. Without
    `wait`, queue(id).is_on tells when it is off.
    """
    id = _id(which)
    if not wait:
        call("gpreempt_preempt_async", id)
        return
    limit = _abi.FOREVER
    if timeout_us is not None:
        limit = whole(timeout_us, "timeout_us", 0, _abi.FOREVER - 1)
    call("gpreempt_preempt", id, limit)


def interrupt(which: QueueLike) -> None:
    """Level 3: saves the running kernel in the middle; the queue is off until restore().

    Raises Unsupported where the device has no level 3.
    """
    call("gpreempt_interrupt", _id(which))


def restore(which: QueueLike) -> None:
    """Ends interrupt(): the kernel continues at its next instruction."""
    call("gpreempt_restore", _id(which))


def deactivate(which: QueueLike) -> None:
    """Level 2: the device stops fetching, and the running kernel ends first."""
    call("gpreempt_deactivate", _id(which))


def reactivate(which: QueueLike) -> None:
    """Ends deactivate()."""
    call("gpreempt_reactivate", _id(which))


@contextlib.contextmanager
def suspended(
    which: Union[QueueLike, Iterable[QueueLike], None] = None,
    *,
    pid: Optional[int] = None,
    grace_us: int = 0,
) -> Iterator[list[int]]:
    """Queues, or all queues that a process has now, are off inside of the block.

    Gives the ids. Blocks may be nested and may overlap in several threads: a queue is resumed when
    the last block that wants it off has ended.
    """
    if (which is None) == (pid is None):
        raise TypeError("suspended() needs queues or a pid, and not both")
    grace_us = whole(grace_us, "grace_us", 0, GRACE_US_MAX)
    ids = [queue.id for queue in queues(pid=pid)] if which is None else _ids(which)
    holds.take(ids, grace_us)
    try:
        yield ids
    finally:
        holds.give_back(ids)


class Holds:
    """How many blocks and schedulers of this process want each queue off.

    gpreemptd does not count: one resume ends a suspension, however often it was asked for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[int] = Counter()

    def take(self, ids: list[int], grace_us: int) -> None:
        """Suspends queues, all of them or none."""
        with self._lock:
            _suspend_ids(ids, grace_us)
            self._counts.update(ids)

    def renew(self, ids: list[int]) -> None:
        """Gives suspended queues a new lease."""
        with self._lock:
            _suspend_ids(ids, 0)

    def give_back(self, ids: list[int]) -> None:
        """Resumes the queues that no block suspends any more."""
        with self._lock:
            over = self._take_off(ids)
            if over:
                _resume_surely(over)

    def drop(self, ids: list[int]) -> None:
        """They are not suspended any more, without our doing."""
        with self._lock:
            self._take_off(ids)

    def reset(self) -> None:
        """In a child: what the parent suspended is the parent's."""
        self._lock = threading.Lock()
        self._counts = Counter()

    def _take_off(self, ids: list[int]) -> list[int]:
        """Counts down; returns the queues that no block suspends any more."""
        self._counts.subtract(ids)
        over = [id for id in ids if self._counts[id] <= 0]
        for id in over:
            del self._counts[id]
        return over


holds = Holds()
os.register_at_fork(after_in_child=holds.reset)


def _resume_surely(ids: list[int]) -> None:
    """Resumes queues, whatever it takes."""
    with contextlib.suppress(GPreemptError):
        _resume_ids(ids)
        return
    # All or none: one of them may be gone, or resumed already. The others must not stay off.
    for id in ids:
        try:
            _resume_ids([id])
        except (NoSuchQueue, WrongState):
            continue
        except (NoDaemon, Disconnected):
            return  # Its end has resumed everything.
        except GPreemptError:
            # The end of the session ends everything that it had suspended.
            disconnect()
            raise


def _suspend_ids(ids: list[int], grace_us: int) -> None:
    call("gpreempt_suspend_queues", _array(ids), len(ids), grace_us)


def _resume_ids(ids: list[int]) -> None:
    call("gpreempt_resume_queues", _array(ids), len(ids))


def _array(ids: list[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(ids))(*ids)


def _ids(which: Union[QueueLike, Iterable[QueueLike]]) -> list[int]:
    if isinstance(which, (int, QueueInfo)):
        return [_id(which)]
    # Each once, in the order given.
    return list(dict.fromkeys(_id(one) for one in which))


def _id(which: QueueLike) -> int:
    return which.id if isinstance(which, QueueInfo) else queue_id(which)
