"""The daemon on real hardware: the same latency as without it, and a long run of changes."""

import json
import os
import random
import signal
import subprocess
import time

from harness import lines

CONFIG = """
[scheduler]
default_priority = 2
"""


class Service:
    """A daemon with its own folder."""

    def __init__(self, bench, name, configuration=CONFIG):
        self.bench = bench
        self.folder = os.path.join(bench.scratch, name)
        os.mkdir(self.folder)
        self.socket = os.path.join(self.folder, "gpreemptd.sock")
        config = os.path.join(self.folder, "config.toml")
        with open(config, "w") as out:
            out.write(configuration)
        self.environment = {**os.environ, "GPREEMPT_STATE": os.path.join(self.folder, "state"),
                            "GPREEMPT_SOCKET": self.socket}
        self.log = os.path.join(self.folder, "log")
        program = os.path.join(os.path.dirname(bench.cli), "gpreemptd")
        self.process = subprocess.Popen(
            [program, "--config", config, "--socket", self.socket], env=self.environment,
            stdout=open(self.log, "w"), stderr=subprocess.STDOUT)
        bench.children.append(self.process)
        deadline = time.monotonic() + 10
        while not os.path.exists(self.socket) and time.monotonic() < deadline:
            time.sleep(0.05)

    def call(self, *arguments):
        return subprocess.run([self.bench.cli, *arguments], env=self.environment, text=True,
                              capture_output=True, timeout=30)

    def resident_kib(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1])

    def processor_s(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.bench.end(self.process)
        return open(self.log).read()


def test_service(bench):
    """One latency-critical process beside three best-effort ones, attached and by the daemon."""
    single = (5000, 1, 55, 0)
    service, _ = bench.latency(4, *single)
    bench.row("one kernel, alone", service, [], [])
    loads = bench.alike(3, "--seconds", "60", "--kernel-us", "8000", "--report-ms", "100")
    alone = bench.rates(loads, 3)
    attached = []

    def attach(lc):
        attached.append(bench.attach(f"{lc.pid}:12", *(f"{load.pid}:2" for load in loads)))

    by_hand, rates = bench.latency(6, *single, beside=loads, then=attach)
    bench.row("one kernel, 1 LC + 3 BE attached", by_hand, rates, alone)
    bench.end(attached[0], signal.SIGINT)
    daemon = Service(bench, "service")
    time.sleep(2)

    def raise_it(lc):
        daemon.call("set", str(lc.pid), "-p", "12")

    before = daemon.processor_s()
    by_daemon, rates = bench.latency(6, *single, beside=loads, then=raise_it)
    used = daemon.processor_s() - before
    bench.row("one kernel, 1 LC + 3 BE by the daemon", by_daemon, rates, alone)
    ratio = by_daemon["p99"] / by_hand["p99"]
    bench.check("the daemon gives the same latency", ratio <= 1.15, f"p99 {ratio:.2f} times")
    bench.check("all three get on", min(r / a for r, a in zip(rates, alone)) >= 0.5,
                ", ".join(f"{r / a:.0%}" for r, a in zip(rates, alone)))
    maps = open(f"/proc/{loads[0].pid}/maps").read()
    status = open(f"/proc/{loads[0].pid}/status").read()
    own = [line for line in maps.splitlines() if "libgpreempt" in line]
    bench.check("nothing of ours is in the programs", not own and "TracerPid:\t0" in status,
                "no mapping, no tracer")
    resident = daemon.resident_kib()
    bench.check("the daemon is small", resident < 20 * 1024, f"{resident} KiB")
    bench.rows.append({"name": "daemon processor time", "seconds": used, "of_seconds": 6})
    print(f"the daemon used {used:.2f} s of processor time meanwhile")
    log = daemon.stop()
    slices = [bench.ps()[load.pid]["slices_us"] for load in loads]
    bench.check("everything is restored when it ends", all(s == [2048] for s in slices),
                f"{slices}")
    bench.rows.append({"name": "daemon log", "lines": log.splitlines()[-20:]})
    for load in loads:
        bench.end(load)


def soak(bench, seconds):
    """Mixed load with a change of priority every second."""
    chance = random.Random(7)
    length = str(int(seconds) + 30)
    loads = bench.alike(3, "--seconds", length, "--kernel-us", "4000", "--report-ms", "500",
                        "--kind", "counter")
    lc = bench.start("lc", "--seconds", length, "--kernels", "5", "--every-us", "10000")
    alone = bench.rates(loads, 2)
    daemon = Service(bench, "soak")
    time.sleep(2)
    begin, refused, resident = time.monotonic(), 0, []
    while time.monotonic() < begin + seconds:
        load = chance.choice([*loads, lc])
        changed = daemon.call("set", str(load.pid), "-p", str(chance.randrange(16)))
        refused += changed.returncode != 0
        resident.append(daemon.resident_kib())
        time.sleep(1)
    bench.check("every change was accepted", refused == 0, f"{refused} of {len(resident)} refused")
    grown = resident[-1] - resident[min(30, len(resident) - 1)]
    bench.check("the daemon's memory is flat", grown < 1024,
                f"{grown} KiB more, {resident[-1]} KiB")
    log = daemon.stop()
    slices = [bench.ps()[load.pid]["slices_us"] for load in [*loads, lc]]
    bench.check("everything is restored after the soak", all(s == [2048] for s in slices),
                f"{slices}")
    after = bench.rates(loads, 2)
    bench.check("and every process has its rate back",
                all(a >= 0.9 * b for a, b in zip(after, alone)), f"{after} of {alone}")
    for load in loads:
        bench.end(load)
        exact = lines(load.log, "final")[0]["exactness"]
        bench.check("memory is exact after the soak", exact["result"] == "pass", json.dumps(exact))
    bench.end(lc)
    bench.rows.append({"name": "soak log", "lines": log.splitlines()[-20:]})
    print(log[-1500:])
