"""Queues of this process on AMD GPUs."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpreempt import NoDevice, amd


def test_sixteen_priorities_are_three_for_the_hardware() -> None:
    found = [amd.pipe_priority(priority) for priority in range(16)]
    low, medium, high = amd.PipePriority
    assert found == [low] * 7 + [medium] * 4 + [high] * 5
    with pytest.raises(ValueError):
        amd.pipe_priority(16)


@pytest.mark.parametrize("wrong", [{"queue": -1}, {"ring_bytes": 2**32}, {"priority": 16}])
def test_nonsense_is_refused_here(wrong: dict[str, int]) -> None:
    given: dict[str, Any] = {"queue": 1, "ring_address": 4096, "ring_bytes": 4096, **wrong}
    queue = given.pop("queue")
    with pytest.raises(ValueError):
        amd.update_queue(queue, **given)


@pytest.mark.skipif(os.path.exists("/dev/kfd"), reason="this machine has AMD devices")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(NoDevice, match="/dev/kfd"):
        amd.update_queue(1, ring_address=4096, ring_bytes=4096, on=False)
