"""The queues that gpreemptd controls."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass
from typing import Optional

from . import _abi, errors
from ._abi import QueueInfoStruct
from ._call import call, priority, queue_id
from ._library import load
from .errors import VersionMismatch


class DeviceKind(enum.IntEnum):
    """What kind of device."""

    OTHER = 0
    NVIDIA = 1
    AMD = 2
    EMULATED = 3


class Level(enum.IntEnum):
    """How deep a preempt reaches."""

    NONE = 0
    BLOCK = 1
    """New launches wait, what is submitted runs."""
    DEACTIVATE = 2
    """The device stops fetching, the running kernel ends first."""
    INTERRUPT = 3
    """The running kernel is saved in the middle."""


@dataclass(frozen=True)
class QueueInfo:
    """One queue: what the hardware can stop. On NVIDIA all streams of a context share one."""

    id: int
    """Its number in gpreemptd. No two queues ever have the same."""
    pid: int
    """The process, by its number on the host."""
    name: str
    """The name of the process."""
    uid: int
    """Whose process it is."""
    start_ticks: int
    """When the process started, in clock ticks since boot."""
    device: int
    """The device's number in gpreemptd."""
    device_kind: DeviceKind
    priority: int
    """0 (lowest) to 15 (highest)."""
    level: Level
    native: int
    """Its number on the device, where it has one."""
    pending: int
    """Work that waits in its ring."""
    ran_us: int
    """Time it had the device so far."""
    preempts: int
    """Times it was preempted so far."""
    is_on: bool
    """It may run."""
    is_active: bool
    """It has work."""
    is_suspended: bool
    """A client suspended it or its process."""
    is_suspended_by_us: bool
    """This process suspended it."""
    has_own_priority: bool
    """It has a priority of its own, not that of its process."""


def queues(*, pid: Optional[int] = None, device: Optional[int] = None) -> list[QueueInfo]:
    """Every queue that gpreemptd controls, or those of one process or device, ordered by id."""
    found = [_info(struct) for struct in _all_structs()]
    if pid is not None:
        found = [queue for queue in found if queue.pid == pid]
    if device is not None:
        found = [queue for queue in found if queue.device == device]
    return found


def find_queues(priority_min: int = 0, priority_max: int = 15) -> list[QueueInfo]:
    """The queues whose priority is between two, both included."""
    low, high = priority(priority_min), priority(priority_max)
    return [queue for queue in queues() if low <= queue.priority <= high]


def queue(id: int) -> QueueInfo:
    """One queue. Raises NoSuchQueue if it does not exist."""
    struct = QueueInfoStruct()
    call("gpreempt_get_queue", queue_id(id), ctypes.byref(struct))
    return _info(struct)


def level(id: int) -> Level:
    """How deep a preempt reaches on a queue's device."""
    found = ctypes.c_int()
    call("gpreempt_level", queue_id(id), ctypes.byref(found))
    return Level(found.value)


def _all_structs() -> list[QueueInfoStruct]:
    library = load()
    count, capacity = ctypes.c_size_t(), 64
    while True:
        array = (QueueInfoStruct * capacity)()
        code = library.calls.gpreempt_get_all_queues(array, capacity, ctypes.byref(count))
        if code == 0:
            return list(array[: count.value])
        if code != errors.TOO_SMALL:
            raise errors.of(code, library.message(code))
        # More may appear until the next call.
        capacity = count.value + 64


def _info(struct: QueueInfoStruct) -> QueueInfo:
    if struct.size != ctypes.sizeof(QueueInfoStruct):
        raise VersionMismatch(
            f"{load().path} describes a queue in {struct.size} bytes, and this package knows "
            f"{ctypes.sizeof(QueueInfoStruct)}; install both from the same release"
        )
    flags = struct.flags
    return QueueInfo(
        id=struct.id,
        pid=struct.pid,
        name=struct.name.decode(errors="replace"),
        uid=struct.uid,
        start_ticks=struct.start_ticks,
        device=struct.device,
        device_kind=_kind(struct.device_kind),
        priority=struct.priority,
        level=Level(struct.level),
        native=struct.native,
        pending=struct.pending,
        ran_us=struct.ran_us,
        preempts=struct.preempts,
        is_on=bool(flags & _abi.QUEUE_ON),
        is_active=bool(flags & _abi.QUEUE_ACTIVE),
        is_suspended=bool(flags & _abi.QUEUE_SUSPENDED),
        is_suspended_by_us=bool(flags & _abi.QUEUE_SUSPENDED_BY_US),
        has_own_priority=bool(flags & _abi.QUEUE_OWN_PRIORITY),
    )


def _kind(number: int) -> DeviceKind:
    # A newer library may know kinds that this package does not.
    known = any(number == kind.value for kind in DeviceKind)
    return DeviceKind(number) if known else DeviceKind.OTHER
