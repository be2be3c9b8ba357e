"""Calling the library: a code that is not 0 becomes an exception."""

from __future__ import annotations

from typing import Any, Optional

from . import errors
from .errors import InvalidArgument

PRIORITY_MIN = 0
PRIORITY_MAX = 15


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a code."""
    # Imported here, because what checks arguments only needs no library and no ctypes.
    from ._library import load

    library = load()
    code = getattr(library.calls, name)(*arguments)
    if code != 0:
        raise errors.of(code, library.message(code))


def whole(value: int, name: str, low: int, high: int) -> int:
    """A whole number in a range; ctypes would cut off what does not fit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}; it must be from {low} to {high}")
    return value


def priority(value: int) -> int:
    """A priority."""
    return whole(value, "priority", PRIORITY_MIN, PRIORITY_MAX)


def process(pid: Optional[int]) -> int:
    """A process for the library, which calls the caller 0."""
    return 0 if pid is None else whole(pid, "pid", 1, 2**31 - 1)


def queue_id(value: int) -> int:
    """The number of a queue."""
    return whole(value, "a queue id", 0, 2**64 - 1)
