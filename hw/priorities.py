"""Priorities from outside, stops, and what is left behind."""

import json
import os
import signal
import subprocess
import time

from harness import lines, measured_rate


def test_priority(bench):
    """A priority from outside, for a program that knows nothing of it."""
    single, twenty = (5000, 1, 55, 0), (10000, 20, 20, 30)
    service, _ = bench.latency(4, *single)
    bench.row("one kernel, alone", service, [], [])
    service, _ = bench.latency(4, *twenty)
    bench.row("20 kernels, alone", service, [], [])
    be = bench.start("be", "--seconds", "240", "--kernel-us", "8000", "--report-ms", "100",
                     "--kind", "counter")
    descriptors = len(os.listdir(f"/proc/{be.pid}/fd"))
    alone = measured_rate(be, 3)
    default, rates = bench.latency(5, *single, beside=[be])
    bench.row("one kernel, driver defaults", default, rates, [alone])
    service, rates = bench.latency(5, 100000, *twenty[1:], beside=[be])
    bench.row("20 kernels, driver defaults", service, rates, [alone])
    original = bench.ps()[be.pid]["slices_us"]
    attach = bench.attach(str(be.pid), "-p", "2")
    ours, rates = bench.latency(5, *single, beside=[be])
    bench.row("one kernel, BE attached", ours, rates, [alone])
    better = default["p99"] / ours["p99"]
    bench.check("LC p99 at least 5 times better", better >= 5, f"{better:.1f} times")
    bench.check("BE keeps 90 %", rates[0] >= 0.9 * alone, f"{rates[0] / alone:.1%}")
    service, rates = bench.latency(5, *twenty, beside=[be])
    bench.row("20 kernels, BE attached", service, rates, [alone])
    bench.latency(6, 2500, 1, 40, 0)
    saves = bench.ps()[be.pid]["switches"]["saves_instruction"]
    bench.check("1,000 saves in the middle of kernels", saves >= 1000, f"{saves}")
    bench.end(attach, signal.SIGINT)
    bench.check("slices are restored", bench.ps()[be.pid]["slices_us"] == original, f"{original}")
    test_stop(bench, be, alone)
    bench.check("no descriptor is left", len(os.listdir(f"/proc/{be.pid}/fd")) == descriptors,
                f"{descriptors}")
    bench.end(be)
    exact = lines(be.log, "final")[0]["exactness"]
    bench.check("memory is exact", exact["result"] == "pass", json.dumps(exact))


def test_stop(bench, be, alone):
    """Stop and resume, a thousand times, and when the one who stopped is killed."""
    stop = subprocess.Popen([bench.cli, "suspend", str(be.pid), "--for", "3s"],
                            stdout=subprocess.DEVNULL)
    bench.children.append(stop)
    time.sleep(1)
    bench.check("a stopped process stands still", measured_rate(be, 1) == 0, "0/s for a second")
    stop.wait(20)
    time.sleep(0.3)
    after = measured_rate(be, 2)
    bench.check("resume brings 99 % back", after >= 0.99 * alone, f"{after / alone:.1%}")
    begin = time.monotonic()
    failed = sum(bench.gpreempt("suspend", str(be.pid), "--for", "1ms").returncode != 0
                 for _ in range(1000))
    took = time.monotonic() - begin
    bench.check("1,000 stops and resumes", failed == 0, f"{failed} failed, {took:.1f} s")


def test_kill(bench):
    """The one who stopped a process is killed: the process goes on within 100 ms."""
    be = bench.start("be", "--seconds", "40", "--kernel-us", "1000", "--report-ms", "10")
    late_ms = []
    for _ in range(10):
        stop = subprocess.Popen([bench.cli, "suspend", str(be.pid), "--for", "60s"],
                                stdout=subprocess.DEVNULL)
        bench.children.append(stop)
        time.sleep(0.4)
        killed = time.monotonic() * 1e9
        stop.kill()
        stop.wait(10)
        time.sleep(0.6)
        progress = [w for w in lines(be.log, "rate") if w["until_ns"] > killed and w["count"] > 0]
        late_ms.append((progress[0]["until_ns"] - killed) / 1e6 if progress else float("inf"))
    bench.check("kill -9 of the one who stopped, 10 times: on again within 100 ms",
                max(late_ms) <= 100, f"ms until the end of a 10 ms window with progress: "
                f"{[round(ms) for ms in late_ms]}")
    bench.end(be)
