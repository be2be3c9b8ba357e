"""Several processes that want all of a GPU."""

import signal




def test_turns(bench):
    """Two best-effort processes take turns; without that, neither gets on."""
    first, second = bench.alike(2, "--seconds", "60", "--kernel-us", "8000", "--report-ms", "100")
    alone = bench.rates((first, second), 2)
    attach = bench.attach(f"{first.pid}:2", f"{second.pid}:2")
    service, rates = bench.latency(6, 5000, 1, 55, 0, beside=[first, second])
    bench.row("one kernel, two BE attached", service, rates, alone)
    bench.check("both get on", min(r / a for r, a in zip(rates, alone)) >= 0.7,
                ", ".join(f"{r / a:.0%}" for r, a in zip(rates, alone)))
    refused = bench.gpreempt("attach", str(second.pid), "-p", "2")
    bench.check("a second attach is refused", refused.returncode == 2, refused.stderr.strip())
    bench.end(attach, signal.SIGINT)
    slices = [bench.ps()[be.pid]["slices_us"] for be in (first, second)]
    bench.check("both slices are restored", slices[0] == slices[1], f"{slices}")
    for be in (first, second):
        bench.end(be)


def test_single_kernels(bench):
    """Two that wait for each kernel: their rings look empty while a kernel runs."""
    arguments = ("--seconds", "40", "--kernel-us", "20000", "--depth", "1", "--report-ms", "100")
    loads = bench.alike(2, *arguments)
    before = bench.rates(loads, 3)
    attach = bench.attach(*(f"{load.pid}:2" for load in loads))
    kept = [during / alone for during, alone in zip(bench.rates(loads, 6), before)]
    bench.check("one kernel at a time: both get on", min(kept) >= 0.7,
                ", ".join(f"{part:.0%}" for part in kept))
    bench.end(attach, signal.SIGINT)
    for load in loads:
        bench.end(load)


def test_idle_neighbour(bench):
    """An attached process that has nothing to do costs its neighbour little."""
    busy = bench.start("be", "--seconds", "40", "--kernel-us", "8000", "--report-ms", "100")
    idle = [bench.start("lc", "--seconds", "40", "--kernels", "1", "--every-us", "30000000")
            for _ in range(3)]
    before = bench.rates([busy], 3)[0]
    attach = bench.attach(f"{busy.pid}:2", *(f"{load.pid}:2" for load in idle))
    during = bench.rates([busy], 5)[0]
    bench.check("three idle ones attached beside a busy one", during >= 0.9 * before,
                f"{during / before:.0%}")
    bench.end(attach, signal.SIGINT)
    for load in [busy, *idle]:
        bench.end(load)


def test_three_classes(bench):
    """Three that want everything, each of another class, and three that are equal."""
    loads = bench.alike(3, "--seconds", "60", "--kernel-us", "2000", "--report-ms", "100")
    whole = sum(bench.rates(loads, 3))
    attach = bench.attach(*(f"{load.pid}:{level}" for load, level in zip(loads, (14, 9, 2))),
                          "--min-share", "10")
    shares = [each / whole for each in bench.rates(loads, 12)]
    bench.check("14, 9 and 2 with at least 10 %: the first has most, all get on",
                shares[0] >= 0.55 and min(shares[1:]) >= 0.04,
                ", ".join(f"{share:.1%}" for share in shares))
    bench.end(attach, signal.SIGINT)
    attach = bench.attach(*(f"{load.pid}:2:{weight}" for load, weight in zip(loads, (4, 2, 1))),
                          "--policy", "fair")
    shares = [each / whole for each in bench.rates(loads, 14)]
    wanted = (4 / 7, 2 / 7, 1 / 7)
    bench.check("fair with weights 4, 2 and 1",
                all(abs(share - want) < 0.06 for share, want in zip(shares, wanted)),
                ", ".join(f"{share:.1%}" for share in shares))
    bench.end(attach, signal.SIGINT)
    for load in loads:
        bench.end(load)
