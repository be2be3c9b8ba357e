"""Draws what `gpreempt top` and the live page show while a training and a server share a GPU.

Both run on an emulated GPU. The pictures need the programs in release mode; `live` needs chromium.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from svg import FOLDER, SCHEMES, Picture

ROW = 17
COLUMN = 7.25
# `gpreempt top` and the page show the last seconds, so the loads run for a while first.
SETTLE = 8
# What chromium calls the schemes.
CHROMIUM = {"dark": 0, "light": 1}


@contextlib.contextmanager
def machine(programs):
    """An emulated GPU with a training and a server under gpreemptd; yields the environment."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = Path(folder)
        socket = folder / "gpu.sock"
        (folder / "config.toml").write_text("", encoding="utf-8")
        environment = {**os.environ, "GPREEMPT_STATE": str(folder / "state"),
                       "GPREEMPT_SOCKET": str(folder / "gpreemptd.sock")}

        def start(*command, wait=1.0):
            process = subprocess.Popen([str(word) for word in command], env=environment,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            time.sleep(wait)

        start(programs / "gpreempt-emu", "--socket", socket, "--machine", "cwsr",
              "--compute-units", 1)
        start(programs / "gpreemptd", "--config", folder / "config.toml", "--emulated", socket,
              "--no-nvidia", "--no-amd", wait=2)
        # A process has the name of its program.
        for name, priority, load in (
            ("train", 2, ["be", "--kernel-us", 8000]),
            ("serve", 12, ["lc", "--kernel-us", 1000, "--kernels", 3, "--every-us", 40000]),
        ):
            program = folder / name
            shutil.copy(programs / "gpreempt-load", program)
            start(programs / "gpreempt", "run", "-p", priority, program, *load, "--groups", 1,
                  "--seconds", 600, "--socket", socket)
        time.sleep(SETTLE)
        yield environment


def draw_top(arguments):
    with machine(arguments.programs) as environment:
        command = [str(arguments.programs / "gpreempt"), "top", "--once", "--every", "2s"]
        shown = subprocess.run(command, env=environment, check=True, capture_output=True,
                               encoding="utf-8").stdout
    lines = [line.rstrip() for line in shown.splitlines()]
    width = int(max(map(len, lines)) * COLUMN) + 40
    for scheme in SCHEMES:
        title = "gpreempt top: a training and a server on one emulated GPU"
        picture = Picture(width, len(lines) * ROW + 32, title, scheme)
        for number, line in enumerate(lines):
            is_head = line.startswith(("gpreempt top", "gpu ", "process ", "GPU time"))
            fill = "soft" if is_head else "ink"
            picture.text(20, 30 + number * ROW, line, fill, 12, mono=True)
        picture.write(f"top-{scheme}.svg")


class Browser:
    """A chromium that is told what to do through a pipe: one command at a time."""

    def __init__(self, scheme, folder):
        into, self.send = os.pipe()
        self.receive, out = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        command = ["sh", "-c", f'exec "$@" 3<&{into} 4>&{out}', "sh", "chromium", "--headless",
                   "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
                   f"--user-data-dir={folder}", "--window-size=1000,760",
                   f"--blink-settings=preferredColorScheme={CHROMIUM[scheme]}"]
        self.process = subprocess.Popen(command, pass_fds=(into, out),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(into)
        os.close(out)
        self.last, self.rest = 0, b""

    def call(self, method, session=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                self.rest += os.read(self.receive, 1 << 20)
            answer, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(answer)
            if answer.get("id") == self.last:
                return answer["result"]


def draw_live(arguments):
    address = "127.0.0.1:9465"
    with machine(arguments.programs) as environment, tempfile.TemporaryDirectory() as folder:
        page = subprocess.Popen(
            [str(arguments.programs / "gpreempt"), "top", "--web", address], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for scheme in SCHEMES:
                browser = Browser(scheme, Path(folder, scheme))
                target = browser.call("Target.createTarget", url=f"http://{address}/")["targetId"]
                session = browser.call("Target.attachToTarget", targetId=target, flatten=True)
                # The page shows what happened since it was opened.
                time.sleep(3 * SETTLE)
                shot = browser.call("Page.captureScreenshot", session["sessionId"])
                (FOLDER / f"live-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
                browser.call("Browser.close")
                browser.process.wait()
        finally:
            page.terminate()
            page.wait()
