#!/usr/bin/env python3
"""What hw/bench_all.py and hw/serving.py do with files they did not expect, and when they end.
Needs no GPU."""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# As if there were a driver.
START = "import bench_all, sys; bench_all.DRIVER = '/dev/null'; sys.exit(bench_all.main())"
# A suite that goes on until Ctrl-C, and says that it had the time to end.
SUITE = """#!{python}
import os, signal, sys, time
def end(*_):
    open("ended", "w").close()
    sys.exit(1)
signal.signal(signal.SIGINT, end)
open("began.new", "w").write(str(os.getpid()))
os.rename("began.new", "began")
for _ in range(600):
    time.sleep(0.1)
"""
WHOLE = {"short": True, "finished": "now", "commit": "abc", "checks": [],
         "measurements": [{"case": "c", "mode": "m", "took_s": 60, "status": {"state": "ok"}}]}


class BenchAll(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpreempt-bench-all-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, suite, text):
        os.makedirs(self.path(f"out/{suite}"))
        with open(self.path(f"out/{suite}/result.json"), "w") as file:
            file.write(text)

    def start(self, *arguments):
        command = [sys.executable, "-B", "-c", START, "--bin", "bin", "--out", "out", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env={**os.environ, "PYTHONPATH": HERE},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run_whole(self, *arguments):
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=60)
        self.assertNotIn("Traceback", said)
        self.assertIn("ernel's log", said, "the Xid check happens in any case")
        return process.returncode, said

    def wait_for(self, name):
        for _ in range(600):
            if os.path.exists(self.path(name)):
                return
            time.sleep(0.05)
        self.fail(f"there is no {name}")

    def started(self):
        """A runner whose first suite is under way."""
        os.mkdir(self.path("bin"))
        with open(self.path("bin/gpreempt"), "w") as file:
            file.write(SUITE.format(python=sys.executable))
        os.chmod(self.path("bin/gpreempt"), 0o755)
        process = self.start("micro", "disb")
        self.wait_for("began")
        return process

    def test_files_that_are_no_results_are_a_sentence(self):
        for suite, text in (("micro", "[]"), ("disb", "{}"), ("torch", "{"),
                            ("scale", json.dumps({**WHOLE, "measurements": [{}]}))):
            self.write(suite, text)
        self.write("share", json.dumps(WHOLE))
        code, said = self.run_whole("--commit", "abc", "micro", "disb", "torch", "scale", "share")
        self.assertEqual(code, 1)
        self.assertEqual(said.count("is no file of results"), 2 * 3)
        self.assertIn("share is finished", said)

    def test_a_program_that_is_not_there_is_a_sentence(self):
        code, said = self.run_whole("micro", "disb")
        self.assertEqual(code, 1)
        self.assertEqual(said.count("cannot start bin/gpreempt"), 2)

    def test_results_of_another_commit_do_not_count(self):
        self.write("micro", json.dumps(WHOLE))
        code, said = self.run_whole("--commit", "abc", "micro")
        self.assertIn("micro is finished", said)
        code, said = self.run_whole("--commit", "def", "micro")
        self.assertEqual(code, 1)
        self.assertNotIn("is finished", said)
        self.assertIn("is of commit abc and this is def", said)

    def test_sigterm_ends_the_suite_as_ctrl_c_does(self):
        process = self.started()
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("stopped; nothing else begins", said)
        self.assertTrue(os.path.exists(self.path("ended")))

    def test_the_suite_ends_when_the_runner_is_killed(self):
        process = self.started()
        process.kill()
        process.communicate(timeout=60)
        self.wait_for("ended")


class Serving(unittest.TestCase):
    def test_results_become_tables_and_what_is_missing_is_said(self):
        sys.path.insert(0, HERE)
        import serving
        latency = {"p50_ns": 1_000_000, "p99_ns": 2_000_000}
        waits = [{"name": f"slow_{wait}", "value": 7_000.0} for wait in serving.WAITS]
        numbers = [{"name": "slowdown", "value": 12.5}, *waits]
        measured = {"case": "gap30", "mode": "hold", "took_s": 1, "status": {"state": "ok"},
                    "lc": {"latency": latency}, "be": {"per_second": 9.0, "kept": 0.95},
                    "numbers": numbers}
        found = {**WHOLE, "measurements": [measured]}
        with tempfile.TemporaryDirectory() as out:
            arguments = argparse.Namespace(out=out, commit="abc", long=False, bin="bin")
            os.mkdir(os.path.join(out, "tails"))
            with open(os.path.join(out, "tails/result.json"), "w") as file:
                json.dump(found, file)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                serving.summary(arguments)
                serving.tails(arguments)
                self.assertFalse(serving.testkit_lines(arguments))
            lines = said.getvalue().splitlines()
            row = next(line for line in lines if line.startswith("gap30"))
            self.assertEqual(row.split(), "gap30 hold 1 1000.0 2000.0 9.0 95.0 12.5".split())
            self.assertTrue(any(line.split()[:4] == ["gap30", "hold", "slow", "7"]
                                for line in lines), said.getvalue())
            self.assertIn("test kit, boundary: nothing", said.getvalue())
            names = [name for name, _, _ in serving.parts(arguments)]
        self.assertEqual(names, ["budgets", "tails", "two-servers", "frequent", "periodic",
                                 "boundary"])


if __name__ == "__main__":
    unittest.main()
