"""The cases of the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from ..result import CaseResult
from ..stage import Stage
from . import boundary, preemption, stability


@dataclass(frozen=True)
class Options:
    """How long things last."""

    seconds: float
    """Each phase."""
    duration_s: Optional[float]
    """The run for stability."""
    tell: Callable[[str], None]
    """Hears what is going on."""


NAMES = ("basic", "frequent", "boundary", "stability")


def run(name: str, stage: Stage, options: Options, result: CaseResult) -> None:
    """Runs a case; what it measures is in `result` as soon as it is known."""
    if name == "stability":
        duration_s = options.duration_s or options.seconds
        stability.run(stage, options.seconds, duration_s, options.tell, result)
    elif name == "boundary":
        boundary.run(stage, options.seconds, options.tell, result)
    else:
        preemption.run(stage, preemption.SHAPES[name], options.seconds, options.tell, result)


def title(name: str) -> str:
    """What a case is about."""
    return {
        "basic": "Basic preemption: a request of the documents' size now and then",
        "frequent": "Frequent preemption: short requests, twenty a second",
        "boundary": "Boundary conditions: a role missing, two online models, coming and going",
        "stability": "Stability: the same for a long time, while models come and go",
    }[name]
