"""Pretends to be our programs and an MPS server, for tests without a GPU."""

import json
import os
import queue
import signal
import sys
import threading
import time

words = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))


def option(name):
    return words[words.index(name) + 1] if name in words else None


def say(line):
    print(json.dumps(line), flush=True)


class Orders:
    """What stdin says; its end ends everything."""

    def __init__(self):
        self.queue, self.ended = queue.Queue(), 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "end":
                self.ended = order["round"]
            else:
                self.queue.put(order)
        stopped.append(1)

    def next(self):
        while not stopped:
            try:
                return self.queue.get(timeout=0.005)
            except queue.Empty:
                pass
        return None


def rounds(kind, iterations, perform):
    say({"line": "ready", "load": kind, "kernel": {"iterations": iterations}})
    orders = Orders()
    while True:
        prepare = orders.next()
        if prepare is None:
            return
        say({"line": "prepared", "round": prepare["round"]})
        begin = orders.next()
        if begin is None:
            return
        assert begin["round"] == prepare["round"], (begin, prepare)
        while time.monotonic_ns() < begin["at_ns"]:
            time.sleep(0.001)
        perform(prepare, begin["at_ns"], lambda: stopped or orders.ended >= prepare["round"])


def extra():
    """What a test wants the last line of requests to say besides."""
    path = os.path.join(os.path.dirname(option("--raw")), "..", "extra.json")
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def requests(order, begin, is_over):
    if os.environ.get("GPREEMPT_TEST_FOLDER"):
        open(os.path.join(os.environ["GPREEMPT_TEST_FOLDER"], "begun"), "w").close()
    end = begin + order["seconds"] * 1_000_000_000
    with open(option("--raw"), "w") as out:
        out.write("due_ns,begin_ns,end_ns,served\n")
        for due in range(begin, end, 10_000_000):
            out.write(f"{due},{due + 1000},{due + 1_001_000},1\n")
    if option("--probe"):
        with open(option("--probe"), "w") as out:
            out.write(f"begin_ns,first_ns,last_ns\n{begin},{begin + 185},{begin + 205}\n")
        with open(option("--probe").replace("beats-0", "beats-1"), "w") as out:
            out.write(f"off_ns,back_ns\n{begin + 134},{begin + 351}\n")
    while time.monotonic_ns() < end and not is_over():
        time.sleep(0.005)
    say({"line": "final", "round": order["round"], "from_ns": begin, "until_ns": end,
         **extra()})


def work(order, begin, is_over):
    if os.path.exists(os.path.join(os.path.dirname(option("--beats")), "..", "die")):
        sys.exit("this one was told to die")
    since = begin
    while not is_over():
        time.sleep(0.02)
        now = time.monotonic_ns()
        done = (now - since) // 1_000_000
        say({"line": "rate", "from_ns": since, "until_ns": now, "count": done})
        since = now
    say({"line": "final", "round": order["round"], "unit": "kernels",
         "exactness": {"result": "pass"}})


def attach():
    for word in words[1:]:
        if word[0].isdigit() and ":" in word:
            say({"line": "attached", "pid": int(word.split(":")[0])})
    while not stopped:
        time.sleep(0.01)
    say({"line": "holds", "pid": 1, "placed": 5, "expired": 0, "longest_us": 9})


def wait_with(path):
    """A server that listens when a file is there."""
    open(path, "w").close()
    while not stopped and os.path.exists(path):
        time.sleep(0.01)


if words and words[0] == "lc":
    rounds("lc", 7, requests)
elif words and words[0] == "be":
    rounds("be", 9, work)
elif words and words[0] == "attach":
    attach()
elif words and words[0] == "set":
    pass
elif not words and sys.stdin.readline() == "quit\n":
    os.remove(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
elif option("--socket"):
    # A state that is there already is that of another daemon.
    os.makedirs(os.environ["GPREEMPT_STATE"])
    wait_with(option("--socket"))
elif words == ["-f"]:
    wait_with(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
else:
    sys.exit(f"cannot pretend {words}")
