"""The programs under test, the processes they started, and what was found."""

import json
import os
import signal
import subprocess
import tempfile
import time


class Bench:
    """The two programs, the processes they started, and what was found."""

    def __init__(self, folder):
        self.cli = os.path.join(folder, "gpreempt")
        self.load = os.path.join(folder, "gpreempt-load")
        self.children = []
        self.scratch = tempfile.mkdtemp(prefix="gpreempt-hw-")
        self.checks = []
        self.rows = []

    def gpreempt(self, *arguments):
        return subprocess.run([self.cli, *arguments], capture_output=True, text=True, timeout=60)

    def ps(self):
        """What the devices tell, also while a service runs."""
        listing = self.gpreempt("ps", "--hardware", "--json").stdout
        return {row["pid"]: row for row in json.loads(listing)}

    def start(self, *arguments, before=(), environment=None):
        """Starts a load and waits until it is ready."""
        path = os.path.join(self.scratch, f"load{len(self.children)}.log")
        log = open(path, "w")
        command = [*before, self.load, *arguments, "--json"]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        process.log = path
        self.children.append(process)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and process.poll() is None:
            if lines(path, "ready"):
                return process
            time.sleep(0.05)
        raise SystemExit(f"a load did not get ready: {open(path).read()[-500:]}")

    def attach(self, *arguments):
        """Starts an attach and waits until everything it was told is attached."""
        path = os.path.join(self.scratch, f"attach{len(self.children)}.log")
        command = [self.cli, "attach", *arguments, "--json"]
        process = subprocess.Popen(command, stdout=open(path, "w"), stderr=subprocess.STDOUT)
        process.log = path
        self.children.append(process)
        time.sleep(0.7)
        return process

    def alike(self, count, *arguments):
        """Several loads with kernels of the same size: the first one measures it."""
        first = self.start("be", *arguments)
        iterations = str(lines(first.log, "ready")[0]["kernel"]["iterations"])
        rest = [self.start("be", *arguments, "--iterations", iterations)
                for _ in range(count - 1)]
        return [first, *rest]

    def rates(self, loads, seconds):
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        return [rate(load, begin, end) for load in loads]

    def latency(self, seconds, every_us, kernels, kernel_us, gap_us, beside=(), more=(), then=None,
                before=(), environment=None):
        """One latency-critical load; the rates of others while it was in steady state."""
        load = self.start(
            "lc", "--seconds", str(int(seconds)), "--every-us", str(every_us), "--kernels",
            str(kernels), "--kernel-us", str(kernel_us), "--gap-us", str(gap_us),
            "--warmup-ms", "1000", *more, before=before,
            environment=environment)
        if then:
            then(load)
        time.sleep(0.7)
        begin = time.monotonic()
        time.sleep(seconds - 1.4)
        end = time.monotonic()
        load.wait(60)
        final = lines(load.log, "final")[0]
        return final["service_us"], [rate(other, begin, end) for other in beside]

    def row(self, name, service, rates, alone):
        kept = [round(r / a, 3) for r, a in zip(rates, alone)]
        per_second = [round(r, 1) for r in rates]
        self.rows.append({"name": name, "lc_us": service, "be_per_s": per_second, "be_kept": kept})
        latency = f"LC p50 {service['p50']:>8.0f} p99 {service['p99']:>8.0f} us"
        print(f"{name:<34} {latency}   BE kept {kept}")

    def check(self, name, holds, detail):
        self.checks.append({"name": name, "pass": bool(holds), "detail": detail})
        print(f"{'pass' if holds else 'FAIL'}  {name}: {detail}")

    def end(self, process, how=signal.SIGTERM):
        if process.poll() is None:
            process.send_signal(how)
        process.wait(60)

    def end_all(self):
        for process in self.children:
            if process.poll() is None:
                process.kill()
                process.wait(10)
        self.gpreempt("resume", "--all")


def lines(path, kind):
    found = []
    for text in open(path):
        try:
            record = json.loads(text)
        except ValueError:
            continue
        if record.get("line") == kind:
            found.append(record)
    return found


def rate(load, begin, end):
    """Kernels a second between two times of the monotonic clock."""
    windows = [w for w in lines(load.log, "rate")
               if w["from_ns"] >= begin * 1e9 and w["until_ns"] <= end * 1e9]
    length = sum(w["until_ns"] - w["from_ns"] for w in windows) / 1e9
    return sum(w["count"] for w in windows) / length if length else 0.0


def measured_rate(load, seconds):
    begin = time.monotonic()
    time.sleep(seconds)
    return rate(load, begin, time.monotonic())


def kernel_log():
    """What the kernel's log says; none if it cannot be read."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace",
                              timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def new_lines(before, after):
    """What came after the last line seen; the log is a ring, so counting lines does not do."""
    if not before or before[-1] not in after:
        return after
    last = len(after) - 1 - after[::-1].index(before[-1])
    return after[last + 1:]


def check_log(bench, before):
    """Checks that nothing came into the kernel's log since it was read."""
    after = kernel_log()
    if before is None or after is None:
        bench.check("the kernel's log can be read", False, "dmesg fails: run as root")
        return
    fresh = new_lines(before, after)
    bench.check("no new kernel log line", not fresh, f"{len(fresh)} lines {fresh[-1:]}")
