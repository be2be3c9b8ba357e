"""The test kit itself, run as people run it, on the emulated GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scene import Program, binaries, until

LIMIT_S = 240


def environment() -> dict[str, str]:
    return {**os.environ, "GPREEMPT_BIN": str(binaries())}


def run(*arguments: object, status: int = 0) -> str:
    told = subprocess.run(
        [sys.executable, "-m", "gpreempt.testkit", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment(),
    )
    assert told.returncode == status, f"{told.returncode}: {told.stdout}\n{told.stderr}"
    return told.stdout if status != 2 else told.stderr


def check(result: dict[str, Any], backend: str) -> dict[str, Any]:
    """What holds for every whole run; the answer is its criteria by name."""
    assert result["schema"] == 1 and result["backend"] == backend
    assert "passed" in result["conclusion"] and result["finished"] is not None
    # Timed criteria may fail on a busy machine; those of the rank "must" may not.
    must = [one for one in result["checks"] if one["name"].startswith("must: ")]
    assert all(one["passed"] for one in must), must
    return {one["name"].partition(": ")[2]: one for one in result["checks"]}


@pytest.mark.parametrize("case", ["basic", "frequent"])
def test_preemption(case: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    told = run("--cases", case, "--seconds", 1, "--json", "--report", page)
    result = json.loads(told)
    lines = check(result, "emulated")
    assert lines["the online model preempts the offline one"]["passed"] is True
    phases = {phase["mode"]: phase for phase in result["measurements"]}
    assert list(phases) == ["online alone", "offline alone", "together", "scheduler", "priorities"]
    numbers = {number["name"]: number["value"] for number in phases["scheduler"]["numbers"]}
    assert numbers["suspend_count"] > 0
    assert phases["offline alone"]["be"]["done"] > 0
    assert json.loads(page.with_suffix(".json").read_text()) == result
    shown = page.read_text()
    assert "GPreemptScheduler in charge" in shown and "<svg" in shown and "p99 vs alone" in shown


def test_boundary_conditions() -> None:
    lines = check(json.loads(run("--cases", "boundary", "--seconds", 1, "--json")), "emulated")
    for name in (
        "no offline model: no model is suspended",
        "no online model: no model is suspended",
        "both online: no model is suspended",
        "both online: both are served",
        "levels at once: all are served",
        "models come and go: preemption goes on",
        "models come and go: nothing of them is left",
    ):
        assert lines[name]["passed"] is True, lines[name]


def test_stability_as_text() -> None:
    told = run("--duration", 3, "--seconds", 1)
    assert "no error in the whole time" in told and "passed" in told


def test_an_amd_gpu() -> None:
    told = run("--backend", "emulated-kfd", "--cases", "frequent", "--seconds", 1, "--json")
    check(json.loads(told), "emulated-kfd")


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--cases", "dance"], "there is no case 'dance'; take some of basic"),
        (["--seconds", "0"], "no time between half a second and a day"),
        (["--backend", "abacus"], "invalid choice"),
        (["--report", "/no/where/r.html"], "/no/where is no folder"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str) -> None:
    assert told in run(*arguments, status=2)


def test_without_pytorch_the_backend_cuda_is_refused() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed here")
    told = run("--backend", "cuda", status=2)
    assert told.startswith("error: PyTorch is not installed here") and "emulated" in told


@pytest.mark.parametrize("role", ["online", "offline"])
def test_a_model_in_pytorch(role: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed here")
    (tmp_path / "start").touch()
    online = {"kernels": 2, "kernel_us": 1, "every_us": 10_000}
    options = {
        **{"backend": "cuda", "device": "cpu", "role": role, "priority": 3, "report_ms": 20},
        "shape": online if role == "online" else {"kernel_us": 1},
        "start": str(tmp_path / "start"),
    }
    model = Program(sys.executable, "-m", "gpreempt.testkit.model", json.dumps(options))
    model.until_says('"ready"')
    time.sleep(1)
    assert model.terminate() == 0, list(model.lines)
    assert model.reports("final")[-1]["exactness"] == {"result": "pass"}


def test_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "gpreempt.testkit"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "GPREEMPT_BIN": str(tmp_path)},
    )
    assert told.returncode == 2
    missing = f"error: there is no gpreempt-emu in {tmp_path}, which GPREEMPT_BIN names\n"
    assert told.stderr == missing


def test_an_interrupted_run_keeps_what_it_measured_and_leaves_nothing(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = [sys.executable, "-m", "gpreempt.testkit", "--seconds", "1", "--report", str(page)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "both, without a scheduler" in line:
                break
        time.sleep(0.5)
        children = descendants(child.pid)
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == 130
    kept = json.loads(page.with_suffix(".json").read_text())
    assert kept["finished"] is None and "interrupted" in kept["conclusion"]
    assert kept["measurements"][0]["lc"]["latency"]["count"] > 0
    assert "interrupted" in page.read_text()
    assert len(children) >= 2
    until("its processes end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def descendants(pid: int) -> list[int]:
    """The processes that a process started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == pid:
            found.append(int(folder.name))
    return found
