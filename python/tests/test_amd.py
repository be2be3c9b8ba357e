"""Queues of this process on AMD GPUs."""

from __future__ import annotations

import os
from typing import Any

import pytest

import gpreempt
from gpreempt import NoDevice, amd
from listing import busy_load, is_still, until_runs
from scene import Scene


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


def test_queues_of_others_are_stopped_and_go_on(amd_scene: Scene) -> None:
    load, id = busy_load(amd_scene)
    assert gpreempt.queue(id).device_kind is gpreempt.DeviceKind.AMD
    gpreempt.suspend(id)
    assert is_still(load)
    gpreempt.resume(id)
    until_runs(load)
    gpreempt.interrupt(id)
    assert is_still(load)
    gpreempt.restore(id)
    until_runs(load)
    with pytest.raises(gpreempt.Unsupported):
        gpreempt.deactivate(id)
    assert load.finish()["exactness"]["result"] == "pass"
