"""The examples with frameworks on real hardware, beside best-effort kernels of 8 ms.

    python3 hw/hardware_test.py --only test_frameworks --out frameworks.json --commit COMMIT

Needs libgpreempt.so beside the other binaries and PyTorch; what else is not installed is skipped.
The results have what each program prints: its latency alone, beside the load by default, and with
a priority.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time

from harness import lines, measured_rate
from service import Service

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


class Examples:
    """Runs examples, with a daemon or without."""

    def __init__(self, bench):
        self.bench = bench
        library = os.path.join(os.path.dirname(bench.cli), "libgpreempt.so")
        self.environment = {"PYTHONPATH": os.path.join(ROOT, "python", "src"),
                            "GPREEMPT_LIBRARY": library}

    def run(self, name, *arguments, daemon=None, priority=None, module=()):
        """The last JSON object that an example prints, and whether it succeeded."""
        environment = {**os.environ, **self.environment, "GPREEMPT_SOCKET": "/nowhere"}
        before = []
        if daemon:
            environment.update(daemon.environment)
        if priority is not None:
            before = [self.bench.cli, "run", "-p", str(priority)]
        path = os.path.join(ROOT, "examples", name)
        command = [*before, sys.executable, *module, path, *map(str, arguments)]
        begun = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
        last = last_object(done.stdout)
        row = {"name": name, "arguments": list(map(str, arguments)), "priority": priority,
               "seconds": round(time.monotonic() - begun, 1), "found": last}
        self.bench.rows.append(row)
        print(json.dumps(row))
        is_good = done.returncode == 0
        if not is_good:
            self.bench.check(f"{name} ends well", False, (done.stdout + done.stderr)[-600:])
        return last, is_good


def last_object(text):
    decoder, last, at = json.JSONDecoder(), {}, text.find("{")
    while at >= 0:
        try:
            last, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        at = text.find("{", end)
    return last


def is_there(name):
    if importlib.util.find_spec(name):
        return True
    print(f"SKIPPED  examples with {name}: it is not installed")
    return False


def test_frameworks(bench):
    """PyTorch, Hugging Face and JAX examples under `gpreempt run`, beside kernels of 8 ms."""
    library = os.path.join(os.path.dirname(bench.cli), "libgpreempt.so")
    if not os.path.exists(library):
        print("SKIPPED  examples with frameworks: libgpreempt.so is not there")
        return
    if not is_there("torch"):
        return
    examples = Examples(bench)
    requests = ("--requests", 300, "--every-ms", 10)
    alone, _ = examples.run("torch_serve.py", *requests)
    graphs_alone, _ = examples.run("torch_graphs.py")
    be = bench.start("be", "--seconds", "600", "--kernel-us", "8000", "--report-ms", "100",
                     "--kind", "counter")
    rate = measured_rate(be, 2)
    default, _ = examples.run("torch_serve.py", *requests)
    daemon = Service(bench, "frameworks", "")
    time.sleep(1)
    served, is_good = examples.run("torch_serve.py", *requests, daemon=daemon, priority=12)
    if is_good and alone and default:
        detail = ", ".join(f"{what} {found['p50_us']:.0f}/{found['p99_us']:.0f} us" for what, found
                           in (("alone", alone), ("default", default), ("priority 12", served)))
        bench.check("the server's requests are protected: p50 within 1.5 of alone",
                    served["p50_us"] <= 1.5 * alone["p50_us"], f"p50/p99: {detail}")
        bench.check("and its hints are heard", served["status"].endswith("hints are heard"),
                    served["status"])
    graphs, is_good = examples.run("torch_graphs.py", daemon=daemon, priority=12)
    if is_good and "graph_us" in graphs_alone:
        protected, free = graphs["graph_us"], graphs_alone["graph_us"]
        bench.check("a CUDA graph is protected: median within 1.5 of alone",
                    protected <= 1.5 * free, f"{protected} us, alone {free} us")
    examples.run("torch_hook.py", daemon=daemon, priority=12)
    examples.run("torch_critical.py", "--requests", 100, daemon=daemon, priority=12)
    if is_there("transformers"):
        examples.run("hf_generate.py", daemon=daemon, priority=12)
    trained, is_good = examples.run("torch_train.py", "--steps", 200, daemon=daemon, priority=2)
    ddp, is_also_good = examples.run(
        "torch_train.py", "--steps", 200, daemon=daemon, priority=2,
        module=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"))
    bench.check("training runs with priority 2, alone and under torchrun",
                is_good and is_also_good and trained.get("priority") == ddp.get("priority") == "2",
                f"{trained.get('steps_per_s')}, {ddp.get('steps_per_s')} steps/s")
    if is_there("jax"):
        examples.run("jax_train.py", daemon=daemon, priority=2)
    after = measured_rate(be, 2)
    bench.check("the load has its full speed back", after >= 0.95 * rate,
                f"{after:.1f} kernels/s, before {rate:.1f}")
    log = daemon.stop()
    bench.rows.append({"name": "daemon log (frameworks)", "lines": log.splitlines()[-30:]})
    bench.end(be)
    exact = lines(be.log, "final")[0]["exactness"]
    bench.check("memory of the load is exact", exact["result"] == "pass", json.dumps(exact))
