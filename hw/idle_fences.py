#!/usr/bin/env python3
"""Holds released by idle fences against holds released by ring silence, on one NVIDIA GPU.

    python3 hw/idle_fences.py --rings FOLDER --fences FOLDER --out FILE --commit COMMIT

FOLDER has the programs of a build; the first one is a build without idle fences. Both schedule the
same loads in turn, in interleaved repetitions: three loads of gpreempt-load, and with --llm an LLM
server beside training (needs PyTorch). Exit code 1 if a check fails, 3 without a GPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

from harness import Bench, check_log, kernel_log, lines, measured_rate, rate

# Period in us, kernels, kernel in us, gap in us.
CASES = {
    "20 kernels of 20 us, gaps 30 us": (10000, 20, 20, 30),
    "9 kernels of 40 us, gaps 110 us": (7000, 9, 40, 110),
    "3 kernels of 1 ms, gaps 200 us": (8000, 3, 1000, 200),
}
LLM = "LLM server, per token"


def attached(bench, folder, be, lc):
    bench.cli = os.path.join(folder, "gpreempt")
    attach = bench.attach(f"{be.pid}:2", f"{lc.pid}:12")
    attach.holds = []
    # Asked while the program lives: what is known of its holds goes with it.
    timer = threading.Timer(4, lambda: attach.holds.extend(holds_of(bench, lc)))
    timer.start()
    return attach


def holds_of(bench, lc):
    """What the service says of the holds of a process."""
    tasks = json.loads(bench.gpreempt("ps", "--json").stdout)
    queues = [queue for task in tasks if task["pid"] == lc.pid for queue in task["queues"]]
    return [queue["hold"] for queue in queues if queue["hold"]]


def one_load(bench, case, seconds, be=None, folder=None):
    """Latency and best-effort rate of one load, under one build or alone."""
    attaches = []
    then = folder and (lambda lc: attaches.append(attached(bench, folder, be, lc)))
    service, rates = bench.latency(seconds, *case, beside=[be] if be else [], then=then)
    for attach in attaches:
        bench.end(attach, signal.SIGINT)
    return {"lc_us": service, "be_per_s": rates,
            "holds": [hold for attach in attaches for hold in attach.holds]}


def start_script(bench, *arguments):
    """Starts hw/llm_load.py and waits until it is ready."""
    path = os.path.join(bench.scratch, f"llm{len(bench.children)}.log")
    script = os.path.join(os.path.dirname(__file__), "llm_load.py")
    log = open(path, "w")
    process = subprocess.Popen(["python3", script, *arguments], stdout=log, stderr=log)
    process.log = path
    bench.children.append(process)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if lines(path, "ready"):
            return process
        time.sleep(0.05)
    raise SystemExit(f"a load did not get ready: {open(path).read()[-500:]}")


def one_server(bench, seconds, be=None, folder=None):
    """The same of the LLM server."""
    lc = start_script(bench, "serve", "--seconds", str(seconds))
    attach = attached(bench, folder, be, lc) if folder else None
    begin = time.monotonic()
    lc.wait(120)
    rates = [rate(be, begin, time.monotonic())] if be else []
    if attach:
        bench.end(attach, signal.SIGINT)
    final = lines(lc.log, "final")[0]
    return {"lc_us": final["service_us"], "first_us": final["first_us"],
            "request_us": final["request_us"], "be_per_s": rates,
            "holds": attach.holds if attach else []}


def compare(bench, name, measure, be, builds, repetitions):
    """Alone, then both builds in turn."""
    alone = measure()
    bench.rows.append({"case": name, "mode": "alone"} | alone)
    be_alone = measured_rate(be(), 2)
    found = {mode: [] for mode in builds}
    for _ in range(repetitions):
        for mode, folder in builds.items():
            result = measure(be=be(), folder=folder)
            bench.rows.append({"case": name, "mode": mode} | result)
            found[mode].append(result)
    for mode, results in found.items():
        p50, p99 = (statistics.median(each["lc_us"][part] / alone["lc_us"][part]
                                      for each in results) for part in ("p50", "p99"))
        kept = statistics.median(each["be_per_s"][0] for each in results)
        placed = [hold["placed"] for each in results for hold in each["holds"]]
        print(f"{name:<34} {mode:<7} p50 {p50:5.2f} p99 {p99:5.2f} times alone "
              f"({alone['lc_us']['p50']:.0f} us)  BE {kept:6.1f}/s of {be_alone:6.1f}  "
              f"holds in 4 s {placed}", flush=True)
    fenced = [hold.get("fenced") for each in found["fences"] for hold in each["holds"]]
    bench.check(f"{name}: fences are answered", fenced and all(fenced), f"{fenced}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rings", required=True, help="a build without idle fences")
    parser.add_argument("--fences", required=True, help="a build with idle fences")
    parser.add_argument("--out", default="idle-fences.json")
    parser.add_argument("--commit", default="unknown", help="of the build with idle fences")
    parser.add_argument("--rings-commit", default="unknown")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=7)
    parser.add_argument("--llm", action="store_true")
    arguments = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl"):
        print("SKIPPED: no NVIDIA driver; run this on a machine with a GPU")
        return 3
    builds = {"rings": arguments.rings, "fences": arguments.fences}
    bench, before = Bench(arguments.fences), kernel_log()
    seconds, repetitions = arguments.seconds, arguments.repetitions
    try:
        be = bench.start("be", "--seconds", "500", "--kernel-us", "8000", "--report-ms", "50",
                         "--kind", "counter", "--wait-file", os.path.join(bench.scratch, "go"))
        alone = {name: one_load(bench, case, 5) for name, case in CASES.items()}
        open(os.path.join(bench.scratch, "go"), "w").close()
        for name, case in CASES.items():
            def measure(be=None, folder=None, name=name, case=case):
                return one_load(bench, case, seconds, be, folder) if be else alone[name]
            compare(bench, name, measure, lambda: be, builds, repetitions)
        bench.end(be)
        exact = lines(be.log, "final")[0]["exactness"]
        bench.check("the best-effort memory is exact", exact["result"] == "pass",
                    json.dumps(exact))
        if arguments.llm:
            trainings = []

            def training():
                if not trainings:
                    trainings.append(start_script(bench, "train", "--seconds", "300"))
                return trainings[0]
            compare(bench, LLM, lambda **how: one_server(bench, seconds + 3, **how), training,
                    builds, repetitions)
            trainings[0].kill()
            trainings[0].wait(20)
    finally:
        bench.end_all()
    check_log(bench, before)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": arguments.commit,
        "rings_commit": arguments.rings_commit,
        "command": "python3 hw/idle_fences.py" + (" --llm" if arguments.llm else ""),
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
