"""Criteria of three ranks: must, should and nice."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Iterable, Optional


class Rank(enum.Enum):
    """How much a criterion counts."""

    MUST = "must"
    """Without this the test has failed."""
    SHOULD = "should"
    NICE = "nice"


@dataclass(frozen=True)
class Criterion:
    """One line: what was asked, whether it is so, and the numbers that say why."""

    rank: Rank
    name: str
    passed: Optional[bool]
    """None: it could not be asked."""
    reason: str

    @property
    def word(self) -> str:
        """For people."""
        if self.passed is None:
            return "SKIPPED"
        if self.passed:
            return "pass"
        return "FAIL" if self.rank is Rank.MUST else "missed"

    def to_dict(self, case: str) -> dict[str, Any]:
        """The check in a results file."""
        return {
            "name": f"{self.rank.value}: {self.name}",
            "case": case,
            "mode": None,
            "passed": self.passed is not False,
            "text": f"SKIPPED: {self.reason}" if self.passed is None else self.reason,
        }


def at_most(rank: Rank, name: str, ratio: Optional[float], limit: float, of: str) -> Criterion:
    """A ratio is not above a limit. Without numbers it is not met."""
    if ratio is None:
        return Criterion(rank, name, False, f"nothing was measured; {of}")
    return Criterion(rank, name, ratio <= limit, f"{ratio:.3g} (at most {limit:g}); {of}")


def at_least(rank: Rank, name: str, ratio: Optional[float], limit: float, of: str) -> Criterion:
    """A ratio is not below a limit. Without numbers it is not met."""
    if ratio is None:
        return Criterion(rank, name, False, f"nothing was measured; {of}")
    return Criterion(rank, name, ratio >= limit, f"{ratio:.3g} (at least {limit:g}); {of}")


def nothing_wrong(rank: Rank, name: str, wrongs: Iterable[str], good: str) -> Criterion:
    """There is nothing to complain about; otherwise the complaints are the reason."""
    found = list(dict.fromkeys(wrongs))
    return Criterion(rank, name, not found, "; ".join(found) if found else good)


def is_passed(criteria: Iterable[Criterion], is_strict: bool) -> bool:
    """Whether everything that counts is met: what must be so and, if strict, what should be."""
    counting = {Rank.MUST, Rank.SHOULD} if is_strict else {Rank.MUST}
    return all(one.passed is not False for one in criteria if one.rank in counting)


def ratio(part: Optional[float], whole: Optional[float]) -> Optional[float]:
    """One number divided by another, if both are there."""
    if part is None or not whole:
        return None
    return part / whole
