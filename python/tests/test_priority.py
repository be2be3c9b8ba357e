"""Priorities."""

from __future__ import annotations

import os

import pytest

import gpreempt
from listing import queue_of
from scene import Scene, until


def test_a_process_gets_a_priority(scene: Scene) -> None:
    load = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    assert queue_of(load).priority == 2
    gpreempt.set_priority(6, pid=load.pid)
    until("it has it", lambda: gpreempt.priority_of(load.pid) == 6)


def test_a_queue_gets_one_of_its_own_and_that_of_its_process_back(scene: Scene) -> None:
    load = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    id = queue_of(load).id
    gpreempt.set_priority(5, queue=id)
    until("it has it", lambda: gpreempt.queue(id).priority == 5)
    assert gpreempt.queue(id).has_own_priority
    gpreempt.clear_queue_priority(id)
    until("it has that of before", lambda: gpreempt.queue(id).priority == 2)
    assert not gpreempt.queue(id).has_own_priority


def test_the_more_important_one_runs_and_the_other_waits(scene: Scene) -> None:
    low = scene.load(env={"GPREEMPT_PRIORITY": "3"})
    high = scene.load(env={"GPREEMPT_PRIORITY": "3"})
    until("both", lambda: len(gpreempt.queues()) == 2)
    gpreempt.set_priority(7, pid=high.pid)
    until("one waits", lambda: not gpreempt.queues(pid=low.pid)[0].is_on)
    assert gpreempt.queues(pid=high.pid)[0].is_on
    gpreempt.set_priority(7, pid=low.pid)
    until("both run", lambda: all(queue.is_on for queue in gpreempt.queues()))
    high.finish()
    low.finish()


def test_attach_restores_what_was(scene: Scene) -> None:
    load = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    queue_of(load)
    with gpreempt.attach(load.pid, 7):
        until("inside", lambda: gpreempt.priority_of(load.pid) == 7)
    until("outside", lambda: gpreempt.priority_of(load.pid) == 2)
    with pytest.raises(ZeroDivisionError):
        with gpreempt.attach(load.pid, 9):
            raise ZeroDivisionError
    until("after an exception", lambda: gpreempt.priority_of(load.pid) == 2)


def test_attach_survives_the_end_of_the_process(scene: Scene) -> None:
    load = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    queue_of(load)
    with gpreempt.attach(load.pid, 5):
        load.kill()


def test_a_process_that_nobody_knows_yet_is_attached_and_let_go_of(scene: Scene) -> None:
    with pytest.raises(gpreempt.NotControlled):
        gpreempt.priority_of()
    with gpreempt.attach(os.getpid(), 6):
        with gpreempt.Queue(6, backend=gpreempt.Backend.EMULATED) as queue:
            until("it is known", lambda: bool(gpreempt.queues(pid=os.getpid())))
            assert queue.priority == 6


def test_this_process_is_meant_unless_another_is_named(scene: Scene) -> None:
    with gpreempt.Queue(3, backend=gpreempt.Backend.EMULATED) as queue:
        gpreempt.set_priority(5)
        gpreempt.clear_queue_priority(queue.id)
        until("it has it", lambda: gpreempt.queue(queue.id).priority == 5)
        assert gpreempt.priority_of() == 5


def test_nonsense_is_refused_before_anybody_is_asked(scene: Scene) -> None:
    for wrong in (-1, 16, 2**40):
        with pytest.raises(gpreempt.InvalidArgument, match="priority is"):
            gpreempt.set_priority(wrong)
    for pid in (0, -5, 2**31):
        with pytest.raises(gpreempt.InvalidArgument, match="pid is"):
            gpreempt.set_priority(3, pid=pid)
    with pytest.raises(TypeError):
        gpreempt.set_priority("high")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        gpreempt.set_priority(3, pid=1, queue=1)
    with pytest.raises(gpreempt.NoSuchQueue):
        gpreempt.set_priority(3, queue=10**12)


def test_a_process_gets_a_latency_budget(scene: Scene) -> None:
    load = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    queue_of(load)
    for percent in (20, 400, 0):
        gpreempt.set_latency_budget(percent, pid=load.pid)
    for wrong in (-1, 401, 2**40):
        with pytest.raises(gpreempt.InvalidArgument, match="percent is"):
            gpreempt.set_latency_budget(wrong, pid=load.pid)
    with pytest.raises(TypeError):
        gpreempt.set_latency_budget("20%")  # type: ignore[arg-type]


def test_a_process_that_is_not_there_is_an_error(scene: Scene) -> None:
    load = scene.load()
    load.kill()
    with pytest.raises(gpreempt.NoSuchProcess):
        gpreempt.set_priority(3, pid=load.pid)
    with pytest.raises(gpreempt.GPreemptError):
        with gpreempt.attach(load.pid, 3):
            raise AssertionError("the block must not run")
