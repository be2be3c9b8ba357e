"""Children: a forked process has a connection of its own and leaves its parent's alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any, Callable

import pytest

import gpreempt
from gpreempt import Backend, Queue, critical
from listing import busy_load
from scene import Scene, until

Answers = Any


def in_child(work: Callable[[Answers], None], method: str = "fork") -> list[Any]:
    """Runs something in a child; what it puts into the queue is the answer."""
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    child = context.Process(target=work, args=(answers,))
    child.start()
    answer: list[Any] = answers.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    return answer


def list_ids(answers: Answers) -> None:
    answers.put([queue.id for queue in gpreempt.queues()])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_has_a_connection_of_its_own(scene: Scene, method: str) -> None:
    _, id = busy_load(scene)
    gpreempt.suspend(id)
    assert in_child(list_ids, method) == [id]
    assert gpreempt.queue(id).is_suspended_by_us, "the child's end is not the parent's"
    gpreempt.resume(id)


def test_a_child_does_not_own_what_its_parent_suspended(scene: Scene) -> None:
    _, id = busy_load(scene)

    def work(answers: Answers) -> None:
        try:
            gpreempt.resume(id)
            answers.put(["resumed"])
        except gpreempt.WrongState:
            answers.put([gpreempt.queue(id).is_suspended_by_us])

    with gpreempt.suspended(id):
        assert in_child(work) == [False]
        assert gpreempt.queue(id).is_suspended_by_us


def test_a_child_inside_of_a_block_may_begin_its_own(scene: Scene) -> None:
    block = critical(required=True)

    def work(answers: Answers) -> None:
        with critical(required=True) as is_heard:
            pass
        block.__exit__(None, None, None)
        answers.put([is_heard])

    with block:
        assert in_child(work) == [True]
    with critical(required=True):
        pass


def test_a_parents_queue_is_not_the_childs(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED) as queue:

        def work(answers: Answers) -> None:
            try:
                queue.synchronize()
                told = ""
            except gpreempt.WrongState as error:
                told = str(error)
            queue.close()
            with Queue(3, backend=Backend.EMULATED) as own:
                own.launch(1, arguments=[0, 0, 1000, 32])
                own.synchronize()
                answers.put([told, own.completed])

        told, completed = in_child(work)
        assert "parent" in told and completed == 1
        queue.launch(1, arguments=[0, 0, 1000, 32])
        queue.synchronize()


def test_a_parents_scheduler_goes_on_and_the_child_may_have_its_own(scene: Scene) -> None:
    offline, id = busy_load(scene)
    online, _ = busy_load(scene)
    # Long, because on a busy machine a load may be without work for a while.
    scheduler = gpreempt.GPreemptScheduler(quiet_us=2_000_000)
    scheduler.add_online(pid=online.pid)
    scheduler.add_offline(pid=offline.pid)

    def work(answers: Answers) -> None:
        was_running = scheduler.is_running
        scheduler.stop()
        answers.put([was_running, gpreempt.queue(id).is_suspended])

    with scheduler:
        until("it is suspended", lambda: gpreempt.queue(id).is_suspended)
        assert in_child(work) == [False, True]
        assert gpreempt.queue(id).is_suspended
    assert not gpreempt.queue(id).is_suspended


PARENT = """
import os, sys, time, gpreempt
gpreempt.suspend(int(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


def test_a_child_that_lives_on_keeps_nothing_suspended(scene: Scene) -> None:
    _, id = busy_load(scene)
    command = [sys.executable, "-c", PARENT, str(id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert gpreempt.queue(id).is_suspended
            os.kill(parent.pid, signal.SIGKILL)
            until("it is resumed", lambda: not gpreempt.queue(id).is_suspended)
        finally:
            os.kill(child, signal.SIGKILL)
