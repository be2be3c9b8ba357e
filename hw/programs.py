"""Programs of other kinds than the loads: what they do to their contexts, holds have to follow."""

import os
import shutil
import signal
import subprocess
import sys
import time

from harness import measured_rate
from holds import held_by
from service import Service

PROGRAM = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
call("cuInit", 0)
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
def begin():
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
def work(count):
    lengths = []
    for _ in range(count):
        start = time.perf_counter()
        for _ in range(5):
            call("cuMemsetD32Async", memory, 7, ctypes.c_size_t(1 << 18), None)
            call("cuCtxSynchronize")
        lengths.append((time.perf_counter() - start) * 1e6)
        time.sleep(0.002)
    lengths.sort()
    return lengths[len(lengths) // 2]
if sys.argv[-1] != "late":
    begin()
print("ready", flush=True)
while True:
    # Without a buffer: what follows an exec is for the next program.
    word = os.read(0, 32).decode().strip()
    if not word:
        break
    if word == "work":
        print(work(300), flush=True)
    elif word == "begin":
        begin()
        print(0, flush=True)
    elif word == "second":
        another = ctypes.c_void_p()
        call("cuCtxCreate_v2", ctypes.byref(another), 0, 0)
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
        print(work(300), flush=True)
        call("cuCtxDestroy_v2", another)
        call("cuCtxSetCurrent", context)
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    elif word == "fork":
        if os.fork() == 0:
            time.sleep(4)
            os._exit(0)
        print(work(300), flush=True)
    elif word == "exec":
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    elif word == "reset":
        work(5)
        start = time.perf_counter()
        call("cuDevicePrimaryCtxReset_v2", 0)
        length = time.perf_counter() - start
        begin()
        work(5)
        print(length * 1e3, flush=True)
"""


def start(bench, *arguments):
    """Starts the program above; `ask` tells it a word and returns the number it answers."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    bench.children.append(program)
    program.stdout.readline()

    def tell(word):
        program.stdin.write(word + "\n")
        program.stdin.flush()
        return program.stdout.readline()

    program.tell, program.ask = tell, lambda word: float(tell(word))
    return program


def test_hold_resets(bench):
    """Synchronisation of a whole context under a hold, and resets of it."""
    program = start(bench)
    ask = program.ask
    alone, reset_alone = ask("work"), ask("reset")
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50")
    attach = held_by(bench, be, program, True)
    held = ask("work")
    bench.check("synchronising a context does not wait for the hold", held <= 1.6 * alone + 250,
                f"{held:.0f} us held beside BE, {alone:.0f} us alone")
    resets = [ask("reset") for _ in range(5)]
    bench.check("a reset while attached is not slow", max(resets) <= 3 * reset_alone + 100,
                f"{[round(r) for r in resets]} ms, alone {reset_alone:.0f} ms")
    time.sleep(3)
    again = ask("work")
    bench.check("after resets it is held for again", again <= 1.3 * held + 100, f"{again:.0f} us")
    bench.end(attach, signal.SIGINT)
    said = [line for line in open(attach.log) if '"decision"' not in line]
    print("".join(said[-40:]))
    bench.end(be)
    program.stdin.close()
    bench.check("and the program ends well", program.wait(20) == 0, "exit code 0")


def test_programs(bench):
    """Contexts that come late or are several, forks, and another program in the same process."""
    unknown = start(bench, "late")
    unknown.ask("begin")
    unknown.ask("work")
    can_exec = unknown.tell("exec").strip() == "ready"
    unknown.stdin.close()
    program = start(bench, "late")
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50",
                     "--kind", "counter")
    alone = measured_rate(be, 1)
    daemon = Service(bench, "programs")
    time.sleep(1)
    registered = daemon.call("set", str(program.pid), "-p", "12")
    program.ask("begin")
    time.sleep(1.5)
    daemon.call("set", str(program.pid), "-p", "12")
    late = program.ask("work")
    bench.check("a context that comes late is held for", late <= 600,
                f"{late:.0f} us for five launches; {registered.stderr.strip()[-120:]}")
    second = program.ask("second")
    bench.check("so is a second one", second <= 2.5 * late + 300, f"{second:.0f} us, {late:.0f} us")
    if can_exec:
        again = program.tell("exec").strip()
        if again != "ready":
            bench.check("another program in the same process starts", False, repr(again))
            return
        time.sleep(1)
        program.ask("begin")
        time.sleep(1.5)
        daemon.call("set", str(program.pid), "-p", "12")
        after = program.ask("work")
        bench.check("another program in the same process is held for anew",
                    after <= 1.5 * late + 150, f"{after:.0f} us")
    else:
        print("SKIPPED  another program in the same process: CUDA does not start in it either way")
    forked = program.ask("fork")
    bench.check("a fork changes nothing", forked <= 1.5 * late + 150, f"{forked:.0f} us")
    rows = [row for row in daemon.call("ps").stdout.splitlines() if str(program.pid) in row]
    program.send_signal(signal.SIGSTOP)
    stopped = measured_rate(be, 1)
    program.send_signal(signal.SIGCONT)
    bench.check("a stopped program delays no other process", stopped >= 0.97 * alone,
                f"{stopped:.0f}/s of {alone:.0f}; {rows}")
    program.stdin.close()
    bench.check("the program ends well", program.wait(20) == 0, "exit code 0")
    time.sleep(0.5)
    bench.check("BE has its full speed back", measured_rate(be, 1) >= 0.98 * alone, "it has")
    log = daemon.stop()
    bench.rows.append({"name": "daemon log (programs)", "lines": log.splitlines()[-30:]})
    bench.end(be)


