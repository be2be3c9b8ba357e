"""Hints: the device is made free before a request's first kernel is there."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import threading
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union, cast, overload

from . import errors
from ._call import whole
from ._library import load
from .errors import WrongState

Function = TypeVar("Function", bound=Callable[..., Any])

_DEADLINE_US_MAX = 3_600_000_000


class _Thread:
    """Where a thread stands."""

    __slots__ = ("depth", "inherited", "is_begun", "is_known")

    def __init__(self, inherited: int = 0) -> None:
        self.depth = 0
        """Blocks it is inside of."""
        self.inherited = inherited
        """Blocks that its parent process was inside of: they end here without having begun."""
        self.is_begun = False
        """Whether the library was told of the outermost block."""
        self.is_known = False
        """Whether it has given a hint before: the first one connects and may take long."""


_threads = threading.local()


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
    _threads.state = _Thread(inherited=before.depth + before.inherited)


os.register_at_fork(after_in_child=_forget)


class Critical:
    """A block, or a function, whose GPU work should run now. Made by critical()."""

    __slots__ = ("_begin_quickly", "_deadline_us", "_end_quickly", "_is_required")

    def __init__(self, deadline_us: int, is_required: bool) -> None:
        # Converted once, not in every call.
        self._deadline_us = ctypes.c_uint64(deadline_us)
        self._is_required = is_required
        self._begin_quickly: Any = None
        self._end_quickly: Any = None

    def __enter__(self) -> bool:
        """Whether gpreemptd was told."""
        thread = _this_thread()
        if thread.depth == 0:
            # A thread's first hint may connect, and others should run meanwhile.
            if thread.is_known and self._begin_quickly is not None:
                code = self._begin_quickly(self._deadline_us)
            else:
                code = self._begin_slowly()
            thread.is_begun = thread.is_known = code == 0
            if code != 0:
                self._complain(code)
        thread.depth += 1
        return thread.is_begun

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        thread = _this_thread()
        if thread.depth == 0:
            _end_unbegun(thread, error)
            return
        thread.depth -= 1
        if thread.depth == 0 and thread.is_begun:
            thread.is_begun = False
            # It can only fail where there is nothing to end any more: no daemon, no session.
            if self._end_quickly is None:
                # Another block of this thread was the outermost when this one was entered.
                self._end_quickly = load().quick.gpreempt_hint_end
            self._end_quickly()

    def __call__(self, function: Function) -> Function:
        """As a decorator: each call of the function is such a block."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__}() is a generator and runs in pieces; use `with critical():` "
                "inside of it"
            )

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return cast(Function, awaited)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(Function, called)

    def _begin_slowly(self) -> int:
        library = load()
        self._begin_quickly = library.quick.gpreempt_hint_begin
        self._end_quickly = library.quick.gpreempt_hint_end
        return int(library.calls.gpreempt_hint_begin(self._deadline_us))

    def _complain(self, code: int) -> None:
        if self._is_required or code == errors.InvalidArgument.code:
            raise errors.of(code, load().message(code))


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
    how many microseconds the request should be done; 0 if that does not matter. Blocks may be
    nested in a thread; the outermost counts.

    A hint is advice: without gpreemptd the block runs all the same, unless `required` is set; then
    the error is raised before the block. `with critical() as is_heard` tells which it was.
    """
    whole(deadline_us, "deadline_us", 0, _DEADLINE_US_MAX)
    block = Critical(deadline_us, required)
    return block if function is None else block(function)
