"""The examples run as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scene import REPOSITORY, Scene

EXAMPLES = REPOSITORY / "examples"
# This one needs PyTorch and a GPU; mypy reads it all the same.
NEEDS_GPU = {"torch_critical.py"}


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_every_example_is_run_by_a_test() -> None:
    tests = REPOSITORY / "python" / "tests"
    source = "".join(path.read_text() for path in tests.glob("test_*.py"))
    for example in EXAMPLES.iterdir():
        if example.suffix in (".py", ".sh", ".ipynb"):
            assert example.name in NEEDS_GPU or f'"{example.name}"' in source, example.name


def test_serve(scene: Scene) -> None:
    scene.load(env={"GPREEMPT_PRIORITY": "2"})
    told = run("serve.py", "--requests", 20)
    assert "without hints" in told and "with hints" in told


def test_online_offline(scene: Scene) -> None:
    offline = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    online = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    told = run("online_offline.py", online.pid, offline.pid, "--seconds", 1)
    assert f"suspended {offline.pid}" in told and f"resumed {offline.pid}" in told
    statistics = json.loads(told[told.index("{") :])
    assert statistics["suspends"] == statistics["resumes"] > 0
    offline.finish()


def test_suspend_training(scene: Scene) -> None:
    load = scene.load(env={"GPREEMPT_PRIORITY": "2"})
    told = run("suspend_training.py", load.pid, "--", sys.executable, "-c", "print('backup')")
    assert "backup" in told and "runs again" in told
    load.finish()


def test_priorities(scene: Scene) -> None:
    told = run("priorities.py")
    assert "priority 2" in told and "priority 7" in told


def test_priorities_says_in_one_sentence_what_is_missing() -> None:
    environment = {**os.environ, "GPREEMPT_EMULATED_SOCKET": ""}
    command = [sys.executable, str(EXAMPLES / "priorities.py")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert told.returncode == 1 and told.stderr.count("\n") == 1, told.stderr
    assert told.stderr.startswith("priorities.py: "), told.stderr


def test_torch_critical_says_what_it_needs() -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    command = [sys.executable, str(EXAMPLES / "torch_critical.py"), "--requests", "1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 2
    assert "PyTorch" in told.stderr
