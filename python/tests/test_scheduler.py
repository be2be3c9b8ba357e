"""GPreemptScheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import gpreempt
from gpreempt import GPreemptScheduler, QueueInfo
from listing import busy_load, is_still, queue_of, until_runs
from scene import Load, Scene, until

LOW = {"GPREEMPT_PRIORITY": "3"}
QUIET_US = 2_000_000
"""On a busy machine a load may be without work for a while; tests that count must not see it."""


def is_suspended(id: int) -> bool:
    return gpreempt.queue(id).is_suspended


def pair(scene: Scene) -> tuple[Load, int, Load, int]:
    """An offline and an online load of the same priority: without a scheduler both run."""
    offline, offline_id = busy_load(scene)
    online, online_id = busy_load(scene)
    return offline, offline_id, online, online_id


def test_offline_work_is_off_while_online_work_is_there(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    suspended: list[QueueInfo] = []
    resumed: list[QueueInfo] = []
    scheduler = GPreemptScheduler(
        quiet_us=QUIET_US, on_suspend=suspended.extend, on_resume=resumed.extend
    )
    scheduler.add_online(pid=online.pid)
    scheduler.add_offline(pid=offline.pid)
    with scheduler:
        assert scheduler.is_running
        until("it is suspended", lambda: is_suspended(id))
        assert is_still(offline)
        until_runs(online)
        online.finish()
        until("it is resumed", lambda: not is_suspended(id))
        until_runs(offline)
    assert not scheduler.is_running
    assert [queue.id for queue in suspended] == [id] == [queue.id for queue in resumed]
    statistics = scheduler.statistics()
    assert statistics.suspends == statistics.resumes == 1 and statistics.errors == 0
    assert statistics.suspended_now == 0 and statistics.suspended_s > 0
    assert statistics.checks > 2
    assert statistics.suspend.count == 1 and statistics.suspend.max_us > 0
    assert statistics.resume.count == 1
    assert statistics.to_dict()["suspend"]["count"] == 1
    assert offline.finish()["exactness"]["result"] == "pass"


def test_stopping_and_exceptions_resume(scene: Scene) -> None:
    offline, id, _, online_id = pair(scene)
    scheduler = GPreemptScheduler(quiet_us=QUIET_US)
    scheduler.add_online(queue=online_id)
    scheduler.add_offline(queue=id)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            with scheduler:
                until("it counts", lambda: scheduler.statistics().suspended_now == 1)
                assert is_suspended(id)
                raise ZeroDivisionError
        assert not is_suspended(id)
    scheduler.stop()
    assert scheduler.statistics().suspends == scheduler.statistics().resumes == 3
    until_runs(offline)


def test_what_is_removed_goes_on(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    with GPreemptScheduler(quiet_us=QUIET_US) as scheduler:
        scheduler.add_online(pid=online.pid)
        scheduler.add_offline(pid=offline.pid)
        until("it is suspended", lambda: is_suspended(id))
        scheduler.remove(pid=offline.pid)
        until("it is resumed", lambda: not is_suspended(id))
        with pytest.raises(gpreempt.WrongState):
            scheduler.remove(pid=offline.pid)


def test_an_offline_process_may_end_while_it_is_suspended(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    other, other_id = busy_load(scene)
    with GPreemptScheduler(quiet_us=QUIET_US) as scheduler:
        scheduler.add_online(pid=online.pid)
        scheduler.add_offline(pid=offline.pid)
        scheduler.add_offline(pid=other.pid)
        until("both", lambda: scheduler.statistics().suspended_now == 2)
        offline.kill()
        until("one", lambda: scheduler.statistics().suspended_now == 1)
        assert is_suspended(other_id)
    assert not is_suspended(other_id)
    assert scheduler.statistics().resumes == 1


def test_callbacks_that_fail_do_no_harm(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    errors: list[Exception] = []

    def fail(queues: list[QueueInfo]) -> None:
        raise ZeroDivisionError

    def fail_too(error: Exception) -> None:
        errors.append(error)
        raise error

    scheduler = GPreemptScheduler(
        quiet_us=QUIET_US, on_suspend=fail, on_resume=fail, on_error=fail_too
    )
    scheduler.add_online(pid=online.pid)
    scheduler.add_offline(pid=offline.pid)
    with scheduler:
        until("it was told", lambda: len(errors) == 1)
        assert is_suspended(id)
    assert not is_suspended(id)
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2
    assert scheduler.statistics().errors == 4


def test_a_callback_may_stop_it(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    tried: list[Exception] = []

    def stop(queues: list[QueueInfo]) -> None:
        scheduler.stop()
        try:
            scheduler.start()
        except gpreempt.WrongState as error:
            tried.append(error)

    scheduler = GPreemptScheduler(on_suspend=stop)
    scheduler.add_online(pid=online.pid)
    scheduler.add_offline(pid=offline.pid)
    scheduler.start()
    until("it stopped", lambda: not scheduler.is_running)
    until("it is resumed", lambda: not is_suspended(id))
    assert len(tried) == 1
    scheduler.stop()


def test_the_daemon_may_die_and_come_back(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    errors: list[Exception] = []
    scheduler = GPreemptScheduler(on_error=errors.append)
    scheduler.add_online(pid=online.pid)
    scheduler.add_offline(pid=offline.pid)
    with scheduler:
        until("it is suspended", lambda: is_suspended(id))
        scene.daemon.kill()
        until("it noticed", lambda: bool(errors))
        until_runs(offline)
        scene.start_daemon()
        until("it is suspended again", lambda: queue_of(offline).is_suspended)
    assert not queue_of(offline).is_suspended
    assert isinstance(errors[0], (gpreempt.NoDaemon, gpreempt.Disconnected))
    offline.finish()


def test_a_lease_is_renewed(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    scheduler = GPreemptScheduler(quiet_us=QUIET_US)
    scheduler.add_online(pid=online.pid)
    scheduler.add_offline(pid=offline.pid)
    try:
        gpreempt.set_lease(1000)
        with scheduler:
            until("it is suspended", lambda: is_suspended(id))
            threading.Event().wait(2.5)
            assert is_suspended(id)
            assert scheduler.statistics().suspends == 1
    finally:
        gpreempt.set_lease(600_000)


def test_a_block_of_the_same_process_keeps_its_queues(scene: Scene) -> None:
    offline, id, online, _ = pair(scene)
    with gpreempt.suspended(id):
        with GPreemptScheduler(quiet_us=QUIET_US) as scheduler:
            scheduler.add_online(pid=online.pid)
            scheduler.add_offline(pid=offline.pid)
            until("it counts", lambda: scheduler.statistics().suspended_now == 1)
        assert is_suspended(id)
    assert not is_suspended(id)


def test_two_devices_are_judged_each_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(devices=2) as scene:
        monkeypatch.setenv("GPREEMPT_SOCKET", str(scene.socket))
        here, there = scene.load(env=LOW), scene.load(env=LOW, device=1)
        online = scene.load(env=LOW)
        ids = [queue_of(load).id for load in (here, there, online)]
        with GPreemptScheduler(quiet_us=QUIET_US) as scheduler:
            scheduler.add_online(pid=online.pid)
            scheduler.add_offline(pid=here.pid)
            scheduler.add_offline(pid=there.pid)
            until("one is suspended", lambda: is_suspended(ids[0]))
            checks = scheduler.statistics().checks
            until("it looks again", lambda: scheduler.statistics().checks > checks + 5)
            assert not is_suspended(ids[1])
        gpreempt.disconnect()


def test_misuse_is_refused(scene: Scene) -> None:
    load, id = busy_load(scene)
    scheduler = GPreemptScheduler()
    scheduler.add_online(pid=load.pid)
    scheduler.add_online(pid=load.pid)
    with pytest.raises(gpreempt.WrongState, match="online already"):
        scheduler.add_offline(pid=load.pid)
    with pytest.raises(TypeError):
        scheduler.add_online()
    with pytest.raises(TypeError):
        scheduler.add_online(pid=load.pid, queue=id)
    with pytest.raises(gpreempt.NoSuchQueue):
        scheduler.add_online(queue=10**12)
    with pytest.raises(gpreempt.NoSuchProcess):
        scheduler.add_offline(pid=2**22 + 1)
    for interval_us in (0, 499, 60_000_001):
        with pytest.raises(gpreempt.InvalidArgument):
            GPreemptScheduler(interval_us=interval_us)
    with scheduler:
        with pytest.raises(gpreempt.WrongState, match="runs already"):
            scheduler.start()


def test_without_a_daemon_it_does_not_start() -> None:
    scheduler = GPreemptScheduler()
    with pytest.raises(gpreempt.NoDaemon):
        scheduler.start()
    assert not scheduler.is_running
    scheduler.stop()


PROGRAM = """
import os, signal, sys, time, gpreempt
online, offline, end = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
scheduler = gpreempt.GPreemptScheduler()
scheduler.add_online(pid=online)
scheduler.add_offline(pid=offline)
scheduler.start()
while not scheduler.statistics().suspended_now:
    time.sleep(0.01)
print("suspended", flush=True)
if end == "exit":
    sys.exit(3)
if end == "raise":
    raise KeyError("not caught")
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["exit", "raise", "kill"])
def test_nothing_stays_suspended_however_the_program_ends(scene: Scene, end: str) -> None:
    offline, id, online, _ = pair(scene)
    command = [sys.executable, "-c", PROGRAM, str(online.pid), str(offline.pid), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline() == b"suspended\n"
        if end == "kill":
            os.kill(child.pid, signal.SIGKILL)
        assert child.wait(30) == {"exit": 3, "raise": 1, "kill": -signal.SIGKILL}[end]
    until("it is resumed", lambda: not is_suspended(id))
    until_runs(offline)
