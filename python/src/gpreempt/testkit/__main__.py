"""`python -m gpreempt.testkit`: online and offline models, three cases, pass or fail."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Optional, Sequence

from .. import __version__, connection
from ..errors import GPreemptError
from . import cases, report, text
from .programs import TestkitError
from .result import CaseResult, Result
from .stage import STAGES, Stage, opened

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
PASSED, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the test: 0 passed, 1 failed, 2 could not be run, 130 interrupted."""
    chosen = _parser().parse_args(arguments)
    # However it is ended, its processes end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = Result(chosen.backend, _command(arguments), _environment(), _now())
    result.is_strict = chosen.strict
    try:
        return _run(chosen, result)
    except (TestkitError, GPreemptError) as error:
        _write(chosen, result)
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        _write(chosen, result)
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(chosen: argparse.Namespace, result: Result) -> int:
    if chosen.report is not None and not chosen.report.parent.is_dir():
        raise TestkitError(f"{chosen.report.parent} is no folder, so there can be no report in it")
    names = chosen.cases or (["stability"] if chosen.duration else list(cases.NAMES[:3]))
    if chosen.duration and "stability" not in names:
        names.append("stability")
    options = cases.Options(chosen.seconds, chosen.duration, _tell)
    with opened(chosen.backend) as stage:
        _describe(stage, result)
        for name in names:
            case = CaseResult(name, cases.title(name))
            result.cases.append(case)
            cases.run(name, stage, options, case)
    result.finished = _now()
    _write(chosen, result)
    return PASSED if result.passed else FAILED


def _write(chosen: argparse.Namespace, result: Result) -> None:
    """The report and what goes to the terminal; also of a run that did not come to its end."""
    if not result.cases:
        return
    told = json.dumps(result.to_dict(), indent=2)
    if chosen.report is not None and chosen.report.parent.is_dir():
        numbers = chosen.report.with_suffix(".json")
        numbers.write_text(told + "\n", encoding="utf-8")
        try:
            report.write(numbers, chosen.report)
        except TestkitError as error:
            print(f"no page was written: {error}; the results are in {numbers}", file=sys.stderr)
    print(told if chosen.json else text.summary(result))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpreempt.testkit", description=__doc__)
    parser.add_argument(
        "--backend",
        choices=sorted(STAGES),
        default="emulated",
        help="emulated GPU, the same behind an emulated AMD driver, or PyTorch on this GPU",
    )
    parser.add_argument(
        "--cases",
        type=_cases,
        metavar="A,B",
        help=f"some of {', '.join(cases.NAMES)}; the first three unless said otherwise",
    )
    parser.add_argument(
        "--seconds", type=_time, default=4.0, metavar="S", help="each phase (4)"
    )
    parser.add_argument(
        "--duration", type=_time, metavar="TIME", help="the case stability, so long: 90s, 10m, 1h"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="a page; the numbers are beside it as JSON"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--strict", action="store_true", help="fail also if something is not as it should be"
    )
    parser.add_argument("--version", action="version", version=f"gpreempt {__version__}")
    return parser


def _cases(value: str) -> list[str]:
    names = list(dict.fromkeys(value.split(",")))
    unknown = [name for name in names if name not in cases.NAMES]
    if unknown:
        known = ", ".join(cases.NAMES)
        raise argparse.ArgumentTypeError(f"there is no case {unknown[0]!r}; take some of {known}")
    return names


def _time(value: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0.5 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no time between half a second and a day, such as 4, 90s, 10m or 1h"
        )
    return seconds


def _describe(stage: Stage, result: Result) -> None:
    result.environment["device"] = stage.describe()
    result.environment["library"] = f"libgpreempt {connection.library_version()}"


def _environment() -> dict[str, str]:
    return {
        "package": f"gpreempt {__version__}",
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(len(os.sched_getaffinity(0))),
    }


def _command(arguments: Optional[Sequence[str]]) -> str:
    words = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", "gpreempt.testkit", *words])


def _tell(line: str) -> None:
    # What comes out at the end is for stdout.
    print(line, file=sys.stderr, flush=True)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
