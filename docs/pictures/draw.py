#!/usr/bin/env python3
"""Draws the pictures of the documents, each for light and for dark pages.

    python3 docs/pictures/draw.py [--programs FOLDER] [PICTURE...]

`timeline` simulates one request with `gpreempt sim`; `crates` asks `cargo metadata`; `top` and
`live` start an emulated GPU with two loads and gpreemptd (`live` needs chromium). `preemption` has
no data. Only Python's standard library is used.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import crates
import preemption
import terminal
from svg import SCHEMES, Picture

ROOT = Path(__file__).resolve().parents[2]

# The workload of `gpreempt demo` (a launch takes 4 of the 18 us of a kernel there). Without
# `[scheduler]` the time slices of the hardware decide alone.
SCENARIO = """
name = "one request"
device = "h200"
duration_ms = 700
SCHEDULER
[[kernel]]
name = "layer"
program = "counter"
us = 14
groups = 132

[[kernel]]
name = "gradient"
program = "counter"
us = 7930
groups = 264

[[task]]
name = "online"
priority = 12
arrivals = { every_us = 61165 }
request = [{ kernel = "layer", count = 20, cpu_us = 30 }]

[[task]]
name = "offline"
priority = 2
arrivals = { back_to_back = 4 }
request = [{ kernel = "gradient", count = 1, sync = false }]
"""
EVERY_MS = 61.165
# By the tenth request the scheduler has seen enough gaps to choose how long it holds.
REQUEST = 10
SCHEDULER = '\n[scheduler]\npolicy = "strict"\ninterval_us = 5000\n'
ROWS = ("online", "offline")


def simulate(programs, scheduler):
    """The spans of both tasks in ms: task, what, from, to."""
    with tempfile.TemporaryDirectory() as folder:
        scenario, trace = Path(folder, "request.toml"), Path(folder, "trace.json")
        scenario.write_text(SCENARIO.replace("SCHEDULER", scheduler), encoding="utf-8")
        command = [programs / "gpreempt", "sim", scenario, "--trace", trace]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        events = json.loads(trace.read_text(encoding="utf-8"))
    events = events if isinstance(events, list) else events["traceEvents"]
    return [
        (ROWS[event["tid"] - 1], event["name"], event["ts"] / 1e3,
         (event["ts"] + event["dur"]) / 1e3)
        for event in events if event["ph"] == "X"
    ]


def find_request(spans):
    """When one of the requests arrived, and when its last kernel ended, in ms."""
    arrival, following = REQUEST * EVERY_MS, (REQUEST + 1) * EVERY_MS
    ends = [until for task, what, _, until in spans if (task, what) == ("online", "run")]
    return arrival, max(end for end in ends if end < following)


class Lanes:
    """Both tasks against time, from `start` ms on."""

    def __init__(self, picture, top, start, length):
        self.picture, self.top, self.start, self.length = picture, top, start, length
        self.left, self.right = 92, picture.width - 24

    def x(self, at):
        part = (at - self.start) / self.length
        return self.left + min(max(part, 0), 1) * (self.right - self.left)

    def draw(self, spans, request):
        begin, end = request
        colours = {("online", "run"): "online", ("online", "hold"): "hold",
                   ("online", "wait"): "wait", ("offline", "run"): "offline",
                   ("offline", "save"): "switch", ("offline", "restore"): "switch",
                   ("online", "restore"): "switch", ("online", "save"): "switch"}
        for row, name in enumerate(ROWS):
            y = self.top + row * 26
            self.picture.text(self.left - 10, y + 14, name, "soft", 12, "end")
            self.picture.rect(self.left, y, self.right - self.left, 20, "box")
        self.picture.bars(
            [(self.x(begin), self.top, self.x(end) - self.x(begin), 20)], "wait")
        groups = {}
        for task, what, since, until in spans:
            if until <= self.start or since >= self.start + self.length:
                continue
            colour = colours.get((task, what))
            if colour is None or colour == "wait":
                continue
            x = self.x(since)
            bar = (x, self.top + 26 * ROWS.index(task), self.x(until) - x, 20)
            groups.setdefault(colour, []).append(bar)
        for colour in ("switch", "hold", "offline", "online"):
            self.picture.bars(groups.get(colour, []), colour)
        for at, label in ((begin, "request"), (end, "answer")):
            x = self.x(at)
            self.picture.line([(x, self.top - 6), (x, self.top + 46)], "ink")
            if self.x(end) - self.x(begin) > 110:
                anchor = "start" if label == "request" else "end"
                shift = 3 if anchor == "start" else -3
                self.picture.text(x + shift, self.top - 5, label, "soft", 11, anchor)

    def axis(self, step, unit="ms"):
        y = self.top + 54
        self.picture.line([(self.left, y), (self.right, y)], "line")
        at = 0
        while at <= self.length + 1e-9:
            x = self.x(self.start + at)
            self.picture.line([(x, y), (x, y + 4)], "line")
            label = f"{at:g} {unit}" if at == 0 else f"{at:g}"
            self.picture.text(x, y + 16, label, "soft", 11, "middle")
            at += step


def timeline(arguments):
    default = simulate(arguments.programs, "")
    ours = simulate(arguments.programs, SCHEDULER)
    slow, fast = find_request(default), find_request(ours)
    took = [f"{end - begin:.2g} ms" for begin, end in (slow, fast)]
    title = f"One request beside training, simulated: {took[0]} by default, {took[1]} with gpreempt"
    for scheme in SCHEMES:
        picture = Picture(860, 372, title, scheme)
        picture.heading(24, 30, [("Driver default: ", "ink"), (f"{took[0]}", "bad"),
                                 (" from request to answer", "ink")])
        lanes = Lanes(picture, 56, slow[0] - 1, 49)
        lanes.draw(default, slow)
        picture.heading(24, 134, [("With gpreempt: ", "ink"), (f"{took[1]}", "good")])
        lanes = Lanes(picture, 152, fast[0] - 1, 49)
        lanes.draw(ours, fast)
        lanes.axis(7)
        zoom = Lanes(picture, 270, fast[0] - 0.2, 2.1)
        ends = [lanes.x(zoom.start), lanes.x(zoom.start + zoom.length)]
        for near, far in zip(ends, (zoom.left, zoom.right)):
            picture.line([(near, 200), (far, 256)], "line", dashed=True)
        picture.heading(24, 252, [("The same request, enlarged", "ink")])
        zoom.draw(ours, fast)
        zoom.axis(0.3)
        legend(picture, 358)
        picture.write(f"timeline-{scheme}.svg")


def legend(picture, y):
    x = 24
    for colour, text in (
        ("online", "kernel of the request"), ("hold", "GPU reserved between its kernels"),
        ("wait", "request waits"), ("offline", "training"), ("switch", "context switch"),
    ):
        picture.rect(x, y - 9, 11, 11, colour)
        picture.text(x + 16, y, text, "soft", 11)
        x += 34 + 5.7 * len(text)
    picture.text(picture.width - 24, y, "simulated H200", "soft", 11, "end")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pictures = {"timeline": timeline, "crates": crates.draw, "preemption": preemption.draw,
                "top": terminal.draw_top, "live": terminal.draw_live}
    parser.add_argument("pictures", metavar="PICTURE", nargs="*",
                        help=f"all without one; {', '.join(pictures)}")
    parser.add_argument("--programs", type=Path, default=ROOT / "target" / "debug",
                        help="the folder of the programs (default: target/debug)")
    arguments = parser.parse_args()
    arguments.programs = arguments.programs.resolve()
    unknown = [name for name in arguments.pictures if name not in pictures]
    if unknown:
        parser.error(f"no such picture: {', '.join(unknown)}; there are {', '.join(pictures)}")
    for name in arguments.pictures or pictures:
        pictures[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
