"""The C library and the Python package on real hardware: queues, interrupts, hints, submission.

Needs libgpreempt.so and the programs of crates/agent/examples/c beside the other binaries; without
them it says SKIPPED.
"""

import json
import os
import subprocess
import sys
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


PACKAGE = """
import json, sys, time
import gpreempt
queues = gpreempt.queues(pid=int(sys.argv[1]))
found = {"queues": len(queues), "level": int(gpreempt.level(queues[0].id))}
with gpreempt.suspended(queues):
    print("suspended", flush=True)
    time.sleep(1.6)
begin = time.perf_counter()
for _ in range(10000):
    with gpreempt.critical(deadline_us=1000):
        pass
found["critical_us"] = (time.perf_counter() - begin) * 100
gpreempt.set_priority(3, pid=int(sys.argv[1]))
found["priority"] = gpreempt.priority_of(int(sys.argv[1]))
print(json.dumps(found), flush=True)
"""


def test_python_package(bench):
    """The Python package: queues, suspension, hints and priorities of a CUDA program."""
    sources = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python/src")
    library = os.path.join(os.path.dirname(bench.cli), "libgpreempt.so")
    if not os.path.exists(library):
        print("SKIPPED  Python package: libgpreempt.so is not there")
        return
    be = bench.start("be", "--seconds", "40", "--kernel-us", "8000", "--report-ms", "50",
                     "--kind", "counter")
    alone = measured_rate(be, 1)
    daemon = Service(bench, "package")
    time.sleep(2)
    environment = {**daemon.environment, "PYTHONPATH": sources, "GPREEMPT_LIBRARY": library}
    script = subprocess.Popen([sys.executable, "-c", PACKAGE, str(be.pid)], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    bench.children.append(script)
    begun = script.stdout.readline().strip()
    time.sleep(0.1)
    during = measured_rate(be, 1)
    out, problem = script.communicate(timeout=60)
    found = json.loads(out) if script.returncode == 0 else {}
    after = measured_rate(be, 1)
    bench.check("the Python package suspends and resumes a CUDA program",
                begun == "suspended" and during == 0 and after >= 0.95 * alone,
                f"{during:.0f}/s, then {after:.0f}/s of {alone:.0f} {problem.strip()[-200:]}")
    bench.check("and lists queues, gives hints and sets priorities",
                found.get("queues") == 1 and found.get("level") == 3 and found.get("priority") == 3,
                json.dumps(found))
    daemon.stop()
    bench.end(be)
    exact = lines(be.log, "final")[0]["exactness"]
    bench.check("memory is exact after that", exact["result"] == "pass", json.dumps(exact))
