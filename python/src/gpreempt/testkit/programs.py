"""Other programs: where they are, started, listened to, and surely ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Optional

PATIENCE_S = 60.0
"""How long anything may take: far more than it does, because machines are busy."""
LINES_MAX = 200_000
"""Lines of a program that are kept; a run of hours has more, and then the last ones count."""


class TestkitError(Exception):
    """The test could not be run. The message says what, why, what to do."""

    __test__ = False


def program(name: str) -> Path:
    """One of our programs: in the folder GPREEMPT_BIN, or where the shell would find it."""
    folder = os.environ.get("GPREEMPT_BIN")
    if folder:
        path = Path(folder) / name
        if path.exists():
            return path
        raise TestkitError(f"there is no {name} in {folder}, which GPREEMPT_BIN names")
    found = shutil.which(name)
    if found is None:
        raise TestkitError(
            f"{name} is not installed; install gpreempt, or set GPREEMPT_BIN to a folder with it"
        )
    return Path(found)


def until(what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Waits until something is so."""
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() >= end:
            raise TestkitError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(0.005)


class Program:
    """A program that was started here; what it says is kept."""

    def __init__(self, *command: object, env: Optional[dict[str, str]] = None) -> None:
        self.command = [str(part) for part in command]
        self.child = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self.child.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.child.poll() is None

    def says(self, text: str) -> bool:
        """Whether it has said so."""
        return any(text in line for line in list(self.lines))

    def until_says(self, text: str) -> None:
        """Waits for that."""
        until(f"{self.command} says {text!r}", lambda: self.says(text) or not self.is_alive())
        if not self.says(text):
            self._reader.join(PATIENCE_S)
        if not self.says(text):
            raise TestkitError(f"{self.command} ended: {' / '.join(list(self.lines)[-5:])}")

    def reports(self, line: str) -> list[dict[str, Any]]:
        """Its JSON lines of one kind."""
        objects = [json.loads(text) for text in list(self.lines) if text.startswith("{")]
        return [item for item in objects if item.get("line") == line]

    def ask_to_end(self) -> None:
        """Asks, and does not wait."""
        if self.is_alive():
            self.child.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its status, when it has ended and everything it said is here."""
        try:
            status = self.child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TestkitError(f"{self.command} does not end") from None
        self._reader.join(PATIENCE_S)
        return status

    def terminate(self) -> int:
        """Ends it in good order."""
        self.ask_to_end()
        return self.wait()

    def kill(self) -> None:
        """Ends it."""
        self.child.kill()
        self.child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def _read(self) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as out:
            for line in out:
                self.lines.append(line.rstrip("\n"))
