"""python -m gpreempt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpreempt.__main__ import main
from listing import busy_load
from scene import Scene


def test_doctor_is_content(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    busy_load(scene)
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    queues = "1 on device 0 (emulated, level 3)"
    for part in ("ok    library: ", str(scene.socket), queues, "hints: are heard"):
        assert part in told, told
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert [finding["is_good"] for finding in findings] == [True] * 5


def test_doctor_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "MISS  gpreemptd: " in told and "hints" not in told


def test_doctor_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPREEMPT_LIBRARY", "/nowhere/libgpreempt.so")
    command = [sys.executable, "-m", "gpreempt", "doctor"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1 and "MISS  library: " in told.stdout and not told.stderr
    assert "; GPREEMPT_LIBRARY names it)" in told.stdout
    assert "set GPREEMPT_LIBRARY to its path" in told.stdout


def test_ps_lists_queues(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    assert "no process" in capsys.readouterr().out
    load, id = busy_load(scene)
    assert main(["ps"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["queue", "pid", "name"]
    assert row.split()[:6] == [str(id), str(load.pid), "gpreempt-load", "0", "emulated", "3"]
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["pid"] == load.pid


def test_ps_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_nonsense_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["dance"], ["ps", "--loud"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert "usage: python -m gpreempt" in capsys.readouterr().err


def test_the_package_is_typed() -> None:
    import gpreempt

    assert Path(gpreempt.__file__).with_name("py.typed").exists()
