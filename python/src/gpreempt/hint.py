"""Hints: the device is made free before a request's first kernel is there.

A block of critical() is one hint of its thread. Blocks may overlap in any order, as requests do in
the thread of an event loop: each new one renews the hint, and the last one to end ends it. Where
gpreempt is not installed a block is an empty one.
"""

from __future__ import annotations

import os
import threading
from time import monotonic_ns
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Optional,
    TypeVar,
    Union,
    cast,
    overload,
)

from . import errors
from ._call import whole
from .errors import GPreemptError, LibraryNotFound, VersionMismatch, WrongState

if TYPE_CHECKING:
    from types import TracebackType

    from ._library import Library

Function = TypeVar("Function", bound=Callable[..., Any])

_DEADLINE_US_MAX = 3_600_000_000


_Open = tuple["Critical", int, bool]
"""A block that a thread is inside of, its deadline by the monotonic clock (0 for none), and whether
the library was told of it. A plain tuple, because making another object takes as long as a hint."""


class _Thread:
    """Where a thread stands."""

    __slots__ = ("blocks", "inherited", "is_quick")

    def __init__(self, inherited: int = 0) -> None:
        self.blocks: list[_Open] = []
        self.inherited = inherited
        """Blocks that its parent process was inside of: they end here without having begun."""
        self.is_quick = False
        """Whether its next hint takes a microsecond. One that connects may take long; the library
        remembers for a while that there is no gpreemptd."""

    def take(self, block: Critical) -> Optional[_Open]:
        """The newest entry of a block, which ends."""
        blocks = self.blocks
        for index in range(len(blocks) - 1, -1, -1):
            if blocks[index][0] is block:
                return blocks.pop(index)
        return None


_threads = threading.local()
_library: Optional[Library] = None
_absent: Optional[GPreemptError] = None
"""Why there is no library; it is looked for once, because a block must cost nothing then."""


def _this_thread() -> _Thread:
    # One look-up for each block: looking up what belongs to a thread is not cheap.
    try:
        return cast(_Thread, _threads.state)
    except AttributeError:
        state = _threads.state = _Thread()
        return state


def _forget() -> None:
    """In a child: its parent's thread began, not this one; the connection is the parent's too."""
    before = _this_thread()
    _threads.state = _Thread(inherited=len(before.blocks) + before.inherited)


os.register_at_fork(after_in_child=_forget)


def _load() -> Optional[Library]:
    global _library, _absent
    if _library is None and _absent is None:
        # Not before the first hint: it loads ctypes.
        from ._library import load

        try:
            _library = load()
        except (LibraryNotFound, VersionMismatch) as error:
            _absent = error
    return _library


class Critical:
    """A block, or a function, whose GPU work should run now. Made by critical()."""

    __slots__ = ("_deadline_us", "_is_required")

    def __init__(self, deadline_us: int, is_required: bool) -> None:
        self._deadline_us = deadline_us
        self._is_required = is_required

    def __enter__(self) -> bool:
        """Whether gpreemptd was told."""
        library = _library or _load()
        if library is None:
            if self._is_required and _absent is not None:
                raise _absent
            return False
        thread = _this_thread()
        deadline_us = self._deadline_us
        deadline_ns = monotonic_ns() + deadline_us * 1000 if deadline_us else 0
        if thread.blocks:
            deadline_us = _nearest(thread.blocks, deadline_ns)
        # Other threads run while this one connects, and do not get the interpreter otherwise.
        if thread.is_quick:
            code = library.quick.gpreempt_hint_begin(deadline_us)
        else:
            code = library.calls.gpreempt_hint_begin(deadline_us)
        is_heard: bool = code == 0
        thread.is_quick = is_heard or code == errors.NoDaemon.code
        if not is_heard and (self._is_required or code == errors.InvalidArgument.code):
            raise errors.of(code, library.message(code))
        thread.blocks.append((self, deadline_ns, is_heard))
        return is_heard

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if _library is None:
            return
        thread = _this_thread()
        blocks = thread.blocks
        # Nearly always the newest one.
        ended = blocks.pop() if blocks and blocks[-1][0] is self else thread.take(self)
        if ended is None:
            _end_unbegun(thread, error)
        elif ended[2]:
            # It can only fail where there is nothing to end any more: no daemon, no session.
            _library.quick.gpreempt_hint_end()

    def __call__(self, function: Function) -> Function:
        """As a decorator: each call of the function is such a block."""
        import functools
        import inspect

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__}() is a generator and runs in pieces; use `with critical():` "
                "inside of it"
            )

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                # A block for each call: calls overlap, and end in another order than they begin.
                with Critical(self._deadline_us, self._is_required):
                    return await function(*args, **kwargs)

            return cast(Function, awaited)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(Function, called)


def _nearest(blocks: list[_Open], own_ns: int) -> int:
    """Microseconds until the next deadline of a thread, which has one for all of its blocks. A
    deadline that has passed is not counted, or a request that hangs would hurry all others."""
    now = monotonic_ns()
    ahead = [deadline_ns for _, deadline_ns, _ in blocks if deadline_ns > now]
    if own_ns:
        ahead.append(own_ns)
    return max(1, (min(ahead) - now) // 1000) if ahead else 0


def _end_unbegun(thread: _Thread, error: Optional[BaseException]) -> None:
    if thread.inherited > 0:
        thread.inherited -= 1
    elif error is None:
        raise WrongState("this block of critical() was entered in another thread; leave it there")


@overload
def critical(function: Function) -> Function: ...


@overload
def critical(*, deadline_us: int = 0, required: bool = False) -> Critical: ...


def critical(
    function: Optional[Function] = None, *, deadline_us: int = 0, required: bool = False
) -> Union[Function, Critical]:
    """Says that a request is coming and when it is done: `with critical(): ...` or `@critical`.

    Enter it a few hundred microseconds before the first kernel if you can. `deadline_us` says in
    how many microseconds the request should be done; 0 if that does not matter. Blocks of a thread
    may be nested, and may overlap in coroutines.

    A hint is advice: without gpreempt the block runs all the same, unless `required` is set; then
    the error is raised before the block. `with critical() as is_heard` tells which it was, and
    gpreempt.status() why.
    """
    whole(deadline_us, "deadline_us", 0, _DEADLINE_US_MAX)
    block = Critical(deadline_us, required)
    return block if function is None else block(function)
