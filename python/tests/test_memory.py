"""Moving GPU memory to the host and back."""

from __future__ import annotations

import os

import pytest

import gpreempt
from listing import busy_load
from scene import Scene

TOO_LONG = 86_400_000_001


def test_misuse_is_refused() -> None:
    for lease in (0, 86_400_001):
        with pytest.raises(gpreempt.InvalidArgument, match="lease"):
            gpreempt.evict(1, lease=lease)
    with pytest.raises(gpreempt.InvalidArgument, match="timeout_us"):
        gpreempt.restore_process(1, timeout_us=TOO_LONG)
    with pytest.raises(gpreempt.InvalidArgument, match="size"):
        gpreempt.make_room(-1)
    with pytest.raises(gpreempt.InvalidArgument, match="device"):
        gpreempt.make_room(1, device=2**32 - 1)
    with pytest.raises(TypeError, match="True or False"):
        gpreempt.set_evictable(1)  # type: ignore[arg-type]
    with pytest.raises(gpreempt.InvalidArgument, match="pid"):
        gpreempt.evict(0)


def test_processes_without_gpu_memory_are_refused(scene: Scene) -> None:
    with pytest.raises(gpreempt.GPreemptError, match=str(os.getpid())):
        gpreempt.evict(os.getpid())
    with pytest.raises(gpreempt.NoSuchProcess):
        gpreempt.restore_process(2**31 - 1)
    load, _ = busy_load(scene)
    with pytest.raises(gpreempt.WrongState, match="not evicted"):
        gpreempt.restore_process(load.pid)
    gpreempt.set_evictable(True, pid=load.pid)
    gpreempt.set_evictable(False)
