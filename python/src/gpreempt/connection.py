"""The connection of this process to gpreemptd. Every call connects by itself."""

from __future__ import annotations

import os
from typing import Optional, Union

from . import _library
from ._call import call, whole

LEASE_MS_MAX = 86_400_000

_lease_ms = 600_000


def connect(socket: Optional[Union[str, os.PathLike[str]]] = None) -> None:
    """Connects to gpreemptd, for those who want to know now, or another socket than the usual one.

    Queues that were suspended over another socket are resumed.
    """
    call("gpreempt_connect", None if socket is None else os.fsencode(socket))


def disconnect() -> None:
    """Closes the connection. Queues that this process suspended are resumed, its hints end."""
    call("gpreempt_disconnect")


def set_lease(lease_ms: int) -> None:
    """For how long queues stay suspended at the most, from the next suspension on."""
    global _lease_ms
    call("gpreempt_set_lease", whole(lease_ms, "lease_ms", 1, LEASE_MS_MAX))
    _lease_ms = lease_ms


def lease_ms() -> int:
    """What set_lease() has set."""
    return _lease_ms


def library_path() -> str:
    """The library in use; loads it."""
    return _library.load().path


def library_version() -> str:
    """Its version."""
    return _library.version_text(_library.load().version)
