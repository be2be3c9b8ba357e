"""A result as a page: one file without scripts that loads nothing from anywhere."""

from __future__ import annotations

from html import escape
from typing import Iterable, Optional

from . import text
from .result import CaseResult, Phase, Result

_STYLE = """
:root { --page:#fbfbfa; --ink:#1c1d1f; --soft:#5b5f66; --line:#d9dade; --bar:#0b62a4;
  --good:#0b62a4; --bad:#a8480a; color-scheme:light dark }
@media (prefers-color-scheme:dark) { :root { --page:#16181b; --ink:#e8e9eb; --soft:#a3a8b0;
  --line:#383c43; --bar:#5fb0ec; --good:#5fb0ec; --bad:#f0a35c } }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink);
  font:16px/1.5 system-ui,sans-serif }
main { max-width:60rem; margin:0 auto; padding:1.25rem 1rem 3rem }
h1 { font-size:1.5rem; margin:0 } h2 { font-size:1.15rem; margin:2rem 0 .5rem }
.verdict { font-weight:600; margin:.25rem 0 0 }
.good { color:var(--good) } .bad { color:var(--bad) }
.scroll { overflow-x:auto } table { border-collapse:collapse; min-width:100% }
th,td { text-align:right; padding:.3rem .6rem; border-bottom:1px solid var(--line);
  white-space:nowrap; font-variant-numeric:tabular-nums }
th { font-weight:600; color:var(--soft) } th:first-child,td:first-child { text-align:left }
td:first-child { white-space:normal; min-width:7.5rem; padding-left:0 }
.lines { margin-top:1rem } .lines td { text-align:left; white-space:normal; vertical-align:top }
.lines td:first-child { white-space:nowrap; min-width:0; font-weight:600 }
.lines .soft { color:var(--soft) }
svg { display:block; max-width:46rem; margin-bottom:.5rem }
svg text { fill:var(--ink); font-size:14px } svg .soft { fill:var(--soft) }
svg rect { fill:var(--bar) } code { overflow-wrap:anywhere }
@media (max-width:600px) { table { font-size:14px } th,td { padding:.3rem .35rem } }
"""


def render(result: Result) -> str:
    """The page, complete."""
    title = "gpreempt: online and offline models"
    verdict = result.verdict
    mark = "good" if result.passed else "bad"
    body = "".join(_case(one) for one in result.cases)
    # The policy makes the browser itself refuse scripts and anything from elsewhere.
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="color-scheme" content="light dark"/>\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; '
        'style-src &#39;unsafe-inline&#39;; img-src data:"/>\n<link rel="icon" href="data:,"/>\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{title}</h1>\n<p class="verdict {mark}">{escape(verdict)}</p>\n'
        f"{body}{_environment(result)}</main>\n</body>\n</html>\n"
    )


def _case(case: CaseResult) -> str:
    heads = ["", "online p50", "p99", "offline", "kept", "suspend p50", "resume p50"]
    rows = [
        [phase.title, *text.numbers(phase, case.kept.get(phase.name))] for phase in case.phases
    ]
    return (
        f"<section>\n<h2>{escape(case.title)}</h2>\n{_bars(case.phases)}"
        f'<div class="scroll">{_table(heads, rows)}</div>\n{_criteria(case)}</section>\n'
    )


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}</table>"


def _criteria(case: CaseResult) -> str:
    rows = "".join(
        f'<tr><td class="{_mark(one.passed)}">{escape(one.word)}</td>'
        f'<td><b>{escape(one.name)}</b> <span class="soft">({one.rank.value})</span><br/>'
        f"{escape(one.reason)}</td></tr>\n"
        for one in case.criteria
    )
    return f'<table class="lines">\n{rows}</table>\n'


def _mark(passed: Optional[bool]) -> str:
    return {True: "good", False: "bad", None: "skipped"}[passed]


def _bars(phases: list[Phase]) -> str:
    """The median latency of each phase, as bars with their numbers."""
    shown = [(phase.title, phase.p50_us) for phase in phases]
    bars = [(title, p50_us) for title, p50_us in shown if p50_us is not None]
    if not bars:
        return ""
    longest = max(p50_us for _, p50_us in bars)
    parts = []
    for row, (title, p50_us) in enumerate(bars):
        # Positions are parts of the width, so that letters keep their size on every screen.
        y, part = row * 44, 75 * p50_us / longest
        label = text.milliseconds(p50_us)
        parts.append(
            f'<text x="0" y="{y + 14}">{escape(title)}</text>'
            f'<rect x="0" y="{y + 20}" width="{part:.2f}%" height="14" rx="2"/>'
            f'<text class="soft" x="{part:.2f}%" dx="6" y="{y + 32}">{label}</text>'
        )
    height = len(bars) * 44
    return (
        f'<svg width="100%" height="{height}" role="img" aria-label="median latency of the online '
        f'model in each phase; the table below has the numbers">{"".join(parts)}</svg>\n'
    )


def _environment(result: Result) -> str:
    lines = {
        "command": result.command,
        "backend": result.backend,
        **result.environment,
        "started": result.started,
        "finished": result.finished or "interrupted",
    }
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(value)}</code></td></tr>\n"
        for name, value in lines.items()
    )
    return (
        '<section>\n<h2>How it was measured</h2>\n<p>A latency counts from when a request was '
        "due. <em>Kept</em> is what the offline model got done, of what it could have done in the "
        "time that the online model leaves. Suspending and resuming are timed by the caller.</p>\n"
        f'<table class="lines">\n{rows}</table>\n</section>\n'
    )
