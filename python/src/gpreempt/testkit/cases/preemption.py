"""Basic and frequent preemption: an online and an offline model, alone and together."""

from __future__ import annotations

from typing import Callable

from ..judge import Criterion, Rank, at_least, at_most, nothing_wrong, ratio
from ..play import EQUAL, playing
from ..result import CaseResult, Phase
from ..shape import BASIC, FREQUENT, TRAINING, Online
from ..stage import Shape, Stage, may_raise

SHAPES = {"basic": BASIC, "frequent": FREQUENT}

LATENCY_MAX, LATENCY_NICE = 2.5, 1.5
"""The documents accept 50 ms for an inference of 20 ms."""
KEPT_MIN, KEPT_NICE = 0.8, 0.9
"""The documents accept that a fifth of the offline throughput is lost."""
SUSPEND_MAX = 0.25
"""The documents accept 5 ms for suspending, a quarter of their inference."""


def run(
    stage: Stage,
    online: Online,
    seconds: float,
    tell: Callable[[str], None],
    result: CaseResult,
) -> None:
    """Five phases: each alone, together, with a scheduler, with priorities."""
    high = 12 if may_raise() else 7
    plans: list[tuple[str, str, list[tuple[Shape, int]], bool]] = [
        ("online alone", "the online model alone", [(online, EQUAL)], False),
        ("offline alone", "the offline model alone", [(TRAINING, EQUAL)], False),
        ("together", "both, without a scheduler", [(online, EQUAL), (TRAINING, EQUAL)], False),
        ("scheduler", "GPreemptScheduler in charge", [(online, EQUAL), (TRAINING, EQUAL)], True),
        ("priorities", "gpreemptd in charge", [(online, high), (TRAINING, 2)], False),
    ]
    for name, title, models, is_scheduled in plans:
        tell(f"{result.name}: {title}")
        with playing(stage, name, title, is_scheduled=is_scheduled) as play:
            result.phases.append(play.phase)
            for shape, priority in models:
                play.add(shape, priority)
            play.begin()
            play.last(seconds)
            play.finish()
    phases = {phase.name: phase for phase in result.phases}
    alone, offline_alone = phases["online alone"], phases["offline alone"]
    for name in ("together", "scheduler", "priorities"):
        kept = phases[name].kept(alone, offline_alone)
        if kept is not None:
            result.kept[name] = kept
    result.criteria += judge(phases, result.kept)


def judge(phases: dict[str, Phase], kept: dict[str, float]) -> list[Criterion]:
    """What is thought of it."""
    alone, together = phases["online alone"], phases["together"]
    scheduled, by_priority = phases["scheduler"], phases["priorities"]
    wrongs = [f"{phase.title}: {wrong}" for phase in phases.values() for wrong in phase.wrongs]
    slowdown = ratio(scheduled.p50_us, alone.p50_us)
    slowdown_alone = "median latency with the scheduler, divided by that of the model alone"
    share = "of what the offline model could do in the time that the online model leaves"
    return [
        _preempts(scheduled),
        _goes_on(scheduled),
        nothing_wrong(
            Rank.MUST,
            "nothing is lost, nothing fails, nothing stays suspended",
            wrongs,
            "every kernel ran exactly once, and every process ended in good order",
        ),
        _gains(scheduled, together),
        at_most(Rank.SHOULD, "online latency", slowdown, LATENCY_MAX, slowdown_alone),
        at_most(Rank.NICE, "low online latency", slowdown, LATENCY_NICE, slowdown_alone),
        at_least(Rank.SHOULD, "offline throughput", kept.get("scheduler"), KEPT_MIN, share),
        at_least(Rank.NICE, "high offline throughput", kept.get("scheduler"), KEPT_NICE, share),
        *_costs(scheduled, alone),
        at_most(
            Rank.SHOULD,
            "online latency by priorities alone",
            ratio(by_priority.p50_us, alone.p50_us),
            LATENCY_MAX,
            "median latency when gpreemptd decides by itself, divided by that of the model alone",
        ),
        at_least(
            Rank.SHOULD,
            "offline throughput by priorities alone",
            kept.get("priorities"),
            KEPT_MIN,
            share,
        ),
    ]


def _preempts(scheduled: Phase) -> Criterion:
    """Counted, not timed: this must be so on the slowest machine."""
    name = "the online model preempts the offline one"
    preempts = sum(one.preempts for one in scheduled.offline)
    served = sum(one.requests - one.unserved for one in scheduled.online)
    passed = scheduled.suspends > 0 and preempts > 0 and served > 0
    reason = (
        f"{scheduled.suspends} suspensions; gpreemptd took it off the device {preempts} times; "
        f"{served} requests were answered"
    )
    return Criterion(Rank.MUST, name, passed, reason)


def _gains(scheduled: Phase, together: Phase) -> Criterion:
    name = "the online model gains by it"
    gain = ratio(scheduled.p50_us, together.p50_us)
    if gain is None:
        return Criterion(Rank.SHOULD, name, False, "nothing was measured")
    reason = f"median latency is {gain:.2f} of what it is without a scheduler"
    return Criterion(Rank.SHOULD, name, gain < 1, reason)


def _goes_on(scheduled: Phase) -> Criterion:
    name = "the offline model resumes"
    statistics = scheduled.scheduler or {}
    resumes, done = statistics.get("resumes", 0), sum(one.kernels for one in scheduled.offline)
    reason = f"{resumes} resumes; {done:.0f} kernels in between"
    return Criterion(Rank.MUST, name, resumes > 0 and done > 0, reason)


def _costs(scheduled: Phase, alone: Phase) -> list[Criterion]:
    """Suspending and resuming against the length of a request."""
    statistics = scheduled.scheduler or {}
    lines = []
    for name, word in (("suspend", "suspending"), ("resume", "resuming")):
        cost = statistics.get(name, {})
        cost_us = cost.get("p50_us") if cost.get("count") else None
        of = f"median time of {word} as the scheduler sees it, divided by a request's alone"
        costs = ratio(cost_us, alone.p50_us)
        lines.append(at_most(Rank.SHOULD, f"{word} is cheap", costs, SUSPEND_MAX, of))
    return lines
