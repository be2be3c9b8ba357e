"""The C library on real hardware: queues, interrupts, hints, submission with a priority.

Needs libgpreempt.so and the programs of crates/agent/examples/c beside the other binaries; without
them it says SKIPPED.
"""

import json
import os
import subprocess
import time

from harness import lines, measured_rate
from service import Service


def program(bench, daemon, name, *arguments):
    """Runs one of the example programs."""
    folder = os.path.dirname(bench.cli)
    environment = {**daemon.environment, "LD_LIBRARY_PATH": folder}
    return subprocess.run([os.path.join(folder, name), *arguments], env=environment, text=True,
                          capture_output=True, timeout=120)


def test_library(bench):
    """Levels 1 and 3, hints and submission with a priority, through the C library."""
    if not os.path.exists(os.path.join(os.path.dirname(bench.cli), "cuda_priority")):
        print("SKIPPED  C library: its example programs are not there")
        return
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50",
                     "--kind", "counter")
    alone = measured_rate(be, 2)
    daemon = Service(bench, "library")
    time.sleep(2)
    listed = program(bench, daemon, "list_queues").stdout
    rows = [line.split() for line in listed.splitlines()[1:]]
    own = [row for row in rows if row[1] == str(be.pid)]
    bench.check("the library lists the queue of a process", len(own) == 1, listed.strip()[-200:])
    stopped = subprocess.Popen(
        [os.path.join(os.path.dirname(bench.cli), "suspend_resume"), "7", "2500"],
        env={**daemon.environment, "LD_LIBRARY_PATH": os.path.dirname(bench.cli)},
        stdout=subprocess.DEVNULL)
    bench.children.append(stopped)
    time.sleep(0.5)
    during = measured_rate(be, 1)
    stopped.wait(10)
    time.sleep(0.3)
    after = measured_rate(be, 1.5)
    bench.check("the library suspends and resumes queues",
                during == 0 and after >= 0.95 * alone and stopped.returncode == 0,
                f"{during:.0f}/s, then {after:.0f}/s of {alone:.0f}")
    level = program(bench, daemon, "interrupt_restore", own[0][0])
    bench.check("interrupt and restore, level 3", level.returncode == 0 and "level 3" in
                level.stdout, (level.stdout + level.stderr).strip())
    killed = subprocess.Popen(
        [os.path.join(os.path.dirname(bench.cli), "suspend_resume"), "7", "60000"],
        env={**daemon.environment, "LD_LIBRARY_PATH": os.path.dirname(bench.cli)},
        stdout=subprocess.DEVNULL)
    bench.children.append(killed)
    time.sleep(0.5)
    killed.kill()
    killed.wait(10)
    time.sleep(0.2)
    back = measured_rate(be, 1)
    bench.check("a program that dies leaves nothing suspended", back >= 0.9 * alone,
                f"{back:.0f}/s of {alone:.0f}")
    hints = program(bench, daemon, "hints", "20000")
    bench.check("hints are cheap", hints.returncode == 0, hints.stdout.strip())
    print(daemon.stop()[-300:])
    bench.end(be)
    exact = lines(be.log, "final")[0]["exactness"]
    bench.check("memory is exact after interrupts", exact["result"] == "pass", json.dumps(exact))
    submitted = program(bench, daemon, "cuda_priority", "1000", "300")
    found = json.loads(submitted.stdout) if submitted.returncode == 0 else {}
    bench.check("submission with a priority, level 1: exact", found.get("exact") is True,
                (submitted.stdout + submitted.stderr).strip()[-700:])
    bench.rows.append({"name": "cuda_priority", **found})
