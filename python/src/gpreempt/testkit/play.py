"""One phase: models are started, run together for a while, and are ended and asked."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Optional

from .. import queue_info
from ..errors import GPreemptError
from ..scheduler import GPreemptScheduler
from .programs import Program, TestkitError, until
from .result import OfflineNumbers, OnlineNumbers, Phase
from .shape import Offline
from .stage import Shape, Stage, role_of

EQUAL = 3
"""The priority of models whose order gpreemptd is to leave to the scheduler."""
_LOOKS = 50
"""How often the daemon's memory is looked at in a phase."""


@dataclass
class Part:
    """A model in a phase."""

    shape: Shape
    priority: int
    program: Program
    preempts: int = 0


@dataclass
class Play:
    """A phase while it runs."""

    stage: Stage
    phase: Phase
    start: Path
    scheduler: Optional[GPreemptScheduler]
    report_ms: int = 20
    parts: list[Part] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    began_ns: int = 0

    def add(self, shape: Shape, priority: int = EQUAL) -> Part:
        """Starts a model, waits until gpreemptd has it, and tells the scheduler of it."""
        program = self.stage.model(shape, priority, self.start, self.report_ms)
        part = Part(shape, priority, program)
        self.parts.append(part)
        return part

    def until_known(self, part: Part) -> None:
        """Waits until a model is ready and gpreemptd has its queue."""
        part.program.until_says('"ready"')
        pid = part.program.pid
        until(f"gpreemptd has process {pid}", lambda: bool(queue_info.queues(pid=pid)))
        if self.scheduler is not None:
            is_online = role_of(part.shape) == "online"
            add = self.scheduler.add_online if is_online else self.scheduler.add_offline
            add(pid=pid)

    def let_go(self, part: Part) -> None:
        """A model that ended before the others did; it is not asked for numbers."""
        self.parts.remove(part)
        if self.scheduler is not None:
            self.scheduler.remove(pid=part.program.pid)

    def begin(self) -> None:
        """All models that are there begin."""
        for part in self.parts:
            self.until_known(part)
        if self.scheduler is not None:
            self.scheduler.start()
        self.began_ns = time.monotonic_ns()
        self.start.touch()

    def last(self, seconds: float) -> None:
        """Lets them run for so long."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(left_s, max(seconds / _LOOKS, 0.01)))
            memory = self.stage.memory_kib()
            if memory is not None:
                self.phase.memory_kib.append(memory)
            if not self.stage.is_well():
                raise TestkitError("gpreemptd or the emulated GPU ended in the middle of the test")

    def finish(self) -> None:
        """Ends the models, online ones first, and asks them what they did."""
        ended_ns = time.monotonic_ns()
        online = [part for part in self.parts if role_of(part.shape) == "online"]
        offline = [part for part in self.parts if role_of(part.shape) == "offline"]
        for part in offline:
            with contextlib.suppress(GPreemptError):
                part.preempts = sum(q.preempts for q in queue_info.queues(pid=part.program.pid))
        windows = [self._online(part, final) for part, final in self._finals(online)]
        self._stop_scheduler(offline)
        window = windows[0] if windows else (self.began_ns, ended_ns)
        for part, final in self._finals(offline):
            self._offline(part, final, window)

    def _online(self, part: Part, final: dict[str, Any]) -> tuple[int, int]:
        latency = final["latency_us"] or {}
        begin, end = final["from_ns"], final["until_ns"]
        if not latency:
            self.phase.wrongs.append("an online model had no request at all")
        self.phase.online.append(
            OnlineNumbers(
                requests=final["n"],
                unserved=final["unserved"],
                latency_us=latency,
                window_s=(end - begin) / 1e9,
            )
        )
        return begin, end

    def _offline(self, part: Part, final: dict[str, Any], window: tuple[int, int]) -> None:
        counts = ends_by_itself(part.shape)
        points = [(rate["until_ns"], rate["total"]) for rate in part.program.reports("rate")]
        points = [(final["from_ns"], 0), *points, (final["until_ns"], final["total"])]
        begin, end = window
        self.phase.offline.append(
            OfflineNumbers(
                kernels=total_at(points, end) - total_at(points, begin),
                window_s=(end - begin) / 1e9,
                finished_at_s=(final["until_ns"] - self.began_ns) / 1e9 if counts else None,
                preempts=part.preempts,
            )
        )

    def _stop_scheduler(self, offline: list[Part]) -> None:
        """Afterwards nothing may be suspended any more."""
        if self.scheduler is None:
            return
        self.scheduler.stop()
        self.phase.scheduler = self.scheduler.statistics().to_dict()
        self.phase.wrongs += [f"the scheduler met an error: {text}" for text in self.errors]
        for part in offline:
            if any(queue.is_suspended for queue in queue_info.queues(pid=part.program.pid)):
                self.phase.wrongs.append("an offline model is suspended after the scheduler ended")

    def _finals(self, parts: list[Part]) -> Iterator[tuple[Part, dict[str, Any]]]:
        for part in parts:
            if not ends_by_itself(part.shape):
                part.program.ask_to_end()
        for part in parts:
            status = part.program.wait()
            finals = part.program.reports("final")
            self.phase.wrongs += wrongs_of(role_of(part.shape), status, finals, part.program)
            if finals:
                yield part, finals[-1]

    def close(self) -> None:
        """Ends whatever still runs."""
        if self.scheduler is not None:
            self.scheduler.stop()
        for part in self.parts:
            if part.program.is_alive():
                part.program.kill()


@contextlib.contextmanager
def playing(
    stage: Stage, name: str, title: str, *, is_scheduled: bool, report_ms: int = 20
) -> Iterator[Play]:
    """A phase; whatever happens inside of the block, its processes are gone afterwards."""
    errors: list[str] = []
    scheduler = (
        GPreemptScheduler(on_error=lambda error: errors.append(str(error)))
        if is_scheduled
        else None
    )
    start = stage.folder / f"start-{time.monotonic_ns()}"
    phase = Phase(name, title, 0.0)
    play = Play(stage, phase, start, scheduler, report_ms, errors=errors)
    begin = time.monotonic()
    try:
        yield play
    finally:
        play.close()
        phase.seconds = time.monotonic() - begin


def ends_by_itself(shape: Shape) -> bool:
    """Whether a model has an end."""
    return isinstance(shape, Offline) and shape.count > 0


def wrongs_of(
    role: str, status: int, finals: list[dict[str, Any]], program: Program
) -> Iterator[str]:
    """What is wrong with how a model ended."""
    if not finals:
        last = " / ".join(list(program.lines)[-3:])
        yield f"an {role} model failed with status {status}: {last}"
        return
    if (finals[-1].get("exactness") or {}).get("result") != "pass":
        yield f"a kernel of an {role} model ran twice, not at all, partly or out of order"
    elif status != 0:
        yield f"an {role} model ended with status {status}"


def total_at(points: list[tuple[int, float]], when: int) -> float:
    """How many were complete at a time, between what was said before and after."""
    before = max((point for point in points if point[0] <= when), default=points[0])
    after = min((point for point in points if point[0] >= when), default=points[-1])
    if after[0] <= before[0]:
        return float(before[1])
    part = (when - before[0]) / (after[0] - before[0])
    return before[1] + (after[1] - before[1]) * part
