"""Online work first: offline queues are off while online ones have work.

gpreemptd does this by itself, faster, once processes have priorities. This class is for programs
that want to decide themselves, to watch, and to measure what suspending costs.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Callable, Optional

from . import connection
from ._call import whole
from .errors import Disconnected, NoDaemon, NoSuchQueue, WrongState
from .queue_info import QueueInfo, queues
from .registration import Registrations
from .statistics import Samples, Statistics
from .suspension import GRACE_US_MAX, holds

QueuesCallback = Callable[[list[QueueInfo]], None]
ErrorCallback = Callable[[Exception], None]

_RETRY_S_MAX = 1.0
_running: weakref.WeakSet[GPreemptScheduler] = weakref.WeakSet()


class GPreemptScheduler:
    """Watches online and offline work in a thread, and keeps offline work off while online work
    is there.

    >>> scheduler = GPreemptScheduler()
    >>> scheduler.add_online(pid=serving)
    >>> scheduler.add_offline(pid=training)
    >>> with scheduler:
    ...     wait()
    >>> scheduler.statistics().suspend.p99_us

    Nothing stays suspended: not after stop(), nor an exception, nor the end of the program, nor
    its death (then gpreemptd resumes). A device is left to offline work when its online queues
    have had none for `quiet_us`. Callbacks run in the monitor thread; what they raise is counted
    and goes to `on_error`.
    """

    def __init__(
        self,
        *,
        interval_us: int = 2_000,
        quiet_us: int = 2_000,
        grace_us: int = 0,
        on_suspend: Optional[QueuesCallback] = None,
        on_resume: Optional[QueuesCallback] = None,
        on_error: Optional[ErrorCallback] = None,
    ) -> None:
        # gpreemptd closes sessions that ask more than 5,000 times a second.
        self._interval_s = whole(interval_us, "interval_us", 500, 60_000_000) / 1e6
        self._quiet_s = whole(quiet_us, "quiet_us", 0, 60_000_000) / 1e6
        self._grace_us = whole(grace_us, "grace_us", 0, GRACE_US_MAX)
        self._on_suspend = on_suspend
        self._on_resume = on_resume
        self._on_error = on_error
        self._registrations = Registrations()
        self._begin_anew()
        self._checks = 0
        self._suspends = 0
        self._resumes = 0
        self._errors = 0
        self._suspended_s = 0.0
        self._suspend_times = Samples()
        self._resume_times = Samples()

    def _begin_anew(self) -> None:
        """Nothing runs and nothing is suspended: at first, and in the child of a fork."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()
        self._suspended: dict[int, QueueInfo] = {}
        self._suspended_since = 0.0
        self._renewed_at = 0.0
        self._busy_until: dict[int, float] = {}

    def add_online(self, *, pid: Optional[int] = None, queue: Optional[int] = None) -> None:
        """A process with all its queues, now and later, or one queue is online work."""
        self._registrations.add("online", pid, queue)

    def add_offline(self, *, pid: Optional[int] = None, queue: Optional[int] = None) -> None:
        """A process with all its queues, now and later, or one queue is offline work."""
        self._registrations.add("offline", pid, queue)

    def remove(self, *, pid: Optional[int] = None, queue: Optional[int] = None) -> None:
        """Removes it; if it was suspended, the next iteration resumes it."""
        self._registrations.remove(pid, queue)

    def start(self) -> None:
        """Starts the monitor thread. Raises NoDaemon and the like now rather than later."""
        if self._pid != os.getpid():
            self._begin_anew()
        if self._thread is threading.current_thread():
            raise WrongState("a callback cannot start the scheduler that called it")
        queues()
        with self._lock:
            if self.is_running:
                raise WrongState("the scheduler runs already; stop it first")
            # One that was stopped by a callback may still be about to end.
            self._join()
            self._stopping = threading.Event()
            self._thread = threading.Thread(
                target=self._monitor, args=(self._stopping,), name="gpreempt-monitor", daemon=True
            )
            _running.add(self)
            self._thread.start()

    def stop(self) -> None:
        """Stops the thread and resumes all queues. A second call has no effect."""
        if self._pid != os.getpid():
            return  # The thread and what it suspended are the parent's.
        self._stopping.set()
        _running.discard(self)
        self._join()

    def _join(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def is_running(self) -> bool:
        """Whether it watches."""
        is_alive = self._thread is not None and self._thread.is_alive()
        return is_alive and not self._stopping.is_set() and self._pid == os.getpid()

    def statistics(self) -> Statistics:
        """What it has done so far."""
        suspended_s = self._suspended_s
        suspended = len(self._suspended)
        if suspended:
            suspended_s += time.monotonic() - self._suspended_since
        return Statistics(
            checks=self._checks,
            suspends=self._suspends,
            resumes=self._resumes,
            suspended_now=suspended,
            suspended_s=suspended_s,
            errors=self._errors,
            suspend=self._suspend_times.latencies(),
            resume=self._resume_times.latencies(),
        )

    def __enter__(self) -> GPreemptScheduler:
        self.start()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()

    def _monitor(self, stopping: threading.Event) -> None:
        failures = 0
        try:
            while not stopping.is_set():
                try:
                    self._check()
                    failures = 0
                except Exception as error:
                    failures += 1
                    self._report(error)
                # A daemon that is not running is not asked five hundred times a second.
                delay = min(self._interval_s * 2 ** min(failures, 10), _RETRY_S_MAX)
                stopping.wait(max(delay, self._interval_s))
        finally:
            try:
                self._resume(list(self._suspended))
            except Exception as error:
                self._report(error)

    def _check(self) -> None:
        self._checks += 1
        try:
            present = {queue.id: queue for queue in queues()}
        except (NoDaemon, Disconnected):
            # With the session its suspensions have ended.
            self._forget(list(self._suspended))
            raise
        # Queues that have ended, and those that another client or the end of a lease has resumed.
        off = {id for id, queue in present.items() if queue.is_suspended_by_us}
        self._forget([id for id in self._suspended if id not in off])
        busy_devices = self._busy_devices(list(present.values()))
        unwanted = {
            queue.id: queue
            for queue in present.values()
            if queue.device in busy_devices and self._registrations.role_of(queue) == "offline"
        }
        self._suspend([queue for id, queue in unwanted.items() if id not in self._suspended])
        self._resume([id for id in self._suspended if id not in unwanted])
        self._renew()

    def _busy_devices(self, present: list[QueueInfo]) -> set[int]:
        """Those whose online queues have work, or had some a moment ago."""
        now = time.monotonic()
        for queue in present:
            has_work = queue.is_active or queue.pending > 0
            if has_work and self._registrations.role_of(queue) == "online":
                self._busy_until[queue.device] = now + self._quiet_s
        return {device for device, end in self._busy_until.items() if end >= now}

    def _suspend(self, wanted: list[QueueInfo]) -> None:
        if not wanted:
            return
        begin = time.monotonic()
        try:
            holds.take([queue.id for queue in wanted], self._grace_us)
        except NoSuchQueue:
            return  # One has ended since; the next look knows better.
        end = time.monotonic()
        if not self._suspended:
            self._suspended_since = self._renewed_at = end
        self._suspended.update((queue.id, queue) for queue in wanted)
        self._suspends += len(wanted)
        self._suspend_times.add(end - begin)
        self._tell(self._on_suspend, wanted)

    def _resume(self, ids: list[int]) -> None:
        if not ids:
            return
        resumed = [self._suspended[id] for id in ids]
        begin = time.monotonic()
        try:
            holds.give_back(ids)
        finally:
            # Also then: what could not be resumed one by one was resumed with the session.
            self._remove(ids)
        self._resumes += len(ids)
        self._resume_times.add(time.monotonic() - begin)
        self._tell(self._on_resume, resumed)

    def _forget(self, ids: list[int]) -> None:
        """They are not suspended any more, without our doing."""
        if ids:
            holds.drop(ids)
            self._remove(ids)

    def _remove(self, ids: list[int]) -> None:
        for id in ids:
            del self._suspended[id]
        if not self._suspended:
            self._suspended_s += time.monotonic() - self._suspended_since

    def _renew(self) -> None:
        """Long before the lease is over: the lease is for programs that hang."""
        now = time.monotonic()
        if self._suspended and now - self._renewed_at > connection.lease_ms() / 3000:
            self._renewed_at = now
            holds.renew(list(self._suspended))

    def _tell(self, callback: Optional[QueuesCallback], about: list[QueueInfo]) -> None:
        if callback is None:
            return
        try:
            callback(about)
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._errors += 1
        if self._on_error is None:
            return
        try:
            self._on_error(error)
        except Exception:
            # The error cannot be reported; the count shows that it happened.
            self._errors += 1


@atexit.register
def _stop_all() -> None:
    for scheduler in list(_running):
        scheduler.stop()


def _forget_running() -> None:
    _running.clear()


os.register_at_fork(after_in_child=_forget_running)