STATIC = """
#include <cstdio>
#include <chrono>
#include <thread>
#include <vector>
#include <algorithm>
__global__ void spin(long long clocks) {
    long long begin = clock64();
    while (clock64() - begin < clocks) {}
}
int main() {
    spin<<<1, 1>>>(1000);
    cudaDeviceSynchronize();
    puts("ready"); fflush(stdout);
    getchar();
    std::vector<double> lengths;
    for (int request = 0; request < 500; request++) {
        auto begin = std::chrono::steady_clock::now();
        for (int kernel = 0; kernel < 20; kernel++) {
            spin<<<1, 1>>>(30000);
            cudaDeviceSynchronize();
        }
        std::chrono::duration<double, std::micro> length = std::chrono::steady_clock::now() - begin;
        lengths.push_back(length.count());
        std::this_thread::sleep_for(std::chrono::milliseconds(8));
    }
    std::sort(lengths.begin(), lengths.end());
    printf("%f\\n", lengths[lengths.size() / 2]);
    return cudaGetLastError() != cudaSuccess;
}
"""


def test_static_runtime(bench):
    """A program with the CUDA runtime linked into it: no library to hook, and nothing to hook."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        print("SKIPPED  static runtime: there is no nvcc")
        return
    source, path = (os.path.join(bench.scratch, name) for name in ("lc.cu", "static_lc"))
    with open(source, "w") as out:
        out.write(STATIC)
    made = subprocess.run([nvcc, "-cudart", "static", "-o", path, source], capture_output=True,
                          text=True, timeout=120)
    if made.returncode != 0:
        print(f"SKIPPED  static runtime: {made.stderr.strip()[-200:]}")
        return
    be = bench.start("be", "--seconds", "60", "--kernel-us", "8000", "--report-ms", "50")

    def served(attached):
        program = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        bench.children.append(program)
        program.stdout.readline()
        attach = attached(program)
        length = float(program.communicate("\n", timeout=60)[0])
        if attach:
            bench.end(attach, signal.SIGINT)
        return length

    sliced = served(lambda program: held_by(bench, be, program, False))
    held = served(lambda program: held_by(bench, be, program, True))
    bench.end(be)
    alone = served(lambda program: None)
    # One switch in the beginning, and none in a gap.
    bench.check("a program with a static runtime is held for", held <= alone + 300,
                f"p50 {alone:.0f} us alone, {sliced:.0f} with slices, {held:.0f} held")
