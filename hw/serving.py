#!/usr/bin/env python3
"""Serving on one NVIDIA GPU: latency budgets, where the tail of requests comes from, two servers,
and the cases of the test kit that need many PyTorch processes. Its parts run in the order of their
importance, each with a limit on its time.

Needs root, PyTorch with CUDA, and gpreempt, gpreemptd, gpreempt-keeper, gpreempt-load and
libgpreempt.so of one commit (on any machine, `cargo build --release` with
`-p gpreempt-cli -p gpreempt-daemon -p gpreempt-device -p gpreempt-bench -p gpreempt-agent`):

    python3 hw/serving.py --bin target/release --out results --limit 540 --commit COMMIT

Given again, it goes on with what is left. At the end: a table, what the slowest 1 % of the requests
waited for, and what the kernel's log says of the GPU (Xid).
Exit code 0 if everything was measured, 1 if something is left or failed, 3 without a GPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

import bench_all
from bench_all import result, table
from harness import Bench, kernel_log, new_lines
from service import Service

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What a part may need to end after its limit.
RESERVE = 20
BUDGETS = "alone,hold,budget-15,budget-30,budget-60"
MODES = "alone,default,slices,hold"
# Name, suite, cases, modes, repetitions, seconds.
SUITES = (
    ("budgets", "torch", "serve-eager", BUDGETS, 3, 200),
    ("tails", "micro", "gap30,be-8ms", MODES, 3, 130),
    ("two-servers", "torch", "serve-two", "alone,default,mps-priority,hold", 1, 90),
    ("periodic", "micro", "periodic", MODES, 1, 50),
)
# The case of the test kit, seconds, and before which suite it runs; none is after all of them.
CASES = (("frequent", 100, "periodic"), ("boundary", 200, None))
# Parts of a slow request, as the results name them.
WAITS = ("latency", "queue", "notice", "switch", "again", "rest", "silence", "late")


def library_problem(environment):
    """Why the Python package cannot use the library; none if it can."""
    code = "from gpreempt import connection; print(connection.library_version())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=60)
    return None if done.returncode == 0 else done.stderr.strip()[-300:]


def testkit_result(case, arguments):
    """What a case of the test kit found, and why there is nothing."""
    try:
        with open(os.path.join(arguments.out, f"testkit-{case}.json")) as file:
            return json.load(file), None
    except (OSError, ValueError) as error:
        return None, error


def testkit(case, seconds, arguments):
    """A case of the test kit beside a daemon, with the library of the same build."""
    found, _ = testkit_result(case, arguments)
    if found and found["finished"]:
        print(f"{case} is finished")
        return False
    bench = Bench(arguments.bin)
    try:
        daemon = Service(bench, "testkit", "[daemon]\nrescan_ms = 100\n")
        environment = {
            **daemon.environment,
            "PYTHONPATH": os.path.join(ROOT, "python/src"),
            "GPREEMPT_BIN": os.path.abspath(arguments.bin),
            "GPREEMPT_LIBRARY": os.path.abspath(os.path.join(arguments.bin, "libgpreempt.so")),
        }
        problem = library_problem(environment)
        if problem:
            print(f"the test kit is not run: {problem}")
            return False
        report = os.path.join(arguments.out, f"testkit-{case}.html")
        return bench_all.run(
            [sys.executable, "-m", "gpreempt.testkit", "--backend", "cuda", "--cases", case,
             "--seconds", "2", "--report", report], seconds, environment)
    finally:
        bench.end_all()


def suite_part(part, seconds, arguments):
    """A part of a suite; returns whether Ctrl-C was typed."""
    name, suite, cases, modes, repetitions, _ = part
    folder = os.path.join(arguments.out, name)
    found, problem = result(folder, arguments)
    if problem:
        print(f"{name} is not measured: {problem}")
        return False
    if found and found["finished"]:
        print(f"{name} is finished")
        return False
    return bench_all.run(
        [os.path.join(arguments.bin, "gpreempt"), "bench", suite, "--backend", "nvidia", "--short",
         "--cases", cases, "--modes", modes, "--repetitions", str(repetitions), "--out", folder,
         "--commit", arguments.commit], seconds)


def parts(arguments):
    """What is run, in order: a name, its limit, and the function."""
    for part in SUITES:
        for case, seconds, before in CASES:
            if before == part[0]:
                yield case, seconds, lambda left, case=case: testkit(case, left, arguments)
        yield part[0], part[5], lambda left, part=part: suite_part(part, left, arguments)
    for case, seconds, before in CASES:
        if before is None:
            yield case, seconds, lambda left, case=case: testkit(case, left, arguments)


def median_of(measurements, name):
    values = [number["value"] for each in measurements for number in each["numbers"]
              if number["name"] == name]
    return statistics.median(values) if values else None


def text(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


def groups(folder, arguments):
    """The successful measurements of each case and mode."""
    found, _ = result(folder, arguments)
    kept = {}
    for each in (found or {"measurements": []})["measurements"]:
        if each["status"].get("state") == "ok":
            kept.setdefault((each["case"], each["mode"]), []).append(each)
    return kept


def summary(arguments):
    """Medians of every case and mode."""
    rows = [("case", "mode", "n", "p50 us", "p99 us", "token us", "BE/s", "kept %", "slower %",
             "off %", "shared %")]
    for part in SUITES:
        for (case, mode), each in groups(os.path.join(arguments.out, part[0]), arguments).items():
            latency = [one["lc"]["latency"] for one in each if one["lc"]]
            be = [one["be"] for one in each if one["be"]]
            median = lambda values: statistics.median(values) if values else None
            token = median_of(each, "token_p50")
            kept = [one["kept"] for one in be if one["kept"] is not None]
            rows.append((
                case, mode, str(len(each)), text(median([one["p50_ns"] / 1e3 for one in latency])),
                text(median([one["p99_ns"] / 1e3 for one in latency])),
                text(None if token is None else token / 1e3),
                text(median([one["per_second"] for one in be])),
                text(median([100 * one for one in kept])),
                *(text(median_of(each, name)) for name in ("slowdown", "off_engine", "shared"))))
    table(rows)


def tails(arguments):
    """What the slowest 1 % of the requests waited for, and the others; averages in us."""
    rows = [("case", "mode", "requests", *WAITS, "missed %")]
    for part in SUITES:
        for (case, mode), each in groups(os.path.join(arguments.out, part[0]), arguments).items():
            for kind in ("slow", "other"):
                values = [median_of(each, f"{kind}_{wait}") for wait in WAITS]
                if values[0] is None:
                    continue
                rows.append((case, mode, kind, *(text(value / 1e3, 0) for value in values),
                             text(median_of(each, f"{kind}_missed"))))
    print("\nwhat the slowest 1 % of the requests waited for (us), and the others:")
    table(rows)


def testkit_lines(arguments):
    """Whether each case of the test kit passed, and what does not hold."""
    is_whole = True
    for case, _, _ in CASES:
        found, problem = testkit_result(case, arguments)
        if found is None:
            print(f"test kit, {case}: nothing ({problem})")
            is_whole = False
            continue
        checks = found["checks"]
        wrong = [check for check in checks if not check["passed"]]
        state = "whole" if found["finished"] else "in part"
        print(f"test kit, {case}: {state}, {len(checks) - len(wrong)} of {len(checks)} checks")
        for check in wrong:
            print(f"  does not hold: {check['name']}: {check['text']}")
        is_whole &= found["finished"] is not None
    return is_whole


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release")
    parser.add_argument("--out", default="serving-results")
    parser.add_argument("--limit", type=int, default=540, metavar="SECONDS")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--parts", default="", metavar="A,B", help="only these: "
                        + ", ".join([part[0] for part in SUITES] + [case[0] for case in CASES]))
    arguments = parser.parse_args()
    arguments.long = False
    if not os.path.exists(bench_all.DRIVER):
        print("SKIPPED: no NVIDIA driver; run this on a machine with a GPU")
        return 3
    signal.signal(signal.SIGTERM, bench_all.terminate)
    os.makedirs(arguments.out, exist_ok=True)
    before = kernel_log()
    end = time.monotonic() + arguments.limit - RESERVE
    try:
        for name, limit, action in parts(arguments):
            if arguments.parts and name not in arguments.parts.split(","):
                continue
            left = min(limit, end - time.monotonic())
            if left < 15:
                print(f"no time is left for {name}")
                continue
            print(f"\n=== {name}, at most {left:.0f} s", flush=True)
            try:
                if action(left):
                    print("stopped; nothing else begins")
                    break
            except (OSError, SystemExit, subprocess.SubprocessError) as error:
                print(f"{name} failed: {error}")
    except KeyboardInterrupt:
        print("stopped between two parts")
    print()
    summary(arguments)
    tails(arguments)
    rows = [bench_all.row(part[0], os.path.join(arguments.out, part[0]), arguments)
            for part in SUITES]
    print()
    table([("part", "measured", "n", "failed", "lines hold", "minutes")]
          + [line for line, _ in rows])
    for part in SUITES:
        bench_all.details(part[0], os.path.join(arguments.out, part[0]), arguments)
    is_whole = testkit_lines(arguments) and all(is_done for _, is_done in rows)
    after = kernel_log()
    if before is None or after is None:
        print("The kernel's log cannot be read, so an Xid in it would go unnoticed.")
        return 1
    log = [line for line in new_lines(before, after) if "Xid" in line]
    print("\n".join(log) if log else "The kernel's log has no new Xid.")
    return 0 if is_whole and not log else 1


if __name__ == "__main__":
    sys.exit(main())
