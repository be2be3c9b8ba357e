"""Holding the GPU for one process across its gaps, from outside."""

import json
import os
import signal
import subprocess
import time

from harness import lines, measured_rate
from service import Service

# Period in us, kernels, kernel in us, gap in us.
GAP30 = (10000, 20, 20, 30)
GAP200 = (20000, 20, 20, 200)
SINGLE = (5000, 1, 20, 0)
STREAMS = ("--streams", "7")


def held_by(bench, be, load, held):
    """An attach of both, with or without holds."""
    arguments = [f"{be.pid}:2", f"{load.pid}:12"] + ([] if held else ["--no-hold"])
    return bench.attach(*arguments)


def kept_of_rest(service, case, rate, alone):
    """What part BE keeps of the time that LC, when alone, leaves."""
    return rate / alone / (1 - service["p50"] / case[0])


def beside(bench, name, case, seconds, be, alone, how, more=(), environment=None):
    """One load beside BE. `how` attaches it, if anything does."""
    attached = []
    service, rates = bench.latency(seconds, *case, beside=[be], more=more,
                                   then=lambda load: attached.append(how(load)),
                                   environment=environment)
    for process in attached:
        if hasattr(process, "poll") and process.poll() is None:
            bench.end(process, signal.SIGINT)
    bench.row(name, service, rates, [alone])
    return service, rates[0]


def ratio(bench, name, ours, solo, most):
    """Checks p50 and p99 against those of running alone."""
    ratios = {q: round(ours[q] / solo[q], 3) for q in ("p50", "p99")}
    bench.check(f"{name}: LC at most {most[0]} and {most[1]} times alone",
                ratios["p50"] <= most[0] and ratios["p99"] <= most[1], json.dumps(ratios))


def test_holds(bench):
    """LC with gaps beside a saturating BE: alone, defaults, slices alone, held."""
    cases = (("gap 30", GAP30, 21, ()), ("gap 200", GAP200, 41, ()),
             ("gap 30, 7 streams", GAP30, 21, STREAMS))
    solo = {}
    for name, case, seconds, more in cases:
        solo[name], _ = bench.latency(seconds / 2, *case, more=more)
        bench.row(f"{name}, alone", solo[name], [], [])
    be = bench.start("be", "--seconds", "240", "--kernel-us", "8000", "--report-ms", "50",
                     "--kind", "counter")
    alone = measured_rate(be, 2)
    beside(bench, "gap 30, driver defaults", (100000, *GAP30[1:]), 6, be, alone, lambda load: None)
    for name, case, seconds, more in cases:
        beside(bench, f"{name}, slices alone", case, 5, be, alone,
               lambda load: held_by(bench, be, load, False), more)
        ours, rate = beside(bench, f"{name}, held", case, seconds, be, alone,
                            lambda load: held_by(bench, be, load, True), more)
        ratio(bench, name, ours, solo[name], (1.20, 1.25))
        kept = kept_of_rest(solo[name], case, rate, alone)
        bench.check(f"{name}: BE keeps 92 % of the rest", kept >= 0.92, f"{kept:.1%}")
    after = measured_rate(be, 2)
    bench.check("BE is back at full speed", after >= 0.98 * alone, f"{after / alone:.1%}")
    bench.end(be)
    exact = lines(be.log, "final")[0]["exactness"]
    bench.check("BE's memory is exact", exact["result"] == "pass", json.dumps(exact))


