#!/usr/bin/env python3
"""Two builds of gpreempt beside each other on one NVIDIA GPU: is the new one as good as the old?

    python3 hw/side_by_side.py --old FOLDER --new FOLDER --out side-by-side.json --commit COMMIT

Both builds schedule the same loads in turn, three times: a latency-critical load with gaps of
30 us (20 kernels every 10 ms) beside a best-effort load with kernels of 8 ms. Latency (p50) and
the best-effort rate of the two builds may differ by at most 3 %. After that the new build's
`suspend` and `attach` are killed with SIGKILL: the best-effort load must run again within 30 ms.
Exit code 0 if everything holds, 1 if not, 3 without a GPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from harness import Bench, check_log, kernel_log, lines, measured_rate

# Period in us, kernels, kernel in us, gap in us.
GAP30 = (10000, 20, 20, 30)
REPETITIONS = 3
SECONDS = 11
DIFFERENCE_MAX = 0.03
KILLS = 20
KILL_LIMIT_MS = 30.0


def one_case(bench, cli, be):
    """The gap load under one build: its latency and the rate of the best-effort load."""
    attached = []

    def attach(load):
        bench.cli = cli
        attached.append(bench.attach(f"{be.pid}:2", f"{load.pid}:12"))

    service, rates = bench.latency(SECONDS, *GAP30, beside=[be], then=attach)
    bench.end(attached[0], signal.SIGINT)
    return service, rates[0]


def compare(bench, builds):
    """Three interleaved repetitions of both builds."""
    solo, _ = bench.latency(6, *GAP30)
    bench.row("gap 30, alone", solo, [], [])
    be = bench.start("be", "--seconds", "200", "--kernel-us", "8000", "--report-ms", "50",
                     "--kind", "counter")
    alone = measured_rate(be, 2)
    found = {name: [] for name in builds}
    for repetition in range(REPETITIONS):
        for name, cli in builds.items():
            service, rate = one_case(bench, cli, be)
            bench.row(f"gap 30, {name} build, repetition {repetition + 1}", service, [rate],
                      [alone])
            found[name].append((service["p50"], service["p99"], rate))
    bench.end(be)
    exact = lines(be.log, "final")[0]["exactness"]
    bench.check("the best-effort memory is exact", exact["result"] == "pass", json.dumps(exact))
    for index, what in ((0, "p50 of the gap load"), (2, "rate of the best-effort load")):
        old, new = (statistics.median(each[index] for each in found[name])
                    for name in ("old", "new"))
        difference = new / old - 1
        bench.check(f"{what} differs by less than 3 %", abs(difference) < DIFFERENCE_MAX,
                    f"old {old:.1f}, new {new:.1f}: {difference:+.1%}")
    for name in builds:
        ratios = [round(each[0] / solo["p50"], 3) for each in found[name]]
        print(f"       {name} build: p50 {ratios} times alone")


def until_progress(be, moment_ns):
    """Milliseconds from a moment until the first report of a kernel that ended after it."""
    time.sleep(0.4)
    windows = [w for w in lines(be.log, "rate") if w["until_ns"] > moment_ns and w["count"] > 0]
    return (windows[0]["until_ns"] - moment_ns) / 1e6 if windows else float("inf")


def kill_private_sessions(bench, cli):
    """SIGKILL of the command that stopped a process or shortened its time slice."""
    bench.cli = cli
    be = bench.start("be", "--seconds", "60", "--kernel-us", "500", "--report-ms", "2")
    original = bench.ps()[be.pid]["slices_us"]
    late_ms = []
    for _ in range(KILLS):
        command = [cli, "suspend", str(be.pid), "--for", "60s"]
        stop = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        bench.children.append(stop)
        # The line that says that the process is stopped.
        stop.stdout.readline()
        time.sleep(0.1)
        killed = time.monotonic_ns()
        stop.kill()
        stop.wait(10)
        late_ms.append(until_progress(be, killed))
    bench.check(f"kill -9 of a private session, {KILLS} times: BE runs again within 30 ms",
                max(late_ms) <= KILL_LIMIT_MS, f"ms {[round(ms, 1) for ms in late_ms]}")
    attach = bench.attach(str(be.pid), "-p", "2")
    attach.kill()
    attach.wait(10)
    time.sleep(0.5)
    bench.check("kill -9 of an attach: time slices are restored",
                bench.ps()[be.pid]["slices_us"] == original, f"{original}")
    bench.end(be)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", required=True, help="folder with the programs of the old build")
    parser.add_argument("--new", required=True, help="folder with the programs of the new build")
    parser.add_argument("--out", default="side-by-side.json")
    parser.add_argument("--commit", default="unknown", help="of the new build")
    parser.add_argument("--old-commit", default="unknown")
    arguments = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl"):
        print("SKIPPED: no NVIDIA driver; run this on a machine with a GPU")
        return 3
    builds = {name: os.path.join(folder, "gpreempt")
              for name, folder in (("old", arguments.old), ("new", arguments.new))}
    bench = Bench(arguments.new)
    before = kernel_log()
    try:
        compare(bench, builds)
        kill_private_sessions(bench, builds["new"])
    finally:
        bench.cli = builds["new"]
        bench.end_all()
    check_log(bench, before)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": arguments.commit,
        "old_commit": arguments.old_commit,
        "command": "python3 hw/side_by_side.py",
        "checks": bench.checks,
        "rows": bench.rows,
    }
    with open(arguments.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    failed = [check["name"] for check in bench.checks if not check["pass"]]
    print(f"{len(bench.checks) - len(failed)} of {len(bench.checks)} checks hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
