"""Boundary conditions: no offline model, no online one, only important ones, sixteen levels at
once, models that come and go."""

from __future__ import annotations

import time
from typing import Callable

from .. import play as plays
from ..judge import Criterion, Rank, at_least, at_most, nothing_wrong, ratio
from ..play import Play, playing
from ..programs import until
from ..result import CaseResult, Phase
from ..shape import FREQUENT, TRAINING, Offline
from ..stage import Shape, Stage, may_raise
from ... import queue_info

LEVEL = Offline(kernel_us=4_000, count=12)
"""What each of sixteen levels has to do."""
ORDERED_MIN = 0.9
"""Of all pairs of levels: those in which the higher one is done first."""
_STAY_S = 0.4
"""How long a model stays that comes and goes."""


def run(stage: Stage, seconds: float, tell: Callable[[str], None], result: CaseResult) -> None:
    """All of them."""
    alone = _plain(stage, "online alone", [FREQUENT], False, seconds, tell, result)
    offline_alone = _plain(stage, "offline alone", [TRAINING], False, seconds, tell, result)
    no_offline = _plain(stage, "no offline model", [FREQUENT], True, seconds, tell, result)
    no_online = _plain(stage, "no online model", [TRAINING], True, seconds, tell, result)
    high = _plain(stage, "both online", [FREQUENT, FREQUENT], True, seconds, tell, result)
    result.criteria += [
        _untouched(no_offline),
        _untouched(no_online),
        _untouched(high),
        _served(high),
        at_most(
            Rank.SHOULD,
            "without an offline model nothing is slower",
            ratio(no_offline.p50_us, alone.p50_us),
            1.5,
            "median latency with a scheduler that has nothing to do, divided by that without one",
        ),
        at_least(
            Rank.SHOULD,
            "without an online model nothing is slower",
            ratio(no_online.rate, offline_alone.rate),
            0.8,
            "offline kernels per second, divided by those without a scheduler",
        ),
    ]
    tell("boundary: sixteen levels at once")
    result.criteria += levels(stage, result)
    tell("boundary: models come and go")
    result.criteria += come_and_go(stage, seconds, result)
    wrongs = [f"{phase.title}: {wrong}" for phase in result.phases for wrong in phase.wrongs]
    good = "every kernel ran exactly once, and every process ended in good order"
    name = "nothing is lost, nothing fails, nothing stays suspended"
    result.criteria.append(nothing_wrong(Rank.MUST, name, wrongs, good))


def _plain(
    stage: Stage,
    name: str,
    shapes: list[Shape],
    is_scheduled: bool,
    seconds: float,
    tell: Callable[[str], None],
    result: CaseResult,
) -> Phase:
    tell(f"boundary: {name}")
    with playing(stage, name, name, is_scheduled=is_scheduled) as play:
        result.phases.append(play.phase)
        for shape in shapes:
            play.add(shape)
        play.begin()
        play.last(seconds)
        play.finish()
    return play.phase


def _untouched(phase: Phase) -> Criterion:
    name = f"{phase.title}: no model is suspended"
    return Criterion(
        Rank.MUST, name, phase.suspends == 0, f"the scheduler suspended {phase.suspends} times"
    )


def _served(phase: Phase) -> Criterion:
    late = sum(one.unserved for one in phase.online)
    count = sum(one.requests for one in phase.online)
    passed = len(phase.online) == 2 and count > 0 and all(one.requests > 0 for one in phase.online)
    reason = f"{count - late} of {count} requests of {len(phase.online)} models had their turn"
    return Criterion(Rank.MUST, f"{phase.title}: both are served", passed, reason)


def levels(stage: Stage, result: CaseResult) -> list[Criterion]:
    """Sixteen models, one of each priority, with the same amount of work; gpreemptd decides."""
    name = "the higher level is done first"
    if not stage.can_count:
        reason = f"the models of the backend {stage.backend} do not end by themselves"
        return [Criterion(Rank.SHOULD, name, None, reason)]
    top = 15 if may_raise() else 7
    with playing(stage, "levels", "sixteen levels at once", is_scheduled=False) as play:
        result.phases.append(play.phase)
        for level in range(top + 1):
            play.add(LEVEL, level)
        play.begin()
        play.finish()
    ends = [one.finished_at_s or 0.0 for one in play.phase.offline]
    done = f"{len(ends)} of {top + 1} models are done"
    of = "part of the pairs of levels in which the higher one was done first"
    lines = [
        Criterion(Rank.MUST, "levels at once: all are served", len(ends) == top + 1, done),
        at_least(Rank.SHOULD, name, ordered(ends), ORDERED_MIN, of),
    ]
    if top < 15:
        reason = "they are for root and the group gpreempt, so there were eight levels"
        lines.append(Criterion(Rank.MUST, "levels 8 to 15", None, reason))
    return lines


def ordered(ends: list[float]) -> float | None:
    """The part of all pairs in which the later one of the list ended first."""
    pairs = [(low, high) for high in range(len(ends)) for low in range(high)]
    if not pairs:
        return None
    return sum(ends[high] <= ends[low] for low, high in pairs) / len(pairs)


def come_and_go(stage: Stage, seconds: float, result: CaseResult) -> list[Criterion]:
    """Offline models appear in the middle, end, and are killed, while an online one is served."""
    title = "models come and go"
    with playing(stage, "come and go", title, is_scheduled=True) as play:
        result.phases.append(play.phase)
        play.add(FREQUENT)
        play.add(TRAINING)
        play.begin()
        end = time.monotonic() + seconds
        gone: list[int] = []
        while not gone or time.monotonic() < end:
            gone.append(visit(play, is_killed=len(gone) % 2 == 0))
        play.finish()
    left = [queue.pid for queue in queue_info.queues() if queue.pid in gone]
    visits = f"{len(gone)} models came, and every other one was killed"
    reason = f"{visits}; {play.phase.suspends} suspensions"
    return [
        Criterion(Rank.MUST, f"{title}: preemption goes on", play.phase.suspends > 0, reason),
        Criterion(
            Rank.MUST,
            f"{title}: nothing of them is left",
            not left,
            f"{visits}; gpreemptd still has queues of {len(left)} of them",
        ),
    ]


def visit(play: Play, *, is_killed: bool) -> int:
    """A model comes, is suspended and resumed with the others, and goes; the answer is its pid."""
    part = play.add(TRAINING)
    play.until_known(part)
    play.last(_STAY_S)
    play.let_go(part)
    program = part.program
    if is_killed:
        program.kill()
    else:
        status = program.terminate()
        finals = program.reports("final")
        play.phase.wrongs += plays.wrongs_of("offline", status, finals, program)
    until("gpreemptd notices", lambda: not queue_info.queues(pid=program.pid))
    return program.pid
