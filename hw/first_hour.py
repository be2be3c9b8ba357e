"""What a new user meets: one command protects a service, and the numbers shown are true."""

import json
import time

from service import Service

# Twenty kernels of 20 us with gaps of 30 us, every 10 ms.
GAPS = (10000, 20, 20, 30)
# One kernel of 2 ms every 10 ms: a fifth of the GPU.
FIFTH = (10000, 1, 2000, 0)


def test_one_command(bench):
    """`gpreempt run -p 12` beside a training load that nothing names, without a configuration."""
    service, _ = bench.latency(6, *GAPS)
    bench.row("requests with gaps, alone", service, [], [])
    training = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "100")
    before = bench.ps()[training.pid]["slices_us"]
    rate_before = bench.rates([training], 3)
    default, rates = bench.latency(6, *GAPS, beside=[training])
    bench.row("the same by the driver's default", default, rates, rate_before)
    daemon = Service(bench, "one-command", "")
    time.sleep(1)
    run = (bench.cli, "run", "-p", "12")
    protected, rates = bench.latency(8, *GAPS, beside=[training], before=run,
                                     environment=daemon.environment)
    bench.row("the same started by gpreempt run -p 12", protected, rates, rate_before)
    ratio = protected["p50"] / service["p50"]
    bench.check("one command: p50 within 1.2 of alone", ratio <= 1.2, f"{ratio:.2f} times")
    # Of each 10 ms, requests take what they take alone.
    left = 1 - service["p50"] / GAPS[0]
    kept = rates[0] / rate_before[0] / left
    bench.check("the training keeps 90 % of the rest", kept >= 0.9, f"{kept:.0%}")
    after = bench.ps()[training.pid]["slices_us"]
    bench.check("its slices are as before", after == before, f"{after}, before {before}")
    rate_after = bench.rates([training], 3)
    bench.check("its rate is as before", rate_after[0] >= 0.95 * rate_before[0],
                f"{rate_after[0]:.1f} kernels/s, before {rate_before[0]:.1f}")
    log = daemon.stop()
    bench.rows.append({"name": "log of the daemon", "lines": log.splitlines()[-20:]})
    bench.end(training)


def snapshot(bench, daemon):
    """What `gpreempt top` shows."""
    out = daemon.call("top", "--once", "--json").stdout
    return json.loads(out.strip().splitlines()[-1])


def shares(bench, daemon, loads):
    """The shares of processes and of the GPU, averaged over some seconds, in percent."""
    sums, count = [0.0] * (len(loads) + 1), 0
    for _ in range(5):
        time.sleep(1)
        shown = snapshot(bench, daemon)
        tasks = {task["pid"]: task for task in shown["tasks"]}
        found = [tasks.get(load.pid, {}).get("share") for load in loads]
        found.append(shown["devices"][0]["busy_share"])
        if None in found:
            continue
        count += 1
        sums = [a + b for a, b in zip(sums, found)]
    return [100 * value / max(count, 1) for value in sums], snapshot(bench, daemon)


def test_true_numbers(bench):
    """Shares of known loads, and what NVIDIA's library tells."""
    daemon = Service(bench, "numbers")
    fifth = bench.start("lc", "--seconds", "40", "--every-us", str(FIFTH[0]), "--kernels", "1",
                        "--kernel-us", str(FIFTH[2]), "--gap-us", "0",
                        environment={**daemon.environment, "GPREEMPT_PRIORITY": "12"})
    time.sleep(2)
    (alone, busy), shown = shares(bench, daemon, [fifth])
    bench.check("a fifth alone", abs(alone - 20) <= 5, f"{alone:.1f} %, GPU {busy:.1f} %")
    gpu = shown["devices"][0]
    known = {name: gpu[name] for name in
             ("name", "memory_used_kib", "memory_total_kib", "power_mw", "temperature_c")}
    bench.check("the GPU has name, memory, power, temperature", None not in known.values(),
                json.dumps(known))
    task = next(task for task in shown["tasks"] if task["pid"] == fifth.pid)
    bench.check("the process has memory", (task["gpu_memory_kib"] or 0) > 100 * 1024,
                f"{task['gpu_memory_kib']} KiB")
    training = bench.start("be", "--seconds", "40", "--kernel-us", "8000", "--report-ms", "100",
                           environment=daemon.environment)
    time.sleep(2)
    (high, low, busy), _ = shares(bench, daemon, [fifth, training])
    seen = f"{high:.1f} and {low:.1f} %, GPU {busy:.1f} %"
    bench.check("a fifth beside a load that fills the GPU", abs(high - 20) <= 5, seen)
    bench.check("the rest for that load", abs(low - 80) <= 5, seen)
    bench.check("the GPU is busy", busy >= 95, seen)
    bench.rows.append({"name": "shares", "fifth_alone": alone, "fifth": high, "rest": low,
                       "gpu": busy, "shown": known})
    bench.end(fifth)
    bench.end(training)
    daemon.stop()
