#!/usr/bin/env python3
"""Hardware tests on one NVIDIA GPU: real processes, real preemption, one JSON file.

Needs three binaries (`cargo build --release -p gpreempt-cli -p gpreempt-device -p
gpreempt-bench` on any machine) and,
on the machine with the GPU, Python 3 and nothing else:

    python3 hw/hardware_test.py --bin target/release --out results.json --commit COMMIT

What a suite can express is in hardware.toml beside this file; run it with

    gpreempt bench hw/hardware.toml

Every load has a time limit. All GPU settings are restored at the end, also after a failure.
Without a GPU it prints SKIPPED and exits with 3. Exit code 1 if a check fails.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from clients import test_many_clients
from first_hour import test_one_command, test_true_numbers
from frameworks import test_frameworks
from harness import Bench, check_log, kernel_log
from holds import test_hold_cycles, test_hold_ends, test_two_held, test_watcher_cost
from library import test_library, test_python_package
from memory import (test_evict_costs, test_evict_cycles, test_evict_kills, test_evict_latency,
                    test_evict_turns)
from priorities import test_kill, test_min_share, test_priority, test_reset
from programs import test_hold_resets, test_programs, test_static_runtime
from service import soak, test_service
from surroundings import (test_containers, test_later_contexts, test_listing, test_memory,
                          test_mps, test_observe, test_refusals, test_users)

TESTS = (test_priority, test_hold_ends, test_hold_resets, test_programs, test_static_runtime,
         test_two_held, test_watcher_cost, test_hold_cycles, test_kill, test_min_share,
         test_listing, test_observe, test_later_contexts, test_containers, test_users,
         test_refusals, test_memory, test_service, test_reset, test_mps, test_library,
         test_python_package, test_frameworks, test_many_clients, test_one_command,
         test_true_numbers, test_evict_costs, test_evict_latency, test_evict_cycles,
         test_evict_kills, test_evict_turns)


def selected(arguments):
    """What of the command line decides what is run."""
    soak_too = ["--soak", str(arguments.soak)] if arguments.soak else []
    return soak_too + (["--only", arguments.only] if arguments.only else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release")
    parser.add_argument("--out", default="hardware.json")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--soak", type=int, metavar="SECONDS", help="nothing but a long run")
    parser.add_argument("--only", default="",
                        help="tests whose name contains one of these, with commas between")
    arguments = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl"):
        print("SKIPPED: no NVIDIA driver; run this on a machine with a GPU")
        return 3
    bench = Bench(arguments.bin)
    before, wanted = kernel_log(), arguments.only.split(",")
    try:
        if arguments.soak:
            soak(bench, arguments.soak)
        for test in TESTS:
            if not arguments.soak and any(part in test.__name__ for part in wanted):
                test(bench)
    finally:
        bench.end_all()
    check_log(bench, before)
    left = os.listdir("/run/gpreempt") if os.path.isdir("/run/gpreempt") else []
    left = [name for name in left if name.startswith("session-")]
    bench.check("no session is left", not left, f"{left}")
    devices = subprocess.run([bench.load, "devices"], capture_output=True, text=True).stdout
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": arguments.commit,
        "command": " ".join(["python3", "hw/hardware_test.py", *selected(arguments)]),
        "devices": devices.strip().splitlines(),
        "checks": bench.checks,
        "rows": bench.rows,
    }
    with open(arguments.out, "w") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    failed = sum(not check["pass"] for check in bench.checks)
    print(f"{len(bench.checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
