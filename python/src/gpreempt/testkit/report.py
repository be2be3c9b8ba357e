"""The page of a results file, written by `gpreempt bench report`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .programs import TestkitError, program


def write(results: Path, page: Path) -> None:
    """Writes the page of a results file."""
    command = [str(part) for part in (program("gpreempt"), "bench", "report", results, "-o", page)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise TestkitError(f"gpreempt bench report could not write {page}: {told.stderr.strip()}")
