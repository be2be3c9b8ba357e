"""Stability: frequent preemption for a long time, while models come and go."""

from __future__ import annotations

import time
from typing import Callable

from ..judge import Criterion, Rank, at_most, nothing_wrong, ratio
from ..play import playing
from ..result import CaseResult, Phase
from ..shape import FREQUENT, TRAINING
from ..stage import Stage
from .boundary import visit
from .preemption import LATENCY_MAX

MEMORY_MAX = 1.25
"""What gpreemptd may have in memory at the end, against what it had after a tenth of the time."""
_VISIT_EVERY_S = 10.0
_TELL_EVERY_S = 60.0


def run(
    stage: Stage,
    seconds: float,
    duration_s: float,
    tell: Callable[[str], None],
    result: CaseResult,
) -> None:
    """A short phase alone, to compare with, and the long one."""
    tell("stability: the online model alone")
    with playing(stage, "online alone", "the online model alone", is_scheduled=False) as alone:
        result.phases.append(alone.phase)
        alone.add(FREQUENT)
        alone.begin()
        alone.last(seconds)
        alone.finish()
    report_ms = max(20, int(duration_s * 1e3 / 10_000))
    title = "GPreemptScheduler in charge"
    with playing(stage, "stability", title, is_scheduled=True, report_ms=report_ms) as play:
        result.phases.append(play.phase)
        play.add(FREQUENT)
        play.add(TRAINING)
        play.begin()
        begin, visits, told = time.monotonic(), 0, 0.0
        while (left_s := begin + duration_s - time.monotonic()) > 0:
            if time.monotonic() >= told + _TELL_EVERY_S:
                told = time.monotonic()
                tell(f"stability: {left_s:.0f} s to go")
            visit(play, is_killed=visits % 2 == 0)
            visits += 1
            play.last(max(0.0, min(_VISIT_EVERY_S, begin + duration_s - time.monotonic())))
        play.finish()
    result.criteria += judge(alone.phase, play.phase, duration_s, visits)


def judge(alone: Phase, phase: Phase, duration_s: float, visits: int) -> list[Criterion]:
    """What is thought of it."""
    statistics = phase.scheduler or {}
    good = (
        f"{duration_s:.0f} s without an error, {phase.suspends} suspensions, "
        f"{statistics.get('resumes', 0)} resumes, {visits} models came and went"
    )
    wrongs = [*alone.wrongs, *phase.wrongs]
    return [
        nothing_wrong(Rank.MUST, "no error in the whole time, and nothing is lost", wrongs, good),
        Criterion(
            Rank.MUST,
            "preemption goes on in the whole time",
            phase.suspends > 0 and sum(one.kernels for one in phase.offline) > 0,
            good,
        ),
        at_most(
            Rank.SHOULD,
            "online latency",
            ratio(phase.p50_us, alone.p50_us),
            LATENCY_MAX,
            "median latency in the whole time, divided by that of the model alone",
        ),
        memory(phase.memory_kib),
    ]


def memory(samples: list[int]) -> Criterion:
    """Whether gpreemptd's memory stays what it is."""
    name = "gpreemptd does not grow"
    if len(samples) < 20:
        reason = "too few looks at its memory: the run is short, or gpreemptd is not the test's own"
        return Criterion(Rank.SHOULD, name, None, reason)
    early = samples[len(samples) // 10]
    of = f"memory at the end divided by that after a tenth of the time, {early} KiB"
    return at_most(Rank.SHOULD, name, ratio(samples[-1], early), MEMORY_MAX, of)
