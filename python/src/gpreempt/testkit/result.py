"""What was measured, and the results file: the format that `gpreempt bench` writes.

A case of the test kit is a case of the file, a phase is a mode, a criterion is a check.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from .judge import Criterion, is_passed, ratio

SCHEMA = 1
"""The format of results files, as in crates/bench/src/results.rs."""
ALONE = "online alone"
"""The phase that the latencies of the others are compared with."""
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


@dataclass(frozen=True)
class OnlineNumbers:
    """What became of the requests of one online model."""

    requests: int
    unserved: int
    """Requests that had no turn before the end."""
    latency_us: dict[str, float]
    """Percentiles by name; empty without requests."""
    window_s: float

    @property
    def p50_us(self) -> Optional[float]:
        """The median latency."""
        return self.latency_us.get("p50")

    @property
    def p99_us(self) -> Optional[float]:
        """The 99th percentile of the latencies."""
        return self.latency_us.get("p99")

    def to_dict(self) -> Optional[dict[str, Any]]:
        """The requests in a results file; None without requests."""
        if not self.latency_us:
            return None
        # A load that does not report a percentile has the next higher one; its mean is then
        # unknown, and the median stands for it.
        known = {name: self.latency_us.get(name) for name in _PERCENTILES}
        higher = self.latency_us["max"]
        for name in reversed(_PERCENTILES):
            higher = known[name] = higher if known[name] is None else known[name]  # type: ignore
        ns = {name: round(float(us or 0.0) * 1e3) for name, us in known.items()}
        latency = {
            "count": self.requests,
            "mean_ns": self.latency_us.get("mean", self.latency_us["p50"]) * 1e3,
            **{f"{name.replace('.', '')}_ns": value for name, value in ns.items()},
            "cdf": [{"ns": ns[name], "share": share} for name, share in _PERCENTILES.items()],
        }
        return {
            "latency": latency,
            "service": None,
            "unfinished": self.unserved,
            "missed": None,
        }


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

    def to_dict(self, of_alone: Optional[float], kept: Optional[float]) -> dict[str, Any]:
        """The work in a results file."""
        return {
            "done": self.kernels,
            "unit": "kernels",
            "seconds": self.window_s,
            "per_second": self.per_second,
            "of_alone": of_alone,
            "kept": kept,
            "exact": None,
        }


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

    def numbers(self) -> list[dict[str, Any]]:
        """The further numbers in a results file."""
        preempts = sum(one.preempts for one in self.offline)
        found: list[tuple[str, str, str, Optional[float]]] = [
            ("preempts", "preemptions by gpreemptd", "count", preempts)
        ]
        for name, value in (self.scheduler or {}).items():
            if isinstance(value, dict):
                for part, us in value.items():
                    unit, scale = ("count", 1.0) if part == "count" else ("ns", 1e3)
                    short = part.removesuffix("_us")
                    title = f"GPreemptScheduler: {name}, {short}"
                    value_ns = None if us is None else us * scale
                    found.append((f"{name}_{short}", title, unit, value_ns))
            else:
                unit = "s" if name.endswith("_s") else "count"
                found.append((name, f"GPreemptScheduler: {name.replace('_', ' ')}", unit, value))
        ends = [one.finished_at_s for one in self.offline if one.finished_at_s is not None]
        if ends:
            found.append(("last_end", "end of the last offline model", "s", max(ends)))
        if self.memory_kib:
            for word, kib in (("first", self.memory_kib[0]), ("max", max(self.memory_kib))):
                found.append((f"memory_{word}", f"memory of gpreemptd, {word}", "KiB", kib))
        return [
            {"name": name, "title": title, "unit": unit, "value": float(value)}
            for name, title, unit, value in found
            if value is not None
        ]

    def to_dict(
        self, case: str, of_alone: Optional[float], kept: Optional[float]
    ) -> dict[str, Any]:
        """The measurement in a results file."""
        failed = {"state": "failed", "reason": "; ".join(self.wrongs)}
        online = [
            (f"online-{n}", "lc", one.to_dict(), None) for n, one in enumerate(self.online, 1)
        ]
        offline = [
            (f"offline-{n}", "be", None, one.to_dict(of_alone, kept))
            for n, one in enumerate(self.offline, 1)
        ]
        loads = [
            {"name": name, "role": role, **({"lc": lc} if lc else {}), **({"be": be} if be else {})}
            for name, role, lc, be in online + offline
        ]
        return {
            "case": case,
            "mode": self.name,
            "repetition": 0,
            "seed": 0,
            "took_s": self.seconds,
            "status": failed if self.wrongs else {"state": "ok"},
            "lc": online[0][2] if online else None,
            "be": offline[0][3] if offline else None,
            "loads": loads,
            "numbers": self.numbers(),
            "time_line": None,
        }


@dataclass
class CaseResult:
    """One case: its phases and what is thought of them."""

    name: str
    title: str
    phases: list[Phase] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)
    kept: dict[str, float] = field(default_factory=dict)
    """For phases with both models: the part of what online left that offline made use of."""

    def measurements(self) -> list[dict[str, Any]]:
        """The phases in a results file."""
        rates = {phase.name: phase.rate for phase in self.phases}
        return [
            phase.to_dict(
                self.name, ratio(phase.rate, rates.get("offline alone")), self.kept.get(phase.name)
            )
            for phase in self.phases
        ]


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
        """The results file."""
        names: dict[str, str] = {}
        for phase in (phase for case in self.cases for phase in case.phases):
            names.setdefault(phase.name, phase.title)
        baseline = ALONE if ALONE in names else None
        told = dict(self.environment)
        return {
            "schema": SCHEMA,
            "suite": {"name": "testkit", "title": "Online and offline models", "digest": ""},
            "backend": self.backend,
            "command": self.command,
            "commit": None,
            "environment": {
                "devices": [told.pop("device", self.backend)],
                "driver": None,
                "kernel": told.pop("kernel", ""),
                "processor": told.pop("processor", "unknown"),
                "cores": int(told.pop("processors", "1")),
                "versions": [{"program": name, "version": text} for name, text in told.items()],
            },
            "started": self.started,
            "finished": self.finished,
            "repetitions": 1,
            "short": False,
            "conclusion": f"The test kit says: {self.verdict}.",
            "modes": [
                {"name": name, "title": title, "alone": baseline if name != ALONE else None}
                for name, title in names.items()
            ],
            "cases": [
                {"name": case.name, "title": case.title, "loads": [], "point": None}
                for case in self.cases
            ],
            "measurements": [one for case in self.cases for one in case.measurements()],
            # `gpreempt bench report` computes the summary.
            "summary": [],
            "checks": [one.to_dict(case.name) for case in self.cases for one in case.criteria],
        }
