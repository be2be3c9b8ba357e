"""Suspending and resuming."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import gpreempt
from listing import busy_load, is_still, queue_of, until_runs
from scene import Scene, until


def is_off(id: int) -> bool:
    queue = gpreempt.queue(id)
    return queue.is_suspended and not queue.is_on


def test_a_suspended_queue_stands_still_and_loses_nothing(scene: Scene) -> None:
    load, id = busy_load(scene)
    gpreempt.suspend(id)
    assert is_off(id) and gpreempt.queue(id).is_suspended_by_us
    assert is_still(load)
    gpreempt.resume(id)
    until_runs(load)
    assert not gpreempt.queue(id).is_suspended
    assert load.finish()["exactness"]["result"] == "pass"


def test_queues_may_be_named_in_several_ways(scene: Scene) -> None:
    (_, first), (_, second) = busy_load(scene), busy_load(scene)
    gpreempt.suspend([first, second, first], grace_us=1000)
    assert is_off(first) and is_off(second)
    gpreempt.resume(gpreempt.queues())
    gpreempt.suspend(gpreempt.queue(first))
    assert is_off(first) and not gpreempt.queue(second).is_suspended
    gpreempt.resume(iter([first]))
    gpreempt.suspend([])
    gpreempt.resume([])


def test_all_or_none(scene: Scene) -> None:
    load, id = busy_load(scene)
    with pytest.raises(gpreempt.NoSuchQueue):
        gpreempt.suspend([id, 10**12])
    assert not gpreempt.queue(id).is_suspended
    with pytest.raises(gpreempt.WrongState):
        gpreempt.resume(id)
    until_runs(load)


def test_misuse_is_refused(scene: Scene) -> None:
    _, id = busy_load(scene)
    for grace_us in (-1, 60_000_001):
        with pytest.raises(gpreempt.InvalidArgument, match="grace_us"):
            gpreempt.suspend(id, grace_us=grace_us)
    with pytest.raises(TypeError):
        gpreempt.suspend("all")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="queues or a pid"):
        with gpreempt.suspended(id, pid=1):
            raise AssertionError("the block must not run")
    for lease in (0, 86_400_001):
        with pytest.raises(gpreempt.InvalidArgument):
            gpreempt.set_lease(lease)
    assert not gpreempt.queue(id).is_suspended


def test_a_block_resumes_however_it_ends(scene: Scene) -> None:
    load, id = busy_load(scene)
    with gpreempt.suspended(pid=load.pid) as ids:
        assert ids == [id] and is_off(id)
    until_runs(load)
    with pytest.raises(ZeroDivisionError):
        with gpreempt.suspended(id):
            assert is_off(id)
            raise ZeroDivisionError
    assert not gpreempt.queue(id).is_suspended


def test_blocks_may_be_nested_and_the_last_one_resumes(scene: Scene) -> None:
    (_, first), (_, second) = busy_load(scene), busy_load(scene)
    with gpreempt.suspended(first):
        with gpreempt.suspended([first, second]):
            assert is_off(first) and is_off(second)
        assert is_off(first) and not gpreempt.queue(second).is_suspended
    assert not gpreempt.queue(first).is_suspended


def test_blocks_of_several_threads_overlap(scene: Scene) -> None:
    load, id = busy_load(scene)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                with gpreempt.suspended(id):
                    assert is_off(id)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not gpreempt.queue(id).is_suspended
    load.finish()


def test_a_block_survives_the_end_of_the_process_and_an_early_resume(scene: Scene) -> None:
    (load, first), (_, second) = busy_load(scene), busy_load(scene)
    with gpreempt.suspended([first, second]):
        load.kill()
        until("it is gone", lambda: not gpreempt.queues(pid=load.pid))
    assert not gpreempt.queue(second).is_suspended
    with gpreempt.suspended(second):
        gpreempt.resume(second)


def test_interrupt_and_restore(scene: Scene) -> None:
    load, id = busy_load(scene)
    assert gpreempt.level(id) is gpreempt.Level.INTERRUPT
    gpreempt.interrupt(id)
    assert not gpreempt.queue(id).is_on and is_still(load)
    gpreempt.restore(id)
    until_runs(load)
    with pytest.raises(gpreempt.WrongState):
        gpreempt.restore(id)
    with pytest.raises(gpreempt.NoSuchQueue):
        gpreempt.interrupt(10**12)
    assert load.finish()["exactness"]["result"] == "pass"


def test_level_two_lets_the_kernel_end(scene: Scene) -> None:
    load, id = busy_load(scene)
    gpreempt.deactivate(id)
    assert is_still(load)
    gpreempt.reactivate(id)
    until_runs(load)
    assert load.finish()["exactness"]["result"] == "pass"


def test_preempt_waits_or_not(scene: Scene) -> None:
    load, id = busy_load(scene)
    gpreempt.preempt(id)
    assert is_off(id)
    gpreempt.resume(id)
    gpreempt.preempt(id, timeout_us=10_000_000)
    assert is_off(id)
    gpreempt.resume(id)
    gpreempt.preempt(id, wait=False)
    until("it is off", lambda: is_off(id))
    gpreempt.resume(id)
    until_runs(load)


def test_a_process_is_suspended_as_a_whole(scene: Scene) -> None:
    load, id = busy_load(scene)
    gpreempt.suspend_process(load.pid, lease=60_000)
    until("it is off", lambda: is_off(id))
    gpreempt.resume_process(load.pid)
    until_runs(load)
    gpreempt.suspend_process(load.pid, lease=50)
    until("the lease is over", lambda: not gpreempt.queue(id).is_suspended)


def test_a_suspension_ends_with_its_lease(scene: Scene) -> None:
    _, id = busy_load(scene)
    try:
        gpreempt.set_lease(100)
        gpreempt.suspend(id)
        until("the lease is over", lambda: not gpreempt.queue(id).is_suspended)
    finally:
        gpreempt.set_lease(600_000)


SUSPENDER = """
import sys, time, gpreempt
gpreempt.suspend(int(sys.argv[1]))
print("suspended", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whoever_dies_leaves_nothing_suspended(scene: Scene, number: signal.Signals) -> None:
    load, id = busy_load(scene)
    command = [sys.executable, "-c", SUSPENDER, str(id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline() == b"suspended\n"
        queue = gpreempt.queue(id)
        assert queue.is_suspended and not queue.is_suspended_by_us
        with pytest.raises(gpreempt.WrongState):
            gpreempt.resume(id)
        os.kill(child.pid, number)
    until("it goes on", lambda: not gpreempt.queue(id).is_suspended)
    until_runs(load)
    assert queue_of(load).id == id
