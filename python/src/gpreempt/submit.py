"""Submitting with a priority: queues of one's own."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import math
import os
import threading
import time
from types import TracebackType
from typing import Any, Iterator, Optional, Sequence, Union

from . import _call
from ._abi import LAUNCH_NO_WAIT, LaunchStruct, QueueOptionsStruct
from ._call import call, whole
from .errors import Busy, Disconnected, InvalidArgument, TimedOut, WrongState

_WAIT_S = 0.1
"""The longest wait in C: after it Python sees to signals, such as Ctrl-C."""
_PAUSE_S_MIN, _PAUSE_S_MAX = 50e-6, 1e-3
"""How long to wait before a launch is tried again: little at first, then more."""

Size = Union[int, Sequence[int]]
"""One to three numbers."""

Argument = Union[int, "ctypes._SimpleCData[Any]", ctypes.Structure]
"""An argument of a kernel."""


class Backend(enum.IntEnum):
    """Where to submit."""

    EMULATED = 1
    CUDA = 2
    """libcuda is loaded when the first queue is made, and a context must be current then."""


class Queue:
    """A queue with a priority: 0 (lowest) to 15 (highest).

    From 0 to 7 only `depth` launches are in flight (4 unless said otherwise); further ones wait, so
    that little is in the way of others. Any thread may use it. Close it, or use it in a `with`.
    """

    def __init__(
        self,
        priority: int,
        *,
        backend: Backend = Backend.CUDA,
        device: int = 0,
        depth: int = 0,
        memory_bytes: int = 0,
        socket: Optional[Union[str, os.PathLike[str]]] = None,
    ) -> None:
        self._pointer: Optional[ctypes.c_void_p] = None
        self._pid = os.getpid()
        self._users = 0
        self._is_closing = False
        self._changed = threading.Condition()
        self.priority = _call.priority(priority)
        self.backend = Backend(backend)
        options = QueueOptionsStruct(
            size=ctypes.sizeof(QueueOptionsStruct),
            backend=self.backend,
            priority=self.priority,
            device=whole(device, "device", 0, 2**32 - 1),
            depth=whole(depth, "depth", 0, 2**32 - 1),
            memory_bytes=whole(memory_bytes, "memory_bytes", 0, 2**32 - 1),
            socket=None if socket is None else os.fsencode(socket),
        )
        pointer = ctypes.c_void_p()
        call("gpreempt_queue_create_with", ctypes.byref(options), ctypes.byref(pointer))
        self._pointer = pointer

    def launch(
        self,
        kernel: int,
        *,
        grid: Size = 1,
        block: Size = 1,
        arguments: Sequence[Argument] = (),
        shared_bytes: int = 0,
        timeout_us: Optional[int] = None,
    ) -> None:
        """Submits a kernel. Waits while the queue is full or blocked; Busy if that takes longer.

        On CUDA `kernel` is a CUfunction as a number and arguments are ctypes values. On the
        emulated GPU it is a kernel's number, `grid` counts work-groups, `block` waves, and there
        are four arguments: the region's address, a number, busy nanoseconds, the region's bytes.
        """
        values = [self._value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        launch = LaunchStruct(
            size=ctypes.sizeof(LaunchStruct),
            shared_bytes=whole(shared_bytes, "shared_bytes", 0, 2**32 - 1),
            kernel=whole(kernel, "kernel", 0, 2**64 - 1),
            grid=_three(grid, "grid"),
            block=_three(block, "block"),
            arguments=ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
            argument_count=len(values),
            flags=LAUNCH_NO_WAIT,
        )
        end, pause_s = _end(timeout_us), _PAUSE_S_MIN
        while True:
            try:
                with self._use() as pointer:
                    call("gpreempt_launch_kernel", pointer, ctypes.byref(launch))
                return
            except Busy:
                # Waiting here and not in C lets signals in, such as Ctrl-C, and close().
                if time.monotonic() >= end:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def synchronize(self, timeout_us: Optional[int] = None) -> None:
        """Waits until everything that was submitted is complete; TimedOut if that takes longer."""
        end = _end(timeout_us)
        while True:
            left_s = max(0.0, end - time.monotonic())
            try:
                with self._use() as pointer:
                    call("gpreempt_queue_synchronize", pointer, int(min(left_s, _WAIT_S) * 1e6))
                return
            except TimedOut:
                if left_s <= _WAIT_S:
                    raise

    def block(self) -> None:
        """Level 1: from now on launches wait, until unblock(). What was submitted runs."""
        with self._use() as pointer:
            call("gpreempt_queue_block", pointer)

    def unblock(self) -> None:
        """Ends block()."""
        with self._use() as pointer:
            call("gpreempt_queue_unblock", pointer)

    @property
    def submitted(self) -> int:
        """How many launches were submitted."""
        return self._progress()[0]

    @property
    def completed(self) -> int:
        """How many of them are complete."""
        return self._progress()[1]

    @property
    def id(self) -> int:
        """What gpreemptd calls the queue; on CUDA that is the queue of the whole context.

        Raises NotControlled if gpreemptd does not have it.
        """
        found = ctypes.c_uint64()
        with self._use() as pointer:
            call("gpreempt_queue_id", pointer, ctypes.byref(found))
        return found.value

    @property
    def stream(self) -> int:
        """The CUstream on CUDA, for libraries that want one. What they submit passes no gate."""
        found = ctypes.c_void_p()
        with self._use() as pointer:
            call("gpreempt_queue_stream", pointer, ctypes.byref(found))
        return found.value or 0

    def read(self, address: int, size: int) -> bytes:
        """Reads memory of the queue on the emulated GPU."""
        address = whole(address, "address", 0, 2**32 - 1)
        buffer = ctypes.create_string_buffer(whole(size, "size", 0, 2**31))
        with self._use() as pointer:
            call("gpreempt_queue_read", pointer, address, buffer, size)
        return buffer.raw

    def close(self) -> None:
        """Ends the queue, whatever is in it, after the calls of other threads have returned."""
        if os.getpid() != self._pid:
            # It is the parent's, which still uses it. (The lock may be in use there, too.)
            self._pointer = None
            return
        with self._changed:
            pointer = self._pointer
            if pointer is None or self._is_closing:
                return
            self._is_closing = True
            while self._users:
                self._changed.wait()
            self._pointer = None
        # Where the device is gone the queue is, too.
        with contextlib.suppress(Disconnected):
            call("gpreempt_queue_destroy", pointer)

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Of one that could not be made there is nothing to close.
        if getattr(self, "_pointer", None) is not None:
            with contextlib.suppress(Exception):
                self.close()

    def __repr__(self) -> str:
        state = "closed" if self._pointer is None else f"{self.backend.name.lower()}"
        return f"<gpreempt.Queue priority {self.priority}, {state}>"

    @contextlib.contextmanager
    def _use(self) -> Iterator[ctypes.c_void_p]:
        """The pointer, which stays valid while a call uses it."""
        if os.getpid() != self._pid:
            raise WrongState("the queue belongs to the parent process; make one in this one")
        with self._changed:
            if self._pointer is None or self._is_closing:
                raise WrongState("the queue is closed; make another one")
            self._users += 1
            pointer = self._pointer
        try:
            yield pointer
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _progress(self) -> tuple[int, int]:
        submitted, completed = ctypes.c_uint64(), ctypes.c_uint64()
        with self._use() as pointer:
            call(
                "gpreempt_queue_progress",
                pointer,
                ctypes.byref(submitted),
                ctypes.byref(completed),
            )
        return submitted.value, completed.value

    def _value(self, argument: Argument) -> Any:
        if not isinstance(argument, int):
            return argument
        if self.backend is not Backend.EMULATED:
            raise TypeError(
                f"{argument} could be of any size; say which with a ctypes value, such as c_uint32"
            )
        return ctypes.c_uint32(whole(argument, "an argument", 0, 2**32 - 1))


def _end(timeout_us: Optional[int]) -> float:
    """When a wait is over."""
    if timeout_us is None:
        return math.inf
    return time.monotonic() + whole(timeout_us, "timeout_us", 0, 2**63) / 1e6


def _three(size: Size, name: str) -> Any:
    numbers = [size] if isinstance(size, int) else list(size)
    if not 1 <= len(numbers) <= 3:
        raise InvalidArgument(f"{name} is one to three numbers, not {len(numbers)}")
    numbers = [whole(number, name, 1, 2**32 - 1) for number in numbers]
    return (ctypes.c_uint32 * 3)(*numbers, *[1] * (3 - len(numbers)))
