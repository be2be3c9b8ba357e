"""What of gpreempt works here, from the library up."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import __version__, connection
from .errors import GPreemptError
from .hint import critical
from .queue_info import queues


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    is_good: bool
    told: str
    """What was found, or what is missing and what to do."""


def examine() -> list[Finding]:
    """Looks at everything; stops where the rest needs what is missing."""
    findings = [Finding("package", True, f"gpreempt {__version__}")]
    try:
        path, version = connection.library_path(), connection.library_version()
        findings.append(Finding("library", True, f"{path}, version {version}"))
    except GPreemptError as error:
        return [*findings, Finding("library", False, str(error))]
    try:
        connection.connect()
        findings.append(Finding("gpreemptd", True, f"answers at {_socket()}"))
    except GPreemptError as error:
        return [*findings, Finding("gpreemptd", False, str(error))]
    return [*findings, _queues(), _hints()]


def status() -> str:
    """One line: whether hints and priorities of this process arrive, or what is missing. Never
    raises."""
    findings = examine()
    missing = [f"{found.what}: {found.told}" for found in findings if not found.is_good]
    told = missing[0] if missing else f"gpreemptd {findings[2].told}, hints are heard"
    return f"gpreempt {__version__}: {'nothing is done, ' if missing else ''}{told}"


def _socket() -> str:
    return os.environ.get("GPREEMPT_SOCKET") or "its usual socket"


def _queues() -> Finding:
    try:
        found = queues()
    except GPreemptError as error:
        return Finding("queues", False, str(error))
    devices: dict[tuple[int, str, int], int] = {}
    for queue in found:
        key = (queue.device, queue.device_kind.name.lower(), queue.level.value)
        devices[key] = devices.get(key, 0) + 1
    if not devices:
        return Finding("queues", True, "none is under its control now")
    texts = [
        f"{count} on device {number} ({kind}, level {level})"
        for (number, kind, level), count in sorted(devices.items())
    ]
    return Finding("queues", True, ", ".join(texts))


def _hints() -> Finding:
    try:
        with critical(required=True):
            pass
    except GPreemptError as error:
        return Finding("hints", False, str(error))
    return Finding("hints", True, "are heard")
