"""Finding and loading libgpreempt.so, once, when it is first needed."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Optional

from . import _abi
from .errors import LibraryNotFound, VersionMismatch

NAME = "libgpreempt.so"
VARIABLE = "GPREEMPT_LIBRARY"
# Major, minor and patch, a byte each. Until 1.0 every minor version may change everything.
VERSION_WANTED = 0x00_01_00

_lock = threading.Lock()
_loaded: Optional[Library] = None


class Library:
    """The loaded library."""

    def __init__(self, path: str) -> None:
        self.path = path
        """What the dynamic linker was asked for."""
        self.calls = ctypes.CDLL(path)
        """Its functions; other Python threads run during a call."""
        self.quick = ctypes.PyDLL(path)
        """Hints only: they take a fraction of a microsecond, and handing the interpreter to another
        thread for that could cost milliseconds until it comes back."""
        _abi.declare(self.calls)
        _abi.declare_hints(self.quick)
        self.version = int(self.calls.gpreempt_version())
        """Major, minor and patch, a byte each."""

    def message(self, code: int) -> str:
        """What the last call of this thread said when it failed with a code."""
        buffer = ctypes.create_string_buffer(1024)
        if self.calls.gpreempt_last_message(buffer, len(buffer)) == 0:
            return bytes(self.calls.gpreempt_strerror(code)).decode()
        return buffer.value.decode(errors="replace")


def _forget_lock() -> None:
    """In a child: a thread that it does not have may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def candidates() -> list[str]:
    """Where the library may be, in the order in which it is looked for."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        # A library that was named is the only candidate.
        return [chosen]
    beside = Path(__file__).with_name(NAME)
    # Without a folder the dynamic linker looks where it always does, LD_LIBRARY_PATH included.
    return [str(beside), NAME] if beside.exists() else [NAME]


def load() -> Library:
    """The library; loads it at the first call.

    Raises LibraryNotFound with every place that was tried, and VersionMismatch.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load_first(candidates())
    return _loaded


def _load_first(paths: list[str]) -> Library:
    reasons = []
    for path in paths:
        try:
            library = Library(path)
        except (OSError, AttributeError) as error:
            # AttributeError: it loads, but a function is not in it.
            reasons.append(f"{path}: {error}")
            continue
        _check_version(library)
        return library
    named = f"; {VARIABLE} names it" if os.environ.get(VARIABLE) else ""
    raise LibraryNotFound(
        f"{NAME} cannot be loaded ({'; '.join(reasons)}{named}). Install the gpreempt package of "
        "this machine, or build the library with `cargo build --release -p gpreempt-agent` and set "
        f"{VARIABLE} to its path, such as /usr/local/lib/{NAME}"
    )


def _check_version(library: Library) -> None:
    found, wanted = library.version, VERSION_WANTED
    if found >> 8 != wanted >> 8:
        raise VersionMismatch(
            f"{library.path} is version {version_text(found)}, and this package needs "
            f"{version_text(wanted)}; install both from the same release"
        )


def version_text(version: int) -> str:
    """A version as people write it."""
    return f"{version >> 16 & 255}.{version >> 8 & 255}.{version & 255}"
