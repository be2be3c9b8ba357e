#!/usr/bin/env python3
"""Unmodified PyTorch programs: inference beside training, in every mode, one JSON file.

    python3 hw/torch_test.py --bin target/release --out torch.json --commit COMMIT

Needs PyTorch beside what hw/hardware_test.py needs. Without a GPU it prints SKIPPED and exits
with 3.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

from harness import Bench, check_log, kernel_log, lines, measured_rate, rate

KINDS = ("resnet", "resnet-graph", "decode", "decode-graph")
MODES = ("alone", "defaults", "MPS", "MPS with priority", "slices", "held")
LOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "crates", "bench", "torch",
                    "load.py")


class Mps:
    """An MPS server for a while."""

    def __init__(self, bench):
        self.folder = os.path.join(bench.scratch, f"mps{time.monotonic_ns()}")
        os.mkdir(self.folder)
        places = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        self.environment = {**os.environ, **{place: self.folder for place in places}}

    def __enter__(self):
        started = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment)
        return self if started.returncode == 0 else None

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True,
                       env=self.environment)

    def client(self, priority):
        """The environment of a client; 0 is the priority that comes first."""
        more = {} if priority is None else {"CUDA_MPS_CLIENT_PRIORITY": str(priority)}
        return {**self.environment, **more}


def start(bench, *arguments, environment=None):
    """Starts a PyTorch load and waits until it is ready."""
    path = os.path.join(bench.scratch, f"torch{len(bench.children)}.log")
    process = subprocess.Popen([sys.executable, LOAD, *arguments], stdout=open(path, "w"),
                               stderr=subprocess.STDOUT, env=environment)
    process.log = path
    bench.children.append(process)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if lines(path, "ready"):
            return process
        time.sleep(0.05)
    raise SystemExit(f"a PyTorch load did not get ready: {open(path).read()[-800:]}")


def one(bench, mode, kind, seconds, training, alone, environment=None):
    """One inference program in one mode. Returns its latencies."""
    load = start(bench, "lc", "--kind", kind, "--seconds", str(seconds), "--warmup-ms", "1500",
                 environment=environment)
    attach = None
    if mode in ("slices", "held"):
        processes = [f"{load.pid}:12", *(f"{be.pid}:2" for be in training)]
        attach = bench.attach(*processes, *(["--no-hold"] if mode == "slices" else []))
    time.sleep(0.8)
    begin = time.monotonic()
    load.wait(seconds + 60)
    end = time.monotonic() - 0.5
    if attach:
        bench.end(attach, signal.SIGINT)
    final = lines(load.log, "final")[0]
    rates = [rate(be, begin, end) for be in training]
    bench.row(f"{kind}, {mode}", final["service_us"], rates, alone)
    bench.rows[-1].update({"kind": kind, "mode": mode, "training": len(training)})
    bench.check(f"{kind}, {mode}: results as alone", final["wrong"] == 0, f"{final['wrong']} wrong")
    return final["service_us"]


def table(bench):
    """Ratios to running alone."""
    solo = {row["kind"]: row["lc_us"] for row in bench.rows if row.get("mode") == "alone"}
    print(f"{'p99 against alone':<20}" + "".join(f"{mode:>20}" for mode in MODES[1:]))
    for training in sorted({row["training"] for row in bench.rows if row.get("training")}):
        for kind in KINDS:
            cells = []
            for mode in MODES[1:]:
                found = [row for row in bench.rows if row.get("kind") == kind
                         and row.get("mode") == mode and row["training"] == training]
                cells.append(f"{found[0]['lc_us']['p99'] / solo[kind]['p99']:.2f} "
                             f"({sum(found[0]['be_kept']):.0%})" if found else "-")
            print(f"{kind + ' x' + str(training):<20}" + "".join(f"{cell:>20}" for cell in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release")
    parser.add_argument("--out", default="torch.json")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--seconds", type=int, default=9)
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl"):
        print("SKIPPED: no NVIDIA driver; run this on a machine with a GPU")
        return 3
    bench, before = Bench(arguments.bin), kernel_log()
    kinds, seconds = arguments.kinds.split(","), arguments.seconds
    try:
        for kind in kinds:
            one(bench, "alone", kind, seconds, [], [])
        length = str(len(kinds) * (seconds + 12) * 4 + 60)
        first = start(bench, "be", "--seconds", length)
        alone = [measured_rate(first, 4)]
        for mode in ("defaults", "slices", "held"):
            for kind in kinds:
                one(bench, mode, kind, seconds, [first], alone)
        second = start(bench, "be", "--seconds", length)
        both = alone * 2
        for mode in ("defaults", "held"):
            for kind in kinds[1::2]:
                one(bench, mode, kind, seconds, [first, second], both)
        bench.end(first)
        bench.end(second)
        for mode, priorities in (("MPS", (None, None)), ("MPS with priority", (0, 1))):
            with Mps(bench) as server:
                if server is None:
                    print("SKIPPED  MPS: no server could be started")
                    continue
                be = start(bench, "be", "--seconds", length,
                           environment=server.client(priorities[1]))
                time.sleep(4)
                for kind in kinds:
                    one(bench, mode, kind, seconds, [be], alone, server.client(priorities[0]))
                bench.end(be)
    finally:
        bench.end_all()
    check_log(bench, before)
    table(bench)
    with open(arguments.out, "w") as out:
        json.dump({"date": time.strftime("%Y-%m-%d"), "commit": arguments.commit,
                   "command": "python3 hw/torch_test.py", "checks": bench.checks,
                   "rows": bench.rows}, out, indent=1)
        out.write("\n")
    failed = sum(not check["pass"] for check in bench.checks)
    print(f"{len(bench.checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
