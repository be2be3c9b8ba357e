"""Exceptions."""

from __future__ import annotations

import pytest

import gpreempt
from gpreempt import errors


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (-1, gpreempt.InvalidArgument, ValueError),
        (-2, gpreempt.NoDaemon, ConnectionError),
        (-4, gpreempt.NotPermitted, PermissionError),
        (-5, gpreempt.NoSuchProcess, ProcessLookupError),
        (-6, gpreempt.NoSuchQueue, LookupError),
        (-11, gpreempt.TimedOut, TimeoutError),
        (-17, gpreempt.OutOfMemory, MemoryError),
        (-18, gpreempt.SystemRefused, OSError),
    ],
)
def test_a_code_is_an_exception_that_python_knows(
    code: int, kind: type[gpreempt.GPreemptError], builtin: type[Exception]
) -> None:
    error = errors.of(code, "what, why, what to do")
    assert type(error) is kind
    assert isinstance(error, builtin) and isinstance(error, gpreempt.GPreemptError)
    assert str(error) == "what, why, what to do"
    assert error.code == code


def test_a_code_of_the_future_is_an_exception_too() -> None:
    error = errors.of(-77, "new")
    assert type(error) is gpreempt.GPreemptError and error.code == -77


def test_all_that_is_exported_exists_and_is_documented() -> None:
    for name in gpreempt.__all__:
        assert getattr(gpreempt, name).__doc__, name
    kinds = [kind.__name__ for kind in errors.GPreemptError.__subclasses__()]
    assert set(kinds) <= set(gpreempt.__all__)
