"""Pretends to be gpreempt-load, gpreempt attach and an MPS server, for tests without a GPU."""

import json
import os
import signal
import sys
import time

words = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))


def option(name):
    return words[words.index(name) + 1] if name in words else None


def say(line):
    print(json.dumps(line), flush=True)


def wait():
    path = option("--wait-file")
    while path and not os.path.exists(path) and not stopped:
        time.sleep(0.002)


def lc():
    say({"line": "ready", "load": "lc", "kernel": {"iterations": 7}})
    wait()
    if stopped:
        return
    begin = time.monotonic_ns()
    end = begin + int(option("--seconds")) * 1_000_000_000
    if option("--raw"):
        with open(option("--raw"), "w") as out:
            out.write("due_ns,begin_ns,end_ns,served\n")
            for due in range(begin, end, 10_000_000):
                out.write(f"{due},{due + 1000},{due + 1_001_000},1\n")
    if option("--probe"):
        with open(option("--probe"), "w") as out:
            out.write(f"begin_ns,first_ns,last_ns\n{begin},{begin + 185},{begin + 205}\n")
        with open(option("--probe").replace("beats-0", "beats-1"), "w") as out:
            out.write(f"off_ns,back_ns\n{begin + 134},{begin + 351}\n")
    while time.monotonic_ns() < end and not stopped:
        time.sleep(0.005)
    say({"line": "final", "from_ns": begin, "until_ns": end})


def be():
    say({"line": "ready", "load": "be", "kernel": {"iterations": 9}})
    wait()
    since = time.monotonic_ns()
    while not stopped:
        time.sleep(0.02)
        now = time.monotonic_ns()
        done = (now - since) // 1_000_000
        say({"line": "rate", "from_ns": since, "until_ns": now, "count": done})
        since = now
    say({"line": "final", "unit": "kernels", "exactness": {"result": "pass"}})


def attach():
    for word in words[1:]:
        if word[0].isdigit() and ":" in word:
            say({"line": "attached", "pid": int(word.split(":")[0])})
    while not stopped:
        time.sleep(0.01)


{"lc": lc, "be": be, "attach": attach}[words[0]]()
