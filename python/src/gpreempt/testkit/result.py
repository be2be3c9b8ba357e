"""What was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from .judge import Criterion, is_passed, ratio

SCHEMA = 1
"""Of the JSON file: changes when a reader of older files would be wrong."""
_MEMORY_POINTS_MAX = 200


@dataclass(frozen=True)
class OnlineNumbers:
    """What became of the requests of one online model."""

    requests: int
    unserved: int
    """Requests that had no turn before the end."""
    p50_us: Optional[float]
    p90_us: Optional[float]
    p99_us: Optional[float]
    max_us: Optional[float]
    window_s: float


@dataclass(frozen=True)
class OfflineNumbers:
    """What one offline model got done."""

    kernels: float
    """In the time in which the online models were measured."""
    window_s: float
    finished_at_s: Optional[float]
    """Since the start, for one that ends by itself."""
    preempts: int
    """Times gpreemptd took it off the device, for whatever reason."""

    @property
    def per_second(self) -> float:
        """Its rate."""
        return self.kernels / self.window_s if self.window_s > 0 else 0.0


@dataclass
class Phase:
    """Some models, together for some time."""

    name: str
    title: str
    seconds: float
    online: list[OnlineNumbers] = field(default_factory=list)
    offline: list[OfflineNumbers] = field(default_factory=list)
    scheduler: Optional[dict[str, Any]] = None
    """The statistics of the GPreemptScheduler, if there was one."""
    wrongs: list[str] = field(default_factory=list)
    """What went wrong: a process that failed, a kernel not run exactly once, something left."""
    memory_kib: list[int] = field(default_factory=list)
    """What gpreemptd had in memory, every now and then."""

    @property
    def p50_us(self) -> Optional[float]:
        """The median latency of its only online model."""
        return self.online[0].p50_us if self.online else None

    @property
    def rate(self) -> Optional[float]:
        """The kernels per second of its only offline model."""
        return self.offline[0].per_second if self.offline else None

    @property
    def suspends(self) -> int:
        """Queues that the scheduler suspended."""
        return int(self.scheduler["suspends"]) if self.scheduler else 0

    def kept(self, online_alone: Phase, offline_alone: Phase) -> Optional[float]:
        """How much of the time that the online model leaves the offline model made use of."""
        if not self.online or not self.offline or online_alone.p50_us is None:
            return None
        busy_s = self.online[0].requests * online_alone.p50_us / 1e6
        left = 1.0 - busy_s / self.offline[0].window_s
        return ratio(ratio(self.rate, offline_alone.rate), left) if left > 0.05 else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        step = -(-len(self.memory_kib) // _MEMORY_POINTS_MAX) or 1
        return {**asdict(self), "memory_kib": self.memory_kib[::step]}


@dataclass
class CaseResult:
    """One case: its phases and what is thought of them."""

    name: str
    title: str
    phases: list[Phase] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)
    kept: dict[str, float] = field(default_factory=dict)
    """For phases with both models: the part of what online left that offline made use of."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "phases": [phase.to_dict() for phase in self.phases],
            "kept": self.kept,
            "criteria": [one.to_dict() for one in self.criteria],
        }


@dataclass
class Result:
    """A whole run."""

    backend: str
    command: str
    environment: dict[str, str]
    started: str
    finished: Optional[str] = None
    """None: it was interrupted."""
    is_strict: bool = False
    cases: list[CaseResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the test was run to its end and everything that counts is met."""
        criteria = [one for case in self.cases for one in case.criteria]
        return self.finished is not None and is_passed(criteria, self.is_strict)

    @property
    def verdict(self) -> str:
        """In a few words, with what was missed and does not count."""
        if self.finished is None:
            return "interrupted; what was measured until then is here"
        if not self.passed:
            return "FAILED"
        criteria = [one for case in self.cases for one in case.criteria]
        missed = sum(one.passed is False for one in criteria)
        return f"passed; {missed} of {len(criteria)} lines missed" if missed else "passed"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "testkit": SCHEMA,
            "backend": self.backend,
            "command": self.command,
            "environment": self.environment,
            "started": self.started,
            "finished": self.finished,
            "strict": self.is_strict,
            "passed": self.passed,
            "cases": [case.to_dict() for case in self.cases],
        }
