"""Priorities for GPU work that the hardware obeys.

>>> import gpreempt
>>> gpreempt.set_priority(12)
>>> with gpreempt.critical(deadline_us=5_000):
...     answer = model(request)

Needs libgpreempt.so and, for all but submitting on CUDA, a running gpreemptd. Importing this
package loads neither.
"""

from __future__ import annotations

from .connection import connect, disconnect, library_path, library_version, set_lease
from .errors import (
    Busy,
    DeviceFailed,
    Disconnected,
    GPreemptError,
    InternalError,
    InvalidArgument,
    LibraryNotFound,
    LimitReached,
    NoDaemon,
    NoDevice,
    NoSuchProcess,
    NoSuchQueue,
    NotControlled,
    NotPermitted,
    OutOfMemory,
    SystemRefused,
    TimedOut,
    Unsupported,
    VersionMismatch,
    WrongState,
)
from .hint import Critical, critical
from .memory import evict, evicted, make_room, restore_process, set_evictable
from .priority import (
    attach,
    clear_queue_priority,
    detach,
    priority_of,
    set_latency_budget,
    set_priority,
)
from .queue_info import DeviceKind, Level, QueueInfo, find_queues, level, queue, queues
from .scheduler import GPreemptScheduler
from .statistics import Latencies, Statistics
from .submit import Backend, Queue
from .suspension import (
    deactivate,
    interrupt,
    preempt,
    reactivate,
    restore,
    resume,
    resume_process,
    suspend,
    suspend_process,
    suspended,
)

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Busy",
    "Critical",
    "DeviceFailed",
    "DeviceKind",
    "Disconnected",
    "GPreemptError",
    "GPreemptScheduler",
    "InternalError",
    "InvalidArgument",
    "Latencies",
    "Level",
    "LibraryNotFound",
    "LimitReached",
    "NoDaemon",
    "NoDevice",
    "NoSuchProcess",
    "NoSuchQueue",
    "NotControlled",
    "NotPermitted",
    "OutOfMemory",
    "Queue",
    "QueueInfo",
    "Statistics",
    "SystemRefused",
    "TimedOut",
    "Unsupported",
    "VersionMismatch",
    "WrongState",
    "attach",
    "clear_queue_priority",
    "connect",
    "critical",
    "deactivate",
    "detach",
    "disconnect",
    "evict",
    "evicted",
    "find_queues",
    "interrupt",
    "level",
    "library_path",
    "library_version",
    "make_room",
    "preempt",
    "priority_of",
    "queue",
    "queues",
    "reactivate",
    "restore",
    "restore_process",
    "resume",
    "resume_process",
    "set_evictable",
    "set_latency_budget",
    "set_lease",
    "set_priority",
    "suspend",
    "suspend_process",
    "suspended",
]
