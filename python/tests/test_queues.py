"""Listing queues."""

from __future__ import annotations

import os

import pytest

import gpreempt
from gpreempt import DeviceKind, Level
from scene import Scene, until


def test_a_load_is_listed_with_what_is_known_of_it(scene: Scene) -> None:
    assert gpreempt.queues() == []
    load = scene.load(env={"GPREEMPT_PRIORITY": "3"})
    until("its queue", lambda: bool(gpreempt.queues(pid=load.pid)))
    (queue,) = gpreempt.queues()
    assert queue.pid == load.pid and queue.uid == os.getuid() and queue.device == 0
    assert queue.name == "gpreempt-load" and queue.priority == 3
    assert queue.device_kind is DeviceKind.EMULATED and queue.level is Level.INTERRUPT
    assert queue.is_on and not queue.is_suspended and not queue.has_own_priority
    until("it has work", lambda: gpreempt.queue(queue.id).is_active)
    assert gpreempt.level(queue.id) is Level.INTERRUPT
    assert gpreempt.queues(device=0) and not gpreempt.queues(device=1)
    assert not gpreempt.queues(pid=load.pid + 1)
    load.finish()
    until("it is gone", lambda: not gpreempt.queues())
    with pytest.raises(gpreempt.NoSuchQueue):
        gpreempt.queue(queue.id)
    with pytest.raises(gpreempt.NoSuchQueue):
        gpreempt.level(queue.id)


def test_queues_are_found_by_priority(scene: Scene) -> None:
    loads = [scene.load(env={"GPREEMPT_PRIORITY": str(level)}) for level in (1, 4, 7)]
    until("three queues", lambda: len(gpreempt.queues()) == 3)
    found = gpreempt.find_queues(2, 6)
    assert [queue.pid for queue in found] == [loads[1].pid]
    assert len(gpreempt.find_queues()) == 3
    with pytest.raises(gpreempt.InvalidArgument):
        gpreempt.find_queues(0, 16)


def test_more_queues_than_there_was_room_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [gpreempt.Queue(2, backend=gpreempt.Backend.EMULATED) for _ in range(70)]
    until("seventy queues", lambda: len(gpreempt.queues()) == 70)
    ids = [queue.id for queue in gpreempt.queues()]
    assert ids == sorted(set(ids))
    for queue in own:
        queue.close()
    until("they are gone", lambda: not gpreempt.queues())


def test_numbers_that_are_no_ids_are_refused(scene: Scene) -> None:
    for wrong in (-1, 2**64):
        with pytest.raises(gpreempt.InvalidArgument, match="a queue id"):
            gpreempt.queue(wrong)
    for strange in ("1", 1.5, True, None):
        with pytest.raises(TypeError):
            gpreempt.queue(strange)  # type: ignore[arg-type]
    with pytest.raises(gpreempt.NoSuchQueue):
        gpreempt.queue(10**15)
