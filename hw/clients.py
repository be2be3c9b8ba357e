"""RM clients: processes are found however many clients have come and gone."""

import fcntl
import signal
import struct
import time

from harness import lines

# From NVIDIA's public headers: `NV_ESC_RM_ALLOC` with 48 bytes, `NV_ESC_RM_FREE` with 16.
ALLOC, FREE = 0xc030462b, 0xc0104629
CLIENT_CLASS = 0x41
# The driver numbers clients with a counter that wraps here.
NUMBERS = 0x100000


def new_client(node):
    block = bytearray(48)
    struct.pack_into("<4I", block, 0, 0, 0, 0, CLIENT_CLASS)
    fcntl.ioctl(node, ALLOC, block)
    handle, = struct.unpack_from("<I", block, 8)
    status, = struct.unpack_from("<I", block, 40)
    assert status == 0, hex(status)
    return handle


def free_client(node, handle):
    fcntl.ioctl(node, FREE, bytearray(struct.pack("<4I", handle, 0, handle, 0)))


def come_and_go(count):
    """So many clients, one after the other. Returns the number of the last one."""
    with open("/dev/nvidiactl", "r+b", buffering=0) as node:
        for _ in range(count):
            handle = new_client(node)
            free_client(node, handle)
    return handle & (NUMBERS - 1)


def attach_and_count(bench, be, lc):
    """How many holds an attach of both places in a second and a half."""
    attach = bench.attach(f"{be.pid}:2", f"{lc.pid}:12")
    time.sleep(1)
    bench.end(attach, signal.SIGINT)
    return sum(line["placed"] for line in lines(attach.log, "holds"))


def test_many_clients(bench):
    """Processes from before and after thousands of clients, and after the counter wrapped."""
    lc_arguments = ("lc", "--seconds", "80", "--every-us", "10000", "--kernels", "20",
                    "--kernel-us", "20", "--gap-us", "30")
    old = bench.start(*lc_arguments)
    for count, what in ((30_000, "30,000 clients"), (NUMBERS, "a whole round of the counter")):
        begin = time.monotonic()
        number = come_and_go(count)
        be = bench.start("be", "--seconds", "60", "--kernel-us", "8000")
        made_s = time.monotonic() - begin
        begin = time.monotonic()
        seen = bench.ps()
        took_ms = (time.monotonic() - begin) * 1000
        bench.rows.append({"name": f"ps after {what}", "ms": took_ms, "last_client": number})
        bench.check(f"after {what}: ps finds both processes",
                    old.pid in seen and be.pid in seen,
                    f"client {number:#x} after {made_s:.0f} s, ps took {took_ms:.0f} ms")
        placed = attach_and_count(bench, be, old)
        bench.check(f"after {what}: attach places holds", placed > 50, f"{placed} holds")
        bench.end(be)
    bench.end(old)
