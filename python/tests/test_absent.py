"""No daemon, or one that comes and goes."""

from __future__ import annotations

import os
import threading
from typing import Callable

import pytest

import gpreempt
from gpreempt import Backend, Queue
from listing import busy_load, queue_of
from scene import Scene, until

CALLS: dict[str, Callable[[], object]] = {
    "connect": gpreempt.connect,
    "queues": gpreempt.queues,
    "find_queues": gpreempt.find_queues,
    "queue": lambda: gpreempt.queue(1),
    "level": lambda: gpreempt.level(1),
    "set_priority": lambda: gpreempt.set_priority(3),
    "set_latency_budget": lambda: gpreempt.set_latency_budget(20),
    "priority_of": gpreempt.priority_of,
    "detach": gpreempt.detach,
    "suspend": lambda: gpreempt.suspend(1),
    "resume": lambda: gpreempt.resume(1),
    "suspended": lambda: gpreempt.suspended(1).__enter__(),
    "attach": lambda: gpreempt.attach(os.getpid(), 3).__enter__(),
    "suspend_process": lambda: gpreempt.suspend_process(1),
    "resume_process": lambda: gpreempt.resume_process(1),
    "preempt": lambda: gpreempt.preempt(1),
    "interrupt": lambda: gpreempt.interrupt(1),
    "restore": lambda: gpreempt.restore(1),
    "deactivate": lambda: gpreempt.deactivate(1),
    "reactivate": lambda: gpreempt.reactivate(1),
    "evict": lambda: gpreempt.evict(1),
    "evicted": lambda: gpreempt.evicted(1).__enter__(),
    "restore_process": lambda: gpreempt.restore_process(1),
    "make_room": lambda: gpreempt.make_room(1),
    "set_evictable": lambda: gpreempt.set_evictable(True),
}


@pytest.mark.parametrize("name", CALLS)
def test_without_a_daemon_everything_says_so(name: str) -> None:
    with pytest.raises(gpreempt.NoDaemon) as caught:
        CALLS[name]()
    assert "gpreemptd" in str(caught.value)


def test_disconnecting_from_nobody_is_fine() -> None:
    gpreempt.disconnect()
    gpreempt.set_lease(600_000)


def test_the_next_daemon_is_found(scene: Scene) -> None:
    load, _ = busy_load(scene)
    scene.daemon.kill()
    with pytest.raises((gpreempt.NoDaemon, gpreempt.Disconnected)):
        gpreempt.queues()
    scene.start_daemon()
    assert queue_of(load).priority == 3


def test_disconnecting_ends_suspensions(scene: Scene) -> None:
    _, id = busy_load(scene)
    gpreempt.suspend(id)
    gpreempt.disconnect()
    until("it is resumed", lambda: not gpreempt.queue(id).is_suspended)


def test_another_socket_may_be_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPREEMPT_SOCKET", "/nowhere/at.all")
    gpreempt.disconnect()
    with pytest.raises(gpreempt.NoDaemon):
        gpreempt.queues()
    gpreempt.connect(scene.socket)
    assert gpreempt.queues() == []


def test_the_emulator_may_die(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED) as queue:
        scene.emulator.kill()
        with pytest.raises(gpreempt.GPreemptError):
            for _ in range(1000):
                queue.launch(1, arguments=[0, 0, 1000, 32])
                queue.synchronize(timeout_us=1_000_000)


def test_many_threads_share_one_connection(scene: Scene) -> None:
    _, id = busy_load(scene)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert [queue.id for queue in gpreempt.queues()] == [id]
                with pytest.raises(gpreempt.NoSuchQueue, match="999"):
                    gpreempt.queue(999)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
