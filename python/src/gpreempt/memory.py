"""Moving the GPU memory of processes to the host and back."""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional

from . import _abi
from ._call import call, process, whole
from .connection import LEASE_MS_MAX
from .errors import NoSuchProcess, WrongState

_TIMEOUT_US_MAX = 86_400_000_000
_TIMEOUT_US = 600_000_000


def evict(
    pid: int, *, tree: bool = False, lease: Optional[int] = None, timeout_us: int = _TIMEOUT_US
) -> None:
    """Moves the GPU memory of a process to the host, with `tree` that of its descendants too.

    Returns when it is there. The process does no GPU work until its memory is back, at the same
    addresses and with the same contents: after `lease` milliseconds, or restore_process(). After
    TimedOut the move continues.
    """
    lease_ms = 0 if lease is None else whole(lease, "lease", 1, LEASE_MS_MAX)
    flags = _abi.EVICT_TREE if tree else 0
    call("gpreempt_evict", process(pid), lease_ms, flags, _timeout(timeout_us))


def restore_process(pid: int, *, timeout_us: int = _TIMEOUT_US) -> None:
    """Ends evict(): returns when the memory is on the GPU again.

    After TimedOut it returns as soon as the GPU has room. Raises WrongState if the process is not
    evicted.
    """
    call("gpreempt_restore_process", process(pid), _timeout(timeout_us))


@contextlib.contextmanager
def evicted(
    pid: int, *, tree: bool = False, timeout_us: int = _TIMEOUT_US
) -> Iterator[None]:
    """The GPU memory of a process is on the host inside of the block."""
    evict(pid, tree=tree, timeout_us=timeout_us)
    try:
        yield
    finally:
        # It may have ended, or another program restored it.
        with contextlib.suppress(NoSuchProcess, WrongState):
            restore_process(pid, timeout_us=timeout_us)


def make_room(
    size: int, *, device: Optional[int] = None, timeout_us: int = _TIMEOUT_US
) -> None:
    """Makes room for this process: returns when `size` bytes of GPU memory are free.

    Processes with a lower priority that are evictable are evicted. They return when this process
    ends or calls make_room(0). The memory is not reserved: allocate it at once. `device` is a
    number as in QueueInfo; without one gpreemptd chooses. Raises LimitReached if there cannot be
    room; nothing stays evicted then.
    """
    wanted = whole(size, "size", 0, 2**64 - 1)
    number = _abi.ANY_DEVICE
    if device is not None:
        number = whole(device, "device", 0, _abi.ANY_DEVICE - 1)
    call("gpreempt_make_room", wanted, number, _timeout(timeout_us))


def set_evictable(evictable: bool, *, pid: Optional[int] = None) -> None:
    """Says whether this process, or another one, is evicted when higher priorities need room.

    The children that the process starts from now on get the same.
    """
    if not isinstance(evictable, bool):
        raise TypeError(f"evictable is True or False, not {evictable!r}")
    call("gpreempt_set_evictable", process(pid), int(evictable))


def _timeout(timeout_us: int) -> int:
    return whole(timeout_us, "timeout_us", 0, _TIMEOUT_US_MAX)
