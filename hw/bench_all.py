#!/usr/bin/env python3
"""The benchmark suites on one NVIDIA GPU, one after the other, each with a limit on its time.

Needs the binaries (`cargo build --release --workspace --bins` on any machine) and, on the machine
with the GPU, Python 3; for the suite `torch` also PyTorch with CUDA:

    python3 hw/bench_all.py --bin target/release --out results --limit 590 micro disb

Without suites: all of them, in the short form. A suite that was stopped by the limit goes on when
the same command is given again, and one that is finished is left alone, so several short stays on a
machine add up. At the end: a table, and what the kernel's log says of the GPU (Xid).
Results of another --commit are not gone on with, and do not count.
Exit code 0 if everything was measured, 1 if something is left or failed, 3 without a GPU.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

from harness import kernel_log, new_lines

SUITES = ("micro", "disb", "torch", "online-offline", "scale", "share")
# What a suite needs to end what it started after Ctrl-C.
GRACE = 45
DRIVER = "/dev/nvidiactl"
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, but the suite does not hear of it from a terminal."""


def terminate(_signal, _frame):
    raise Terminated


def end_with(parent):
    """In the child: it gets a Ctrl-C when we die, so that it ends what it started."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def is_result(found):
    """Whether this is a file of results, as far as it is looked at here."""
    try:
        return (isinstance(found["short"], bool)
                and all(name in found for name in ("finished", "commit"))
                and all(isinstance(each["status"], dict) and each["took_s"] >= 0
                        and each["case"] and each["mode"] for each in found["measurements"])
                and all(isinstance(check["passed"], bool) and check["name"] and check["text"]
                        and (check["case"], check["mode"]) for check in found["checks"]))
    except (AttributeError, KeyError, TypeError):
        return False


def result(folder, arguments):
    """What a suite has measured so far, and what is the matter with it.

    The first is none if there is nothing of this commit and in this form.
    """
    path = os.path.join(folder, "result.json")
    try:
        with open(path) as file:
            found = json.load(file)
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        return None, f"{path} cannot be read: {error}"
    if not is_result(found):
        return None, f"{path} is no file of results"
    if found["commit"] != arguments.commit:
        return None, (f"{path} is of commit {found['commit']} and this is {arguments.commit}; "
                      "name another folder with --out, or remove it")
    return (found if found["short"] != arguments.long else None), None


def run(command, seconds, environment=None):
    """Runs a suite; after so long it gets the Ctrl-C that makes it keep what it has.

    Returns whether Ctrl-C was typed, so that nothing else is begun.
    """
    parent = os.getpid()
    try:
        process = subprocess.Popen(command, env=environment,
                                   preexec_fn=lambda: end_with(parent))
    except (OSError, subprocess.SubprocessError) as error:
        print(f"cannot start {command[0]}: {error}")
        return False
    is_stopped = False
    try:
        process.wait(timeout=max(1, seconds))
        # The suite may have been the first to end after a Ctrl-C that was for both.
        return process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    except Terminated:
        process.send_signal(signal.SIGINT)
        is_stopped = True
    except KeyboardInterrupt:
        # The terminal told the suite as well.
        is_stopped = True
    end = time.monotonic() + GRACE
    while process.poll() is None and time.monotonic() < end:
        try:
            process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            break
        except KeyboardInterrupt:
            is_stopped = True
    if process.poll() is None:
        process.kill()
        process.wait()
    return is_stopped


def row(suite, folder, arguments):
    """The line of a suite, and whether nothing is left to do."""
    found, problem = result(folder, arguments)
    if found is None:
        return (suite, "nothing of this" if problem else "nothing", "", "", "", ""), False
    measured = found["measurements"]
    failed = [each for each in measured if each["status"].get("state") != "ok"]
    checks = found["checks"]
    wrong = [check for check in checks if not check["passed"]]
    is_whole = found["finished"] is not None
    minutes = sum(each["took_s"] for each in measured) / 60
    return (suite, "whole" if is_whole else "in part", str(len(measured)), str(len(failed)),
            f"{len(checks) - len(wrong)} of {len(checks)}", f"{minutes:.1f}"), \
        is_whole and not failed


def details(suite, folder, arguments):
    """What failed and what does not hold, a line each."""
    found, problem = result(folder, arguments)
    if problem:
        print(f"not counted: {suite}: {problem}")
    found = found or {"measurements": [], "checks": []}
    for each in found["measurements"]:
        if each["status"].get("state") != "ok":
            print(f"failed: {suite}, {each['case']}, {each['mode']}: "
                  f"{each['status'].get('reason')}")
    for check in found["checks"]:
        if not check["passed"]:
            place = ", ".join(filter(None, (suite, check["case"], check["mode"])))
            print(f"does not hold: {place}: {check['name']}: {check['text']}")


def table(rows):
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def measure(suite, folder, end, arguments):
    """Runs what is left of a suite; returns whether Ctrl-C was typed."""
    found, problem = result(folder, arguments)
    if problem:
        print(f"{suite} is not measured: {problem}")
        return False
    if found and found["finished"]:
        print(f"{suite} is finished")
        return False
    left = end - time.monotonic()
    if left < 10:
        print(f"no time is left for {suite}")
        return False
    form = [] if arguments.long else ["--short"]
    return run([os.path.join(arguments.bin, "gpreempt"), "bench", suite, "--backend", "nvidia",
                *form, "--out", folder, "--commit", arguments.commit], left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--bin", default="target/release")
    parser.add_argument("--out", default="bench-results")
    parser.add_argument("--limit", type=int, default=1800, metavar="SECONDS",
                        help="for everything together")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--long", action="store_true", help="the whole form, which takes hours")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    if not os.path.exists(DRIVER):
        print("SKIPPED: no NVIDIA driver; run this on a machine with a GPU")
        return 3
    signal.signal(signal.SIGTERM, terminate)
    suites = arguments.suites or SUITES
    before = kernel_log()
    end = time.monotonic() + arguments.limit - GRACE
    folder_of = lambda suite: os.path.join(arguments.out, suite)
    try:
        for suite in suites:
            if measure(suite, folder_of(suite), end, arguments):
                print("stopped; nothing else begins")
                break
    except KeyboardInterrupt:
        print("stopped between two suites")
    rows = [row(suite, folder_of(suite), arguments) for suite in suites]
    print()
    table([("suite", "measured", "n", "failed", "lines hold", "minutes")]
          + [line for line, _ in rows])
    for suite in suites:
        details(suite, folder_of(suite), arguments)
    after = kernel_log()
    log = []
    if before is None or after is None:
        print("The kernel's log cannot be read, so an Xid in it would go unnoticed.")
    else:
        log = [line for line in new_lines(before, after) if "Xid" in line]
        print("\n".join(log) if log else "The kernel's log has no new Xid.")
    return 0 if all(is_done for _, is_done in rows) and not log else 1


if __name__ == "__main__":
    sys.exit(main())
