"""Priorities for GPU work that the hardware obeys.

>>> import gpreempt
>>> gpreempt.set_priority(12)
>>> with gpreempt.critical(deadline_us=5_000):
...     answer = model(request)

Needs libgpreempt.so and, for all but submitting on CUDA, a running gpreemptd. Importing this
package loads neither: a name loads its module when it is first used, so a program that runs on
machines without gpreempt may import it everywhere. status() tells what a machine has.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Without the module typing, which costs more than the rest; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import amd, asgi
    from .connection import connect, disconnect, library_path, library_version, set_lease
    from .doctor import status
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
    "amd",
    "asgi",
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
    "status",
    "suspend",
    "suspend_process",
    "suspended",
]

_MODULES = {
    "connection": "connect disconnect library_path library_version set_lease",
    "doctor": "status",
    "errors": (
        "Busy DeviceFailed Disconnected GPreemptError InternalError InvalidArgument "
        "LibraryNotFound LimitReached NoDaemon NoDevice NoSuchProcess NoSuchQueue "
        "NotControlled NotPermitted OutOfMemory SystemRefused TimedOut Unsupported "
        "VersionMismatch WrongState"
    ),
    "hint": "Critical critical",
    "memory": "evict evicted make_room restore_process set_evictable",
    "priority": "attach clear_queue_priority detach priority_of set_latency_budget set_priority",
    "queue_info": "DeviceKind Level QueueInfo find_queues level queue queues",
    "scheduler": "GPreemptScheduler",
    "statistics": "Latencies Statistics",
    "submit": "Backend Queue",
    "suspension": (
        "deactivate interrupt preempt reactivate restore resume resume_process suspend "
        "suspend_process suspended"
    ),
}
"""Where each name is; the same as the imports above, as a test checks."""


def __getattr__(name: str) -> object:
    if name in ("amd", "asgi"):
        return import_module(f".{name}", __name__)
    for module, names in _MODULES.items():
        if name in names.split():
            found: object = getattr(import_module(f".{module}", __name__), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
