"""The designs of the papers beside ours, in one run."""

import os
import signal
import subprocess
import time

from harness import lines

SINGLE, TWENTY = (5000, 1, 55, 0), (20000, 20, 20, 30)


def test_peers(bench):
    """One kernel every 5 ms, and 20 kernels with gaps, beside kernels of 1 ms."""
    flag = os.path.join("/dev/shm", f"gpreempt-{os.getpid()}")
    kernel = ("--kernel-us", "1000", "--report-ms", "100")
    for name, load in (("one kernel", SINGLE), ("20 kernels", TWENTY)):
        be = bench.start("be", "--seconds", "40", *kernel)
        alone = bench.rates([be], 2)
        service, rates = bench.latency(4, *load, beside=[be])
        bench.row(f"{name}, driver defaults", service, rates, alone)

        def slices(lc):
            command = [bench.load, "peer", "slices", "--lc", str(lc.pid), "--be", str(be.pid),
                       "--seconds", "8"]
            bench.children.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

        service, rates = bench.latency(4, *load, beside=[be], then=slices)
        bench.row(f"{name}, slices of 1 s and 1 us (GPreempt)", service, rates, alone)
        bench.end(bench.children[-1])
        attach = bench.attach(f"{be.pid}:2")
        service, rates = bench.latency(4, *load, beside=[be])
        bench.row(f"{name}, ours (slices)", service, rates, alone)
        bench.end(attach, signal.SIGINT)
        bench.end(be)
        for more in ((), ("--clear-ring",)):
            be = bench.start("be", "--peer", "reset", "--watch", flag, *more, "--seconds", "12",
                             *kernel)
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


def test_starving(bench):
    """Two best-effort processes of 1 us each, as slices alone leave them."""
    loads = bench.alike(2, "--seconds", "30", "--kernel-us", "8000", "--report-ms", "100")
    before = bench.rates(loads, 2)
    idle = bench.start("lc", "--seconds", "25", "--kernels", "1", "--every-us", "20000000")
    command = [bench.load, "peer", "slices", "--lc", str(idle.pid), "--seconds", "6",
               "--be", *(str(load.pid) for load in loads)]
    peer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    bench.children.append(peer)
    time.sleep(1)
    during = bench.rates(loads, 3)
    peer.wait(20)
    bench.rows.append({"name": "two BE at 1 us", "be_per_s": during,
                       "be_kept": [d / b for d, b in zip(during, before)]})
    print(f"two BE, slices of 1 us for both: {during} of {before} a second")
    for load in [*loads, idle]:
        bench.end(load)
