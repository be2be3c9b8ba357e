"""Queues of one's own on the emulated GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
from pathlib import Path
from typing import Callable

import pytest

import gpreempt
from gpreempt import Backend, Queue
from gpreempt._call import call
from listing import busy_load
from scene import Scene, until

MIX = 1
"""A kernel whose result depends on every launch, and on their order."""
GROUPS = 4
BYTES = GROUPS * 32


def launch(queue: Queue, number: int, busy_ns: int = 100_000) -> None:
    arguments = [0, number, busy_ns, BYTES]
    queue.launch(MIX, grid=GROUPS, block=1, arguments=arguments)


def mixed(count: int) -> int:
    """What every word is after so many launches."""
    word = 0
    for number in range(count):
        word = (word * 1_664_525 + number + 1_013_904_223) % 2**32
    return word


def words(queue: Queue) -> set[int]:
    return set(struct.unpack(f"<{BYTES // 4}I", queue.read(0, BYTES)))


@pytest.mark.parametrize("priority", [0, 7, 15])
def test_kernels_run_once_and_in_order(scene: Scene, priority: int) -> None:
    with Queue(priority, backend=Backend.EMULATED) as queue:
        for number in range(50):
            launch(queue, number)
        queue.synchronize()
        assert queue.submitted == queue.completed == 50
        assert words(queue) == {mixed(50)}


def test_the_important_queue_is_first_and_nothing_is_lost(scene: Scene) -> None:
    load, id = busy_load(scene, priority=2)
    with Queue(7, backend=Backend.EMULATED) as queue:
        until("it is known", lambda: _is_known(queue))
        until("it counts", lambda: gpreempt.queue(queue.id).priority == 7)
        for number in range(100):
            launch(queue, number, 2_000_000)
        until("the load makes way", lambda: gpreempt.queue(id).preempts > 0)
        queue.synchronize()
        assert words(queue) == {mixed(100)}
    assert load.finish()["exactness"]["result"] == "pass"


def test_a_low_queue_is_not_deep(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED, depth=2) as queue:
        for number in range(10):
            launch(queue, number, 5_000_000)
            assert queue.submitted - queue.completed <= 2
        queue.synchronize()


def test_a_blocked_queue_waits(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED) as queue:
        queue.block()
        thread = threading.Thread(target=launch, args=(queue, 0))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and queue.submitted == 0
        queue.unblock()
        thread.join(30)
        queue.synchronize()
        assert queue.completed == 1


def test_closing_does_not_wait_for_ever_for_a_blocked_launch(scene: Scene) -> None:
    queue = Queue(3, backend=Backend.EMULATED)
    queue.block()
    told: list[Exception] = []

    def work() -> None:
        try:
            launch(queue, 0)
        except gpreempt.WrongState as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.1)
    queue.close()
    thread.join(30)
    assert not thread.is_alive() and len(told) == 1


def test_a_launch_that_may_not_wait_says_so(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED, depth=1) as queue:
        launch(queue, 0, 1_000_000_000)
        for timeout_us in (0, 20_000):
            with pytest.raises(gpreempt.Busy):
                queue.launch(MIX, arguments=[0, 1, 0, 32], timeout_us=timeout_us)
        assert queue.submitted == 1


def test_ctrl_c_gets_through(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED, depth=1) as queue:
        launch(queue, 0, 2_000_000_000)
        waits: list[Callable[[], None]] = [queue.synchronize, lambda: launch(queue, 1)]
        for wait in waits:
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                wait()


def test_waiting_has_an_end(scene: Scene) -> None:
    with Queue(3, backend=Backend.EMULATED) as queue:
        launch(queue, 0, 4_000_000_000)
        with pytest.raises(gpreempt.TimedOut):
            queue.synchronize(timeout_us=150_000)
        with pytest.raises(gpreempt.TimedOut):
            queue.synchronize(timeout_us=0)


def test_many_threads_use_one_queue(scene: Scene) -> None:
    with Queue(8, backend=Backend.EMULATED) as queue:

        def work() -> None:
            for _ in range(50):
                launch(queue, 0, 1000)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        queue.synchronize()
        assert queue.completed == 200


def test_a_closed_queue_is_of_no_use(scene: Scene) -> None:
    queue = Queue(3, backend=Backend.EMULATED)
    assert "priority 3, emulated" in repr(queue)
    queue.close()
    queue.close()
    assert "closed" in repr(queue)
    for use in (queue.synchronize, queue.block, lambda: queue.submitted, lambda: queue.id):
        with pytest.raises(gpreempt.WrongState, match="closed"):
            use()


def test_handles_that_are_no_queues_are_exceptions(scene: Scene) -> None:
    queue = Queue(3, backend=Backend.EMULATED)
    pointer = queue._pointer
    queue.close()
    for function in ("block", "unblock", "destroy"):
        with pytest.raises(gpreempt.NoSuchQueue):
            call(f"gpreempt_queue_{function}", pointer)
        with pytest.raises(gpreempt.InvalidArgument):
            call(f"gpreempt_queue_{function}", ctypes.c_void_p(0x1000))


def test_misuse_is_refused(scene: Scene) -> None:
    with pytest.raises(gpreempt.InvalidArgument):
        Queue(16, backend=Backend.EMULATED)
    with pytest.raises(ValueError):
        Queue(3, backend=7)  # type: ignore[arg-type]
    with pytest.raises(gpreempt.GPreemptError):
        Queue(3, backend=Backend.EMULATED, device=9)
    with Queue(3, backend=Backend.EMULATED) as queue:
        with pytest.raises(gpreempt.InvalidArgument):
            queue.launch(MIX, arguments=[0])
        with pytest.raises(gpreempt.GPreemptError):
            queue.launch(1000, arguments=[0, 0, 0, 32])
        with pytest.raises(gpreempt.InvalidArgument):
            queue.launch(MIX, grid=(1, 1, 1, 1), arguments=[0, 0, 0, 32])
        with pytest.raises(gpreempt.InvalidArgument):
            queue.launch(MIX, grid=0, arguments=[0, 0, 0, 32])
        with pytest.raises(gpreempt.InvalidArgument):
            queue.launch(MIX, arguments=[0, -1, 0, 32])
        with pytest.raises(gpreempt.InvalidArgument, match="65536 bytes"):
            queue.read(2**31, 4)
        for address, size in [(0, 65537), (65535, 2), (0, 2**26)]:
            with pytest.raises(gpreempt.InvalidArgument):
                queue.read(address, size)
        for size in (-1, 2**31 + 1, 2**63 - 1, 2**64):
            with pytest.raises(gpreempt.InvalidArgument):
                queue.read(0, size)
        with pytest.raises(gpreempt.GPreemptError):
            queue.stream
        queue.launch(MIX, arguments=[ctypes.c_uint32(0), 0, 0, 32])
        queue.synchronize()


def test_without_an_emulated_gpu_there_is_no_queue(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(gpreempt.GPreemptError):
        Queue(3, backend=Backend.EMULATED, socket=tmp_path / "nowhere")


def test_without_cuda_there_is_no_queue(scene: Scene) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    with pytest.raises(gpreempt.NoDevice):
        Queue(3, backend=Backend.CUDA)


def _is_known(queue: Queue) -> bool:
    try:
        return queue.id > 0
    except gpreempt.NotControlled:
        return False
