"""The examples with frameworks, on the CPU and the emulated GPU.

`cargo xtask examples` runs this file once for each set of frameworks, in an environment that has it
(GPREEMPT_FRAMEWORKS names the set); elsewhere nothing here is run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

import pytest

import gpreempt
from scene import REPOSITORY, Program, Scene, binaries, until

SET = os.environ.get("GPREEMPT_FRAMEWORKS", "")
EXAMPLES = REPOSITORY / "examples"
IS_HEARD = ", hints are heard"

light = pytest.mark.skipif(SET != "light", reason="needs the frameworks of requirements-light.txt")
torch = pytest.mark.skipif(SET != "torch", reason="needs the frameworks of requirements-torch.txt")


def run(
    *command: object, gives: Optional[int] = None, env: Optional[dict[str, str]] = None
) -> list[str]:
    """Runs a command, perhaps by `gpreempt run` with a priority; the lines that it prints."""
    before = [binaries() / "gpreempt", "run", "-p", gives] if gives is not None else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    words = [str(word) for word in [*before, *command]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def example(name: str, *arguments: object, gives: Optional[int] = None) -> list[str]:
    return run(sys.executable, EXAMPLES / name, *arguments, gives=gives)


def objects(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


@torch
def test_an_inference_server_answers_itself(scene: Scene) -> None:
    (told,) = objects(example("torch_serve.py", "--requests", 50, gives=7))
    assert told["n"] == 50 and told["device"] == "CPU"
    assert told["status"].endswith(IS_HEARD), told


@torch
def test_an_inference_server_runs_under_uvicorn(scene: Scene) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "torch_serve:app", "--app-dir", EXAMPLES]
    server = Program(*command, "--port", port, "--log-level", "warning")

    def post(path: str, body: bytes) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=60) as answer:
            return json.load(answer)

    def is_ready() -> bool:
        try:
            return bool(post("/health", b"")["ready"])
        except OSError:
            return False

    try:
        until("the server", is_ready)
        assert "sum" in post("/predict", b"1.5")
        assert server.says(IS_HEARD), list(server.lines)
    finally:
        server.terminate()


@torch
def test_training_with_one_process_and_with_several(scene: Scene) -> None:
    (alone,) = objects(example("torch_train.py", "--steps", 20, gives=2))
    assert (alone["world"], alone["priority"]) == (1, "2")
    torchrun = Path(sys.executable).with_name("torchrun")
    program = ["--nproc-per-node", 2, EXAMPLES / "torch_train.py", "--steps", 20, "--workers", 1]
    ranks = objects(run(torchrun, "--standalone", *program, gives=2))
    assert sorted((told["rank"], told["world"]) for told in ranks) == [(0, 2), (1, 2)]
    assert len({told["pid"] for told in ranks}) == 2
    for told in ranks:
        assert told["priority"] == "2" and told["status"].endswith(IS_HEARD), told


@torch
def test_eager_and_compiled_models_answer(scene: Scene) -> None:
    (told,) = objects(example("torch_graphs.py", "--requests", 20, "--layers", 1, gives=7))
    assert told["device"] == "CPU" and told["eager_us"] > 0 and told["compiled_us"] > 0


@torch
def test_a_hook_gives_a_hint_for_each_call(scene: Scene) -> None:
    lines = example("torch_hook.py", gives=7)
    assert lines[0] == "a call that fails ends its hint" and lines[1].endswith(IS_HEARD)
    sys.path.insert(0, str(EXAMPLES))
    import torch as framework
    import torch_hook
    from gpreempt import hint

    class Counts(framework.nn.Module):  # type: ignore[misc]
        def forward(self, row: Any) -> int:
            if row is None:
                raise ZeroDivisionError
            return len(hint._this_thread().blocks)

    module = Counts()
    remove = torch_hook.give_hints(module)
    assert module(1) == 1
    with pytest.raises(ZeroDivisionError):
        module(None)
    assert hint._this_thread().blocks == []
    remove()
    assert module(1) == 0


@torch
def test_a_small_model_generates(scene: Scene) -> None:
    (told,) = objects(example("hf_generate.py", "--tokens", 8, gives=7))
    assert told["tokens"] == 8 and told["status"].endswith(IS_HEARD), told


@light
def test_jax_trains(scene: Scene) -> None:
    (told,) = objects(example("jax_train.py", "--steps", 20))
    before, after = told["loss"]
    assert after < before


@light
def test_jax_runs_without_gpreempt_too() -> None:
    lines = example("jax_train.py", "--steps", 2)
    assert lines[0].startswith("gpreempt 0.1.0: nothing is done, gpreemptd"), lines


@light
def test_replicas_of_ray_serve_have_the_priority_of_their_deployment(scene: Scene) -> None:
    (line,) = [line for line in example("ray_serve.py") if line.startswith("[")]
    answers = json.loads(line)
    assert len(answers) == 10 and len({answer["pid"] for answer in answers}) == 2, answers
    assert all(answer["priority"] == "7" and answer["is_heard"] for answer in answers), answers


LOAD = """
import os, subprocess
print(open("/proc/self/cmdline").read().split(chr(0)))
command = [os.environ["LOAD"], "be", "--socket", os.environ["GPU"], "--seconds", "60"]
load = subprocess.Popen(command)
"""
PRIORITY = """
import time
while not gpreempt.queues(pid=load.pid):
    time.sleep(0.01)
