"""critical(): hints."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Iterator

import pytest

import gpreempt
from gpreempt import critical, hint
from listing import busy_load
from scene import Scene, until


@pytest.fixture
def low(scene: Scene) -> int:
    """The queue of a load. It is there first: children get the priority of their parent."""
    return busy_load(scene)[1]


@pytest.fixture
def own(scene: Scene, low: int) -> Iterator[gpreempt.Queue]:
    """This process is important and has a queue without work: only a hint can help it."""
    gpreempt.set_priority(7)
    with gpreempt.Queue(7, backend=gpreempt.Backend.EMULATED) as queue:
        until("it is known", lambda: bool(gpreempt.queues(pid=os.getpid())))
        yield queue


def test_the_device_is_free_before_there_is_work(low: int, own: gpreempt.Queue) -> None:
    for _ in range(3):
        with critical(deadline_us=5_000_000) as is_heard:
            assert is_heard
            until("it was made free", lambda: not gpreempt.queue(low).is_on)
        until("it is given back", lambda: gpreempt.queue(low).is_on)


def test_blocks_are_reentrant_and_the_outermost_counts(low: int, own: gpreempt.Queue) -> None:
    block = critical(deadline_us=5_000_000, required=True)
    with block:
        with block, critical(required=True):
            until("it was made free", lambda: not gpreempt.queue(low).is_on)
        # Still inside: it must not come back. Nothing tells that it would have, but time.
        threading.Event().wait(0.3)
        assert not gpreempt.queue(low).is_on
    until("it is given back", lambda: gpreempt.queue(low).is_on)


def test_an_exception_ends_the_block(low: int, own: gpreempt.Queue) -> None:
    with pytest.raises(ZeroDivisionError):
        with critical(required=True):
            until("it was made free", lambda: not gpreempt.queue(low).is_on)
            raise ZeroDivisionError
    until("it is given back", lambda: gpreempt.queue(low).is_on)
    assert hint._this_thread().depth == 0


def test_it_decorates_functions(scene: Scene) -> None:
    @critical
    def plain(a: int, *, b: int) -> tuple[int, int]:
        """Documented."""
        return a + b, hint._this_thread().depth

    @critical(deadline_us=100, required=True)
    def again(depth: int) -> int:
        return again(depth - 1) if depth else hint._this_thread().depth

    @critical(required=True)
    async def awaited() -> int:
        await asyncio.sleep(0)
        return hint._this_thread().depth

    assert plain(1, b=2) == (3, 1)
    assert plain.__doc__ == "Documented." and plain.__name__ == "plain"
    assert again(4) == 5
    assert asyncio.run(awaited()) == 1
    assert hint._this_thread().depth == 0


def test_a_generator_is_refused() -> None:
    with pytest.raises(TypeError, match="generator"):

        @critical
        def pieces() -> Iterator[int]:
            yield 1


def test_threads_do_not_disturb_each_other(scene: Scene) -> None:
    together = threading.Barrier(16)
    heard: list[bool] = []

    def work() -> None:
        together.wait(30)
        for _ in range(500):
            with critical(deadline_us=1000, required=True) as is_heard:
                pass
        heard.append(is_heard)

    # More threads than there are places on the page, one group after the other.
    for _ in range(5):
        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert heard == [True] * 80


def test_leaving_in_another_thread_is_an_error(scene: Scene) -> None:
    block = critical(required=True)
    block.__enter__()
    errors: list[Exception] = []

    def leave() -> None:
        try:
            block.__exit__(None, None, None)
        except gpreempt.WrongState as error:
            errors.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(errors) == 1
    block.__exit__(None, None, None)


def test_without_a_daemon_the_block_runs_all_the_same() -> None:
    ran = []
    with critical(deadline_us=1000) as is_heard:
        ran.append(is_heard)
    assert ran == [False]
    with pytest.raises(gpreempt.NoDaemon):
        with critical(required=True):
            raise AssertionError("the block must not run")
    assert hint._this_thread().depth == 0


def test_it_is_heard_again_when_the_daemon_is_back(scene: Scene) -> None:
    with critical(required=True):
        pass
    scene.daemon.kill()
    with critical():
        pass
    scene.start_daemon()

    def is_heard() -> bool:
        with critical() as heard:
            return heard

    until("it is heard", is_heard)


def test_the_daemon_may_go_inside_of_a_block(scene: Scene) -> None:
    with critical(required=True):
        scene.daemon.kill()
    with critical():
        gpreempt.disconnect()
    assert hint._this_thread().depth == 0


def test_deadlines_are_checked() -> None:
    for wrong in (-1, 3_600_000_001):
        with pytest.raises(gpreempt.InvalidArgument, match="deadline_us"):
            critical(deadline_us=wrong)
    with pytest.raises(TypeError):
        critical(deadline_us=0.5)  # type: ignore[call-overload]
