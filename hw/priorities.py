"""Priorities and suspensions set from outside, minimum shares, and the published reset design."""

import json
import os
import signal
import subprocess
import time

from harness import lines, measured_rate


def test_priority(bench):
    """A priority set from outside, for a program without any support for it."""
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
    """Suspend and resume, 1,000 times."""
    stop = subprocess.Popen([bench.cli, "suspend", str(be.pid), "--for", "3s"],
                            stdout=subprocess.DEVNULL)
    bench.children.append(stop)
    time.sleep(1)
    bench.check("a suspended process is off the GPU", measured_rate(be, 1) == 0, "0/s for 1 s")
    stop.wait(20)
    time.sleep(0.3)
    after = measured_rate(be, 2)
    bench.check("resume brings 99 % back", after >= 0.99 * alone, f"{after / alone:.1%}")
    begin = time.monotonic()
    failed = sum(bench.gpreempt("suspend", str(be.pid), "--for", "1ms").returncode != 0
                 for _ in range(1000))
    took = time.monotonic() - begin
    bench.check("1,000 suspends and resumes", failed == 0, f"{failed} failed, {took:.1f} s")


def test_kill(bench):
    """`gpreempt suspend` is killed: the process runs again within 100 ms."""
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
    bench.check("kill -9 of gpreempt suspend, 10 times: resumed within 100 ms",
                max(late_ms) <= 100, f"ms until the end of a 10 ms window with progress: "
                f"{[round(ms) for ms in late_ms]}")
    bench.end(be)


def test_min_share(bench):
    """Three processes that always have work, each of another priority, with a minimum share."""
    loads = bench.alike(3, "--seconds", "60", "--kernel-us", "2000", "--report-ms", "100")
    whole = sum(bench.rates(loads, 3))
    attach = bench.attach(*(f"{load.pid}:{level}" for load, level in zip(loads, (14, 9, 2))),
                          "--min-share", "10")
    shares = [each / whole for each in bench.rates(loads, 12)]
    bench.check("14, 9 and 2 with at least 10 %: the first has most, all make progress",
                shares[0] >= 0.55 and min(shares[1:]) >= 0.04,
                ", ".join(f"{share:.1%}" for share in shares))
    refused = bench.gpreempt("attach", str(loads[1].pid), "-p", "2")
    bench.check("a second attach is refused", refused.returncode == 2, refused.stderr.strip())
    bench.end(attach, signal.SIGINT)
    slices = [bench.ps()[load.pid]["slices_us"] for load in loads]
    bench.check("all slices are restored", slices[0] == slices[1] == slices[2], f"{slices}")
    for load in loads:
        bench.end(load)


def test_reset(bench):
    """The reset design of the papers: one kernel, and 20 with gaps, beside kernels of 1 ms."""
    flag = os.path.join("/dev/shm", f"gpreempt-{os.getpid()}")
    for name, load in (("one kernel", (5000, 1, 55, 0)), ("20 kernels", (20000, 20, 20, 30))):
        for more in ((), ("--clear-ring",)):
            be = bench.start("be", "--peer", "reset", "--watch", flag, *more, "--seconds", "12",
                             "--kernel-us", "1000", "--report-ms", "100")
            alone = bench.rates([be], 2)
            service, rates = bench.latency(4, *load, beside=[be], more=("--announce", flag))
            title = " and cleared ring" if more else ""
            bench.row(f"{name}, reset{title} (the papers)", service, rates, alone)
            be.wait(60)
            final = lines(be.log, "final")
            keep = ("completed", "resubmitted", "resets", "stuck", "exactness")
            bench.rows[-1]["reset"] = {key: final[0].get(key) for key in keep} if final else None
            print(f"      {bench.rows[-1]['reset']}")
    if os.path.exists(flag):
        os.unlink(flag)