print("priority", gpreempt.queues(pid=load.pid)[0].priority)
load.kill()
"""


@light
def test_a_notebook_yields(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("LOAD", str(binaries() / "gpreempt-load"))
    monkeypatch.setenv("GPU", str(scene.gpu))
    book = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(book)
    # Its work on the GPU is that of a child, which has the priority of the notebook.
    book.cells += [nbformat.v4.new_code_cell(text) for text in (LOAD, PRIORITY)]
    NotebookClient(book, timeout=60).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    told = "".join(output.get("text", "") for output in outputs)
    assert IS_HEARD in told and "priority 2\n" in told, told
    # What the rule of the guide matches.
    assert "'ipykernel_launcher'" in told, told


class Tensor:
    """Stands for Triton's tensors."""

    def __init__(self, name: str, values: Any) -> None:
        self.name, self.values = name, values

    def as_numpy(self) -> Any:
        return self.values


@light
def test_a_model_of_tritons_python_backend_answers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the module that Triton brings: Triton itself is not on PyPI."""
    import numpy

    said: list[str] = []
    utils: Any = ModuleType("triton_python_backend_utils")
    utils.Logger = SimpleNamespace(log_info=said.append)
    utils.Tensor = Tensor
    utils.InferenceResponse = lambda output_tensors: output_tensors
    utils.get_input_tensor_by_name = lambda request, name: request[name]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import triton_model

    model = triton_model.TritonPythonModel()
    model.initialize({})
    assert said[0].endswith(IS_HEARD)
    requests = [{"IN": Tensor("IN", numpy.full((2, 4), value))} for value in (1.0, 2.0)]
    ((first,), (second,)) = model.execute(requests)
    assert first.name == "OUT" and first.values.tolist() == [[4.0], [4.0]]
    assert second.values.tolist() == [[8.0], [8.0]]
    assert "triton_model.py" in str(triton_model.__file__)


VLLM = """#!/bin/bash
# Stands for vLLM: the server starts an engine, which uses the GPU.
printf '%s\\n' "$*" > "$ARGUMENTS"
(exec -a VLLM::EngineCore "$LOAD" be --socket "$GPU" --seconds 3600) &
wait
"""


@light
def test_the_engine_of_vllm_inherits_the_priority(scene: Scene, tmp_path: Path) -> None:
    """With a stand-in for `vllm`, which needs a GPU: the processes are those of vLLM."""
    (tmp_path / "vllm").write_text(VLLM)
    (tmp_path / "vllm").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{binaries()}:{os.environ['PATH']}",
        "ARGUMENTS": str(tmp_path / "arguments"),
        "LOAD": str(binaries() / "gpreempt-load"),
        "GPU": str(scene.gpu),
        "PRIORITY": "7",
    }
    command = [str(EXAMPLES / "vllm_serve.sh"), "MODEL", "--port", "8000"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, process_group=0) as server:
        try:
            until("the engine", lambda: bool(gpreempt.queues()))
            (engine,) = gpreempt.queues()
            assert engine.priority == 7 and engine.pid != server.pid
            cmdline = Path(f"/proc/{engine.pid}/cmdline").read_text()
            assert cmdline.startswith("VLLM::EngineCore\0")
        finally:
            os.killpg(server.pid, 9)
    arguments = (tmp_path / "arguments").read_text()
    assert arguments == "serve MODEL --port 8000 --gpu-memory-utilization 0.5\n"
    refused = subprocess.run(command[:1], env=env, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and refused.stderr.startswith("usage: vllm_serve.sh MODEL")
