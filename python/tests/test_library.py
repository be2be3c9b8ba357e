"""Finding the library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpreempt
from gpreempt import _library
from scene import LIBRARY


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_named_library_is_the_only_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPREEMPT_LIBRARY", "/opt/x.so")
    assert _library.candidates() == ["/opt/x.so"]


def test_one_beside_the_package_comes_before_the_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPREEMPT_LIBRARY")
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))
    assert _library.candidates() == ["libgpreempt.so"]
    beside = tmp_path / "libgpreempt.so"
    beside.symlink_to(LIBRARY)
    assert _library.candidates() == [str(beside), "libgpreempt.so"]
    assert _library._load_first(_library.candidates()).path == str(beside)


def test_the_system_finds_it_by_its_name() -> None:
    code = "import gpreempt; print(gpreempt.library_path())"
    found = python(code, GPREEMPT_LIBRARY="", LD_LIBRARY_PATH=str(LIBRARY.parent))
    assert found.stdout == "libgpreempt.so\n", found.stderr


def test_it_says_which_version_it_is() -> None:
    assert gpreempt.library_version() == "0.1.0"
    assert gpreempt.library_path() == str(LIBRARY)


def test_without_a_library_importing_works_and_calling_explains() -> None:
    code = """
import gpreempt
try:
    gpreempt.queues()
except gpreempt.LibraryNotFound as error:
    assert isinstance(error, ImportError)
    print(error)
try:
    with gpreempt.critical():
        pass
except gpreempt.LibraryNotFound:
    print("again")
"""
    told = python(code, GPREEMPT_LIBRARY="/nowhere/libgpreempt.so")
    assert told.returncode == 0, told.stderr
    for part in ("/nowhere/libgpreempt.so", "GPREEMPT_LIBRARY", "cargo build", "\nagain"):
        assert part in told.stdout


def test_a_library_that_is_another_one_is_refused() -> None:
    code = "import gpreempt; gpreempt.queues()"
    told = python(code, GPREEMPT_LIBRARY="libc.so.6")
    assert "LibraryNotFound" in told.stderr and "gpreempt_hint_begin" in told.stderr


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "VERSION_WANTED", 0x09_02_00)
    with pytest.raises(gpreempt.VersionMismatch, match="0.1.0.*9.2.0"):
        _library._load_first([str(LIBRARY)])
