"""`python -m gpreempt doctor|ps`: what this machine can do, and who is on its GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Optional, Sequence

from . import __version__
from .doctor import examine
from .errors import GPreemptError
from .queue_info import QueueInfo, queues


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs a command; the answer is the exit code: 0 all is well, 1 something is missing."""
    parser = argparse.ArgumentParser(prog="python -m gpreempt", description=__doc__)
    parser.add_argument("--version", action="version", version=f"gpreempt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in (
        ("doctor", "what of gpreempt works here, and what is missing"),
        ("ps", "the queues that gpreemptd controls"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args(arguments)
    try:
        return _doctor(chosen.json) if chosen.command == "doctor" else _ps(chosen.json)
    except GPreemptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader closed the pipe.
        sys.stderr.close()
        return 1


def _doctor(is_json: bool) -> int:
    findings = examine()
    if is_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.is_good else 'MISS'}  {finding.what}: {finding.told}")
    return 0 if all(finding.is_good for finding in findings) else 1


def _ps(is_json: bool) -> int:
    found = queues()
    if is_json:
        print(json.dumps([asdict(queue) for queue in found], indent=2))
        return 0
    columns = "queue pid name device kind priority level state pending preempts".split()
    rows = [columns] + [_row(queue) for queue in found]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if not found:
        print("no process under gpreemptd's control has a queue")
    return 0


def _row(queue: QueueInfo) -> list[str]:
    return [
        str(queue.id),
        str(queue.pid),
        queue.name,
        str(queue.device),
        queue.device_kind.name.lower(),
        str(queue.priority),
        str(queue.level.value),
        _state(queue),
        str(queue.pending),
        str(queue.preempts),
    ]


def _state(queue: QueueInfo) -> str:
    if queue.is_suspended:
        return "suspended"
    if not queue.is_on:
        return "preempted"
    return "running" if queue.is_active else "idle"


if __name__ == "__main__":
    sys.exit(main())
