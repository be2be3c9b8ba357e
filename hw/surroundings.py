"""What surrounds a process: containers, users, contexts that come and go, MPS."""

import json
import os
import signal
import subprocess
import sys
import time

from harness import measured_rate


def test_listing(bench):
    """How long it takes to see eight processes."""
    loads = [bench.start("be", "--seconds", "40", "--kernel-us", "1000", "--iterations", "1000")
             for _ in range(8)]
    begin = time.monotonic()
    seen = bench.ps()
    took_ms = (time.monotonic() - begin) * 1000
    bench.check("ps of 8 processes", len(seen) >= 8 and took_ms < 100, f"{took_ms:.0f} ms")
    bench.check("less than 20 ms for each of them", took_ms / 8 < 20, f"{took_ms / 8:.1f} ms")
    for load in loads:
        bench.end(load)


def test_observe(bench):
    """What is seen from outside is what the program does."""
    load = bench.start("lc", "--seconds", "12", "--kernels", "1", "--kernel-us", "55",
                       "--every-us", "5000", "--gap-us", "0")
    time.sleep(0.5)
    for way in ([], ["--by-memory"]):
        seen = json.loads(bench.gpreempt("observe", str(load.pid), "--json", *way).stdout)
        context = seen["contexts"][0]
        bursts = context["summary"]["bursts_per_s"]
        bench.check(f"observe sees 200 requests a second ({context['way']})",
                    190 <= bursts <= 210,
                    f"{bursts:.1f}/s, a look takes {context['look_us']:.1f} us")
    bench.end(load)


CONTEXTS = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
def work():
    memory = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    for _ in range(100):
        call("cuMemsetD32_v2", memory, 7, ctypes.c_size_t(1 << 18))
    call("cuCtxSynchronize")