def test_hints(bench):
    """Hints ahead of requests, through the daemon."""
    cases = (("gap 30", GAP30, 22, (1.05, 1.30)), ("one kernel", SINGLE, 12, (1.5, 1.5)))
    solo = {}
    for name, case, seconds, _ in cases:
        solo[name], _ = bench.latency(seconds / 2, *case)
        bench.row(f"{name}, alone", solo[name], [], [])
    be = bench.start("be", "--seconds", "150", "--kernel-us", "8000", "--report-ms", "50")
    alone = measured_rate(be, 2)
    daemon = Service(bench, "hints")
    time.sleep(2)
    for name, case, seconds, most in cases:
        raise_it = lambda load: daemon.call("set", str(load.pid), "-p", "12") and None
        beside(bench, f"{name}, no hint", case, 5, be, alone, raise_it)
        ours, rate = beside(bench, f"{name}, hint 350 us ahead", case, seconds, be, alone,
                            raise_it, ("--hint-us", "350"), daemon.environment)
        ratio(bench, f"{name} with hints", ours, solo[name], most)
        kept = kept_of_rest(solo[name], case, rate, alone)
        print(f"       BE keeps {kept:.1%} of the rest")
    log = daemon.stop()
    bench.rows.append({"name": "daemon log (hints)", "lines": log.splitlines()[-20:]})
    print(log[-800:])
    bench.end(be)


def back_after(be, moment, longest):
    """Milliseconds from a moment until the end of a window in which BE got on."""
    time.sleep(longest)
    windows = [w for w in lines(be.log, "rate") if w["from_ns"] > moment and w["count"] > 0]
    return (windows[0]["until_ns"] - moment) / 1e6 if windows else float("inf")


def test_hold_ends(bench):
    """Whoever holds, or is held for, is killed or stopped: the others go on."""
    be = bench.start("be", "--seconds", "120", "--kernel-us", "500", "--report-ms", "1")
    # Always in a request, so always held.
    always = ("lc", "--seconds", "100", "--every-us", "1150", "--kernels", "20", "--kernel-us",
              "20", "--gap-us", "30")
    alone = measured_rate(be, 1)
    late = {"LC": [], "holder": []}
    for _ in range(3):
        lc = bench.start(*always)
        attach = held_by(bench, be, lc, True)
        starved = measured_rate(be, 1)
        moment = time.monotonic_ns()
        lc.kill()
        late["LC"].append(back_after(be, moment, 0.4))
        bench.end(attach, signal.SIGINT)
        lc.wait(10)
        lc = bench.start(*always)
        attach = held_by(bench, be, lc, True)
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
    attach = held_by(bench, be, lc, True)
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
    """What it costs to watch a program that is at work all the time."""
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50")
    for name, streams, most in (("one stream", 1, 0.10), ("seven streams", 7, 0.20)):
        lc = bench.start("lc", "--seconds", "40", "--every-us", "1500", "--kernels", "20",
                         "--kernel-us", "20", "--gap-us", "30", "--streams", str(streams))
        attach = held_by(bench, be, lc, True)
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
    """A thousand times attached and detached, nothing left: four programs in each attach."""
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
        # Whose channel was not there yet when the time was over has no such line.
        attaches += 1
        cycles += len(said)
        held += sum(line["placed"] > 0 for line in said)
        if done.returncode != 0 or '"problem"' in done.stdout or done.stderr:
            problems.add((done.stderr or done.stdout).strip()[-200:])
    took = time.monotonic() - begin
    bench.check("1,000 hold channels added and taken out",
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
    """Two important processes with gaps: the scheduler decides whom the GPU is held for."""
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


def test_launch_path(bench):
    """Launches per second of a program that is held for, against one that nobody knows of."""
    idle = bench.start("lc", "--seconds", "90", "--every-us", "50000", "--kernels", "1")
    load = bench.start("be", "--seconds", "90", "--kernel-us", "4", "--depth", "64",
                       "--report-ms", "100")
    rates = {True: [], False: []}
    for _ in range(12):
        rates[False].append(measured_rate(load, 2))
        attach = bench.attach(f"{load.pid}:12", f"{idle.pid}:2")
        rates[True].append(measured_rate(load, 2))
        bench.end(attach, signal.SIGINT)
    mean = {known: sum(found) / len(found) for known, found in rates.items()}
    change = mean[True] / mean[False]
    pairs = [round(ours / alone, 3) for ours, alone in zip(rates[True], rates[False])]
    bench.check("launches per second are the same within 1 %", abs(change - 1) <= 0.01,
                f"{change:.4f} of {mean[False]:.0f}/s; {pairs}")
    bench.end(load)
    bench.end(idle)
