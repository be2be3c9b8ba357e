"""What can go wrong: one exception for each code of the library.

All of them are GPreemptError. Where Python has an exception of the same meaning they are that as
well, so `except PermissionError` works too.
"""

from __future__ import annotations

from typing import Optional


class GPreemptError(Exception):
    """Something did not work, and nothing was changed. The message says what, why, what to do."""

    code: int = 0
    """The code of the C library; 0 if the library was not asked."""

    def __init__(self, message: str, code: Optional[int] = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        # Those that are OSError too would format their arguments in another way.
        return str(self.args[0])


class LibraryNotFound(GPreemptError, ImportError):
    """libgpreempt.so was not found, or is not what it should be."""


class InvalidArgument(GPreemptError, ValueError):
    """An argument is out of range."""

    code = -1


class NoDaemon(GPreemptError, ConnectionError):
    """gpreemptd is not running."""

    code = -2


class VersionMismatch(GPreemptError):
    """gpreemptd is older or newer than the library."""

    code = -3


class NotPermitted(GPreemptError, PermissionError):
    """The caller may not do that."""

    code = -4


class NoSuchProcess(GPreemptError, ProcessLookupError):
    """There is no such process, or its pid was reused."""

    code = -5


class NoSuchQueue(GPreemptError, LookupError):
    """There is no such queue, or it was destroyed."""

    code = -6


class NotControlled(GPreemptError):
    """The process is not under gpreemptd's control."""

    code = -7


class Unsupported(GPreemptError):
    """The device does not support the operation."""

    code = -8


class Busy(GPreemptError):
    """The operation is already in progress, or the ring is full."""

    code = -9


class LimitReached(GPreemptError):
    """Too much of something: sessions, suspensions, threads that give hints, memory in use."""

    code = -10


class TimedOut(GPreemptError, TimeoutError):
    """It did not happen in time."""

    code = -11


class Disconnected(GPreemptError, ConnectionError):
    """The connection to gpreemptd or the device was lost. The next call connects again."""

    code = -12


class DeviceFailed(GPreemptError):
    """The device was told and did not, or reports a fault."""

    code = -13


class WrongState(GPreemptError):
    """Not now: an end without a begin, a queue that is closed or belongs to a parent process."""

    code = -15


class NoDevice(GPreemptError):
    """There is no such device, or its driver cannot be loaded."""

    code = -16


class OutOfMemory(GPreemptError, MemoryError):
    """There is no memory left."""

    code = -17


class SystemRefused(GPreemptError, OSError):
    """The operating system refuses."""

    code = -18


class InternalError(GPreemptError):
    """A mistake in the library. Nothing else happened."""

    code = -19


TOO_SMALL = -14
"""An array was too small. Not an exception: the caller enlarges it and calls again."""

_BY_CODE: dict[int, type[GPreemptError]] = {
    kind.code: kind for kind in GPreemptError.__subclasses__() if kind.code
}


def of(code: int, message: str) -> GPreemptError:
    """The exception for a code."""
    kind = _BY_CODE.get(code, GPreemptError)
    return kind(message, code)
