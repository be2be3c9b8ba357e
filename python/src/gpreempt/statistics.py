"""What a scheduler did, in numbers."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

SAMPLES_MAX = 10_000
"""How many of the last times are kept."""


@dataclass(frozen=True)
class Latencies:
    """How long something took, in microseconds; of the last 10,000 times, except for the count."""

    count: int
    min_us: float
    p50_us: float
    p99_us: float
    max_us: float
    mean_us: float

    @classmethod
    def of(cls, count: int, samples: list[float]) -> Latencies:
        """The numbers of some samples; zeros if there are none."""
        if not samples:
            return cls(count, 0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(samples)

        def part(percent: int) -> float:
            # The smallest sample that so many of a hundred are not above.
            return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

        mean = sum(ordered) / len(ordered)
        return cls(count, ordered[0], part(50), part(99), ordered[-1], mean)


@dataclass(frozen=True)
class Statistics:
    """What a scheduler has done so far."""

    checks: int
    """Times it looked."""
    suspends: int
    """Queues it suspended."""
    resumes: int
    """Queues it resumed. Those that ended while they were suspended are not among them."""
    suspended_now: int
    """Queues it keeps off now."""
    suspended_s: float
    """Time in which at least one queue was kept off."""
    errors: int
    """Calls that failed, and callbacks."""
    suspend: Latencies
    """How long suspending took: from the decision until all were off."""
    resume: Latencies
    """How long resuming took."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Samples:
    """The last times something took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._last_us: deque[float] = deque(maxlen=SAMPLES_MAX)

    def add(self, seconds: float) -> None:
        """One more."""
        with self._lock:
            self._count += 1
            self._last_us.append(seconds * 1e6)

    def latencies(self) -> Latencies:
        """As numbers."""
        with self._lock:
            count, samples = self._count, list(self._last_us)
        return Latencies.of(count, samples)
