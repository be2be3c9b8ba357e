"""critical(): hints."""

from __future__ import annotations

import asyncio
import threading
from typing import Iterator

import pytest

import gpreempt
from gpreempt import critical, hint
from listing import busy_load, idle_queue
from scene import Scene, until


@pytest.fixture
def low(scene: Scene) -> int:
    """The queue of a load. It is there first: children get the priority of their parent."""
    return busy_load(scene)[1]


@pytest.fixture
def own(scene: Scene, low: int) -> Iterator[gpreempt.Queue]:
    with idle_queue() as queue:
        yield queue


def test_the_device_is_free_before_there_is_work(low: int, own: gpreempt.Queue) -> None:
    for _ in range(3):
        with critical(deadline_us=5_000_000) as is_heard:
            assert is_heard
            until("it was made free", lambda: not gpreempt.queue(low).is_on)
        until("it is given back", lambda: gpreempt.queue(low).is_on)


def test_blocks_are_reentrant_and_the_last_one_ends_the_hint(low: int, own: gpreempt.Queue) -> None:
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
    assert len(hint._this_thread().blocks) == 0


def test_it_decorates_functions(scene: Scene) -> None:
    @critical
    def plain(a: int, *, b: int) -> tuple[int, int]:
        """Documented."""
        return a + b, len(hint._this_thread().blocks)

    @critical(deadline_us=100, required=True)
    def again(depth: int) -> int:
        return again(depth - 1) if depth else len(hint._this_thread().blocks)

    @critical(required=True)
    async def awaited() -> int:
        await asyncio.sleep(0)
        return len(hint._this_thread().blocks)

    assert plain(1, b=2) == (3, 1)
    assert plain.__doc__ == "Documented." and plain.__name__ == "plain"
    assert again(4) == 5
    assert asyncio.run(awaited()) == 1
    assert len(hint._this_thread().blocks) == 0


async def overlapping(low: int, end: asyncio.Event, *, deadline_us: int) -> None:
    """A request that ends after one that came later."""

    @critical(required=True)
    async def short() -> None:
        await asyncio.sleep(0)

    with critical(deadline_us=deadline_us, required=True):
        await asyncio.gather(short(), short())
        await asyncio.to_thread(until, "it was made free", lambda: not gpreempt.queue(low).is_on)
        await short()
        await asyncio.sleep(0.3)
        assert not gpreempt.queue(low).is_on, "the end of another request ended this one"
        end.set()


def test_requests_of_one_event_loop_do_not_end_each_other(low: int, own: gpreempt.Queue) -> None:
    async def main() -> None:
        end = asyncio.Event()
        first = asyncio.create_task(overlapping(low, end, deadline_us=5_000_000))
        with critical(required=True):
            await end.wait()
        await first

    asyncio.run(main())
    assert hint._this_thread().blocks == []
    until("it is given back", lambda: gpreempt.queue(low).is_on)


def test_each_request_renews_the_hint_of_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def request(seconds: float) -> None:
        with critical(required=True):
            await asyncio.sleep(seconds)

    async def main(id: int) -> list[bool]:
        """For three times as long as one hint lasts there is always a request."""
        running = [asyncio.create_task(request(0.4))]
        seen = []
        for _ in range(12):
            await asyncio.sleep(0.25)
            running.append(asyncio.create_task(request(0.4)))
            seen.append(gpreempt.queue(id).is_on)
        await asyncio.gather(*running)
        return seen

    with Scene(hint_max_ms=1000) as made:
        monkeypatch.setenv("GPREEMPT_SOCKET", str(made.socket))
        monkeypatch.setenv("GPREEMPT_EMULATED_SOCKET", str(made.gpu))
        low = busy_load(made)[1]
        with idle_queue():
            seen = asyncio.run(main(low))
            assert not any(seen[1:]), seen
            until("it is given back", lambda: gpreempt.queue(low).is_on)


def test_a_cancelled_request_ends_its_block(scene: Scene) -> None:
    @critical(required=True)
    async def endless() -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        assert len(hint._this_thread().blocks) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert hint._this_thread().blocks == []


def test_the_nearest_deadline_of_a_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    class Calls:
        def gpreempt_hint_begin(self, deadline_us: int) -> int:
            given.append(deadline_us)
            return 0

        def gpreempt_hint_end(self) -> int:
            return 0

    class Library:
        calls = quick = Calls()

    monkeypatch.setattr(hint, "_library", Library())
    with critical(deadline_us=2_000_000), critical(), critical(deadline_us=9_000_000):
        with critical(deadline_us=1_000_000):
            pass
    with critical(), critical():
        pass
    assert given[0] == 2_000_000 and given[4:] == [0, 0], given
    assert all(1_500_000 < nearest <= 2_000_000 for nearest in given[1:3]), given
    assert 500_000 < given[3] <= 1_000_000, given


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
    assert len(hint._this_thread().blocks) == 0


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
    assert len(hint._this_thread().blocks) == 0


def test_deadlines_are_checked() -> None:
    for wrong in (-1, 3_600_000_001):
        with pytest.raises(gpreempt.InvalidArgument, match="deadline_us"):
            critical(deadline_us=wrong)
    with pytest.raises(TypeError):
        critical(deadline_us=0.5)  # type: ignore[call-overload]
