"""Holds: what ends them, what they cost, and two processes that are both held.

hardware.toml checks the latency with holds and hints.
"""

import json
import os
import signal
import subprocess
import time

from harness import lines, measured_rate

# Period in us, kernels, kernel in us, gap in us.
GAP30 = (10000, 20, 20, 30)


def held_by(bench, be, load, held=True):
    """An attach of both, with or without holds."""
    options = [] if held else ["--no-hold"]
    return bench.attach(f"{be.pid}:2", f"{load.pid}:12", *options)


def beside(bench, name, case, seconds, be, alone, how):
    """One load beside BE; `how` attaches it."""
    attached = []
    service, rates = bench.latency(seconds, *case, beside=[be],
                                   then=lambda load: attached.append(how(load)))
    for process in attached:
        bench.end(process, signal.SIGINT)
    bench.row(name, service, rates, [alone])
    return service, rates[0]


def back_after(be, moment, longest):
    """Milliseconds from a moment until the end of a window in which BE made progress."""
    time.sleep(longest)
    windows = [w for w in lines(be.log, "rate") if w["from_ns"] > moment and w["count"] > 0]
    return (windows[0]["until_ns"] - moment) / 1e6 if windows else float("inf")


def test_hold_ends(bench):
    """The holding or the held process is killed or stopped: the others continue."""
    be = bench.start("be", "--seconds", "120", "--kernel-us", "500", "--report-ms", "1")
    # Always in a request, so always held.
    always = ("lc", "--seconds", "100", "--every-us", "1150", "--kernels", "20", "--kernel-us",
              "20", "--gap-us", "30")
    alone = measured_rate(be, 1)
    late = {"LC": [], "holder": []}
    for _ in range(3):
        lc = bench.start(*always)
        attach = held_by(bench, be, lc)
        starved = measured_rate(be, 1)
        moment = time.monotonic_ns()
        lc.kill()
        late["LC"].append(back_after(be, moment, 0.4))
        bench.end(attach, signal.SIGINT)
        lc.wait(10)
        lc = bench.start(*always)
        attach = held_by(bench, be, lc)
        time.sleep(0.5)
        moment = time.monotonic_ns()
        attach.kill()
        attach.wait(10)
        late["holder"].append(back_after(be, moment, 0.6))
        bench.end(lc)
    bench.check("LC killed while held: BE is back within 10 ms",
                max(late["LC"]) <= 10, f"{late['LC']} ms, before {starved:.0f}/s of {alone:.0f}")
    bench.check("holder killed while holding: BE is back within 100 ms",
                max(late["holder"]) <= 100, f"{late['holder']} ms")
    # Long gaps, so that the GPU is held most of the time and others could use it.
    lc = bench.start("lc", "--seconds", "60", "--every-us", "16000", "--kernels", "20",
                     "--kernel-us", "20", "--gap-us", "700")
    attach = held_by(bench, be, lc)
    time.sleep(1)
    held = measured_rate(be, 1)
    attach.send_signal(signal.SIGSTOP)
    moment = time.monotonic_ns()
    stopped = back_after(be, moment, 0.5)
    attach.send_signal(signal.SIGCONT)
    bench.check("holder stopped while holding: BE is back within 200 ms", stopped <= 200,
                f"{stopped:.0f} ms, held {held:.0f}/s of {alone:.0f}")
    time.sleep(0.5)
    lc.send_signal(signal.SIGSTOP)
    moment = time.monotonic_ns()
    stopped = back_after(be, moment, 0.5)
    lc.send_signal(signal.SIGCONT)
    bench.check("LC stopped while held: BE is back within 70 ms", stopped <= 70,
                f"{stopped:.0f} ms")
    bench.end(attach, signal.SIGINT)
    bench.end(lc)
    bench.end(be)


def thread_ns(pid, name):
    """Processor time of the threads of that name, in nanoseconds."""
    total, folder = 0, f"/proc/{pid}/task"
    for thread in os.listdir(folder):
        if open(f"{folder}/{thread}/comm").read().strip() == name:
            total += int(open(f"{folder}/{thread}/schedstat").read().split()[0])
    return total