def primary():
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    work()
call("cuInit", 0)
primary()
print("one", flush=True); sys.stdin.readline()
second = ctypes.c_void_p()
call("cuCtxCreate_v2", ctypes.byref(second), 0, 0)
work()
print("two", flush=True); sys.stdin.readline()
call("cuCtxDestroy_v2", second)
call("cuDevicePrimaryCtxReset_v2", 0)
primary()
print("three", flush=True); sys.stdin.readline()
"""


def test_later_contexts(bench):
    """Contexts that appear after the attach get the class of their process."""
    program = subprocess.Popen([sys.executable, "-c", CONTEXTS], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    bench.children.append(program)
    slices = lambda: bench.ps()[program.pid]["slices_us"]

    def go_on():
        program.stdin.write("\n")
        program.stdin.flush()
        return program.stdout.readline().strip()

    def eventually(wanted):
        begin = time.monotonic()
        while slices() != wanted and time.monotonic() < begin + 8:
            time.sleep(0.05)
        return slices() == wanted, f"{slices()} after {time.monotonic() - begin:.2f} s"

    program.stdout.readline()
    original = slices()
    attach = bench.attach(f"{program.pid}:2")
    bench.check("the first context has its class", *eventually([1]))
    go_on()
    bench.check("a second context gets its class", *eventually([1, 1]))
    go_on()
    bench.check("a context after a reset gets its class", *eventually([1]))
    bench.end(attach, signal.SIGINT)
    bench.check("its slice is restored", slices() == original, f"{slices()}")
    go_on()
    program.wait(20)


def test_containers(bench):
    """A process in other namespaces, seen and stopped from the host."""
    wrapper = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
    known = set(bench.ps())
    load = bench.start("be", "--seconds", "20", "--kernel-us", "1000", "--report-ms", "100",
                       before=wrapper)
    pid = next(iter(set(bench.ps()) - known))
    stop = subprocess.Popen([bench.cli, "suspend", str(pid), "--for", "2s"],
                            stdout=subprocess.DEVNULL)
    bench.children.append(stop)
    time.sleep(0.5)
    bench.check("a process in other namespaces is stopped from outside",
                measured_rate(load, 1) == 0, f"0/s for a second, process {pid} out here")
    stop.wait(10)
    attach = bench.attach(f"{pid}:3")
    bench.check("and attached", bench.ps()[pid]["slices_us"] == [1], "slice 1 us")
    bench.end(attach, signal.SIGINT)
    bench.end(load)


def test_users(bench):
    """Own processes without root; those of others are refused with a sentence."""
    folder = os.path.join(bench.scratch, "runtime")
    os.mkdir(folder)
    os.chmod(bench.scratch, 0o755)
    os.chown(folder, 65534, 65534)
    other_user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "HOME": folder}
    theirs = bench.start("be", "--seconds", "30", "--kernel-us", "1000", "--report-ms", "100",
                         before=other_user, environment=environment)
    ours = bench.start("be", "--seconds", "30", "--kernel-us", "1000")

    def as_nobody(*arguments):
        return subprocess.run([*other_user, bench.cli, *arguments], env=environment, text=True,
                              capture_output=True, timeout=30)

    attached = as_nobody("attach", str(theirs.pid), "-p", "2", "--for", "1s")
    bench.check("an ordinary user attaches an own process", attached.returncode == 0,
                (attached.stdout + attached.stderr).strip())
    stopped = as_nobody("suspend", str(theirs.pid), "--for", "100ms")
    bench.check("and suspends it", stopped.returncode == 0,
                (stopped.stdout + stopped.stderr).strip())
    refused = as_nobody("attach", str(ours.pid), "-p", "2")
    bench.check("but not those of another user", refused.returncode == 2, refused.stderr.strip())
    for load in (theirs, ours):
        bench.end(load)


def test_refusals(bench):
    """What cannot be done is refused with a sentence, and nothing is changed."""
    be = bench.start("be", "--seconds", "30", "--kernel-us", "1000")
    other = subprocess.Popen(["sleep", "60"])
    zombie = bench.start("be", "--seconds", "30", "--kernel-us", "1000")
    bench.children.append(other)
    zombie.kill()
    time.sleep(1)
    slices = bench.ps()[be.pid]["slices_us"]
    cases = (("a process without a GPU", other.pid, "does not use"),
             ("a process that is not there", 4194303, "there is no process"),
             ("a zombie", zombie.pid, "has ended"))
    for name, pid, sentence in cases:
        refused = bench.gpreempt("attach", f"{be.pid}:2", f"{pid}:2")
        bench.check(f"{name} is refused", refused.returncode == 2 and sentence in refused.stderr,
                    refused.stderr.strip())
    untouched = bench.ps()[be.pid]
    bench.check("and its neighbour in the command is untouched",
                untouched["slices_us"] == slices and untouched["state"] == "untouched",
                f"{untouched['slices_us']}")
    bench.end(be)


def test_memory(bench):
    """The memory of an attached process that is killed is free at once."""
    used = lambda: int(subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True, text=True).stdout.split()[0])
    first = bench.start("be", "--seconds", "30", "--kernel-us", "8000")
    before = used()
    second = bench.start("be", "--seconds", "30", "--kernel-us", "8000")
    both = used()
    attach = bench.attach(f"{first.pid}:2", f"{second.pid}:2")
    time.sleep(1)
    second.kill()
    second.wait(10)
    time.sleep(1)
    after = used()
    bench.check("memory of a killed attached process is free", after <= before + 4,
                f"{before} MiB with one, {both} with two, {after} when one was killed")
    bench.end(attach, signal.SIGINT)
    bench.end(first)


def test_mps(bench):
    """What an MPS server changes."""
    folder = os.path.join(bench.scratch, "mps")
    os.mkdir(folder)
    places = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    environment = {**os.environ, **{place: folder for place in places}}
    control = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment)
    if control.returncode != 0:
        print("SKIPPED  MPS: no server could be started")
        return
    try:
        loads = [bench.start("be", "--seconds", "20", "--kernel-us", "1000", "--report-ms", "100",
                             environment=environment) for _ in range(2)]
        before = bench.rates(loads, 2)
        stop = subprocess.Popen([bench.cli, "suspend", str(loads[0].pid), "--for", "3s"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        bench.children.append(stop)
        time.sleep(0.5)
        during = bench.rates(loads, 2)
        stop.wait(20)
        time.sleep(0.3)
        after = bench.rates(loads, 2)
        detail = [[round(each) for each in rates] for rates in (before, during, after)]
        bench.check("one of two MPS clients is stopped and resumed",
                    during[0] == 0 and after[0] > 0.8 * before[0], f"rates {detail}")
        findings = bench.gpreempt("doctor").stdout
        bench.check("doctor names the MPS server", "MPS" in findings, "it does")
        for load in loads:
            bench.end(load)
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment)
