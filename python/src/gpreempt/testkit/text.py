"""A result as text, for terminals."""

from __future__ import annotations

from typing import Optional

from .result import CaseResult, Phase, Result


def summary(result: Result) -> str:
    """All of it."""
    parts = [case(one) for one in result.cases]
    device = result.environment.get("device", result.backend)
    return "\n".join([*parts, f"{result.verdict} ({device})"])


def case(result: CaseResult) -> str:
    """One case: its phases as a table, its criteria as lines."""
    heads = ["", "online p50", "p99", "offline", "kept", "suspend p50", "resume p50"]
    rows = [heads, *(_row(phase, result) for phase in result.phases)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [result.title]
    for row in rows:
        first, rest = row[0].ljust(widths[0]), zip(row[1:], widths[1:])
        lines.append("  ".join([first, *(cell.rjust(width) for cell, width in rest)]).rstrip())
    for one in result.criteria:
        lines.append(f"  {one.word:<7} {one.rank.value:<6} {one.name}: {one.reason}")
    return "\n".join(lines) + "\n"


def _row(phase: Phase, result: CaseResult) -> list[str]:
    return [phase.title, *numbers(phase, result.kept.get(phase.name))]


def numbers(phase: Phase, kept: Optional[float]) -> list[str]:
    """The numbers of a phase as the tables show them; empty where there are none."""
    online = phase.online[0] if phase.online else None
    rate = sum(one.per_second for one in phase.offline)
    statistics = phase.scheduler or {}
    return [
        milliseconds(online.p50_us if online else None),
        milliseconds(online.p99_us if online else None),
        f"{rate:.1f}/s" if phase.offline and phase.name != "levels" else "",
        "" if kept is None else f"{kept * 100:.0f} %",
        *(
            milliseconds(statistics[name]["p50_us"]) if (statistics.get(name) or {}).get("count")
            else ""
            for name in ("suspend", "resume")
        ),
    ]


def milliseconds(us: Optional[float]) -> str:
    """A time."""
    return "" if us is None else f"{us / 1e3:.2f} ms"