def test_watcher_cost(bench):
    """The cost of watching a program that always has work."""
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50")
    for name, streams, most in (("one stream", 1, 0.10), ("seven streams", 7, 0.20)):
        lc = bench.start("lc", "--seconds", "40", "--every-us", "1500", "--kernels", "20",
                         "--kernel-us", "20", "--gap-us", "30", "--streams", str(streams))
        attach = held_by(bench, be, lc)
        time.sleep(0.5)
        begin, before = time.monotonic_ns(), thread_ns(attach.pid, "gpreempt-hold")
        time.sleep(6)
        used = thread_ns(attach.pid, "gpreempt-hold") - before
        part = used / (time.monotonic_ns() - begin)
        bench.rows.append({"name": f"watcher, {name}", "of_a_core": part})
        bench.check(f"watching {name} takes at most {most:.0%} of a core", 0 < part <= most,
                    f"{part:.1%}")
        bench.end(attach, signal.SIGINT)
        bench.end(lc)
    bench.end(be)


def memory_used():
    found = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"],
                           capture_output=True, text=True).stdout
    return int(found.split()[0])


def test_hold_cycles(bench):
    """1,000 hold channels, four in each attach: nothing is left behind."""
    loads = [bench.start("be", "--seconds", "240", "--kernel-us", "1000", "--report-ms", "100")]
    loads += [bench.start("lc", "--seconds", "240", "--every-us", "4000", "--kernels", "5",
                          "--kernel-us", "20", "--gap-us", "20") for _ in range(4)]
    classes = [f"{load.pid}:{12 if place else 2}" for place, load in enumerate(loads)]
    descriptors = {load.pid: len(os.listdir(f"/proc/{load.pid}/fd")) for load in loads}
    memory, attaches, cycles, held, problems = memory_used(), 0, 0, 0, set()
    begin = time.monotonic()
    while cycles < 1000 and time.monotonic() < begin + 150:
        done = bench.gpreempt("attach", *classes, "--for", "60ms", "--json")
        said = [json.loads(line) for line in done.stdout.splitlines() if '"holds"' in line]
        # A process whose channel was not added in time has no such line.
        attaches += 1
        cycles += len(said)
        held += sum(line["placed"] > 0 for line in said)
        if done.returncode != 0 or '"problem"' in done.stdout or done.stderr:
            problems.add((done.stderr or done.stdout).strip()[-200:])
    took = time.monotonic() - begin
    bench.check("1,000 hold channels added and removed",
                cycles >= max(1000, 0.9 * 4 * attaches) and not problems,
                f"{cycles} in {attaches} attaches and {took:.0f} s; {sorted(problems)[:3]}")
    bench.check("most of them held", held >= 0.5 * cycles, f"{held}")
    now = {load.pid: len(os.listdir(f"/proc/{load.pid}/fd")) for load in loads}
    bench.check("no descriptor and no GPU memory is left",
                now == descriptors and memory_used() <= memory + 2,
                f"{now}, {memory_used()} MiB, before {memory}")
    for load in loads:
        bench.end(load)


def test_two_held(bench):
    """Two latency-critical processes with gaps: the scheduler decides which one is held."""
    solo, _ = bench.latency(5, *GAP30)
    bench.row("gap 30, alone", solo, [], [])
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50")
    alone = measured_rate(be, 2)
    other = bench.start("lc", "--seconds", "5", "--every-us", "19700", "--kernels", "20",
                        "--kernel-us", "20", "--gap-us", "30", "--warmup-ms", "4000")

    def how(load):
        return bench.attach(f"{be.pid}:2", f"{load.pid}:12", f"{other.pid}:13")

    lower, _ = beside(bench, "two LC, held, priority 12", (20000, *GAP30[1:]), 9, be, alone, how)
    other.wait(30)
    higher = lines(other.log, "final")[0]["service_us"]
    bench.row("two LC, held, priority 13", higher, [], [])
    bench.check("two LC: the higher one as if it were the only one",
                higher["p50"] <= 1.25 * solo["p50"], f"{higher['p50'] / solo['p50']:.2f} times")
    bench.check("two LC: the lower one waits for the higher one at most",
                lower["p50"] <= 1.5 * solo["p50"], f"{lower['p50'] / solo['p50']:.2f} times")
    bench.end(be)
