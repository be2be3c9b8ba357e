"""Where a test plays: an emulated GPU with a gpreemptd of its own, or this machine's."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Iterator, Literal, Optional, Union

from .. import connection
from .programs import Program, TestkitError, program, until
from .shape import Offline, Online

Role = Literal["online", "offline"]
Shape = Union[Online, Offline]

CONFIG = "[daemon]\nrescan_ms = 100\n"
"""Models are found soon, because the test waits for it."""


class Stage(ABC):
    """A device and a gpreemptd; models are started on it."""

    backend: str
    can_count = True
    """Whether its offline models can end by themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon: Optional[Program] = None

    @abstractmethod
    def describe(self) -> str:
        """What the device is."""

    def model(self, shape: Shape, priority: int, start: Path, report_ms: int) -> Program:
        """Starts a model; it is ready when it says so and begins when `start` exists."""
        options = {
            "backend": self.backend,
            "role": role_of(shape),
            "shape": shape.to_dict(),
            "priority": priority,
            "start": str(start),
            "report_ms": report_ms,
        }
        command = (sys.executable, "-m", "gpreempt.testkit.model", json.dumps(options))
        return Program(*command, env={"GPREEMPT_PRIORITY": str(priority)})

    def memory_kib(self) -> Optional[int]:
        """What gpreemptd has in memory, if it is ours."""
        if self.daemon is None:
            return None
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
        return None

    def is_well(self) -> bool:
        """Whether what was started for the stage still runs."""
        return self.daemon is None or self.daemon.is_alive()


class EmulatedStage(Stage):
    """gpreempt-emu and gpreemptd in a folder of their own; they end with the test."""

    backend = "emulated"
    _where, _option = "--socket", "--emulated"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._gpu = folder / "gpu"
        self._socket = folder / "gpreemptd.sock"
        self._emulator: Optional[Program] = None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """The stage is there inside of the block, and the library finds it."""
        try:
            self._start()
            with environment(
                GPREEMPT_SOCKET=str(self._socket), GPREEMPT_EMULATED_SOCKET=str(self._gpu)
            ):
                connection.disconnect()
                yield
                connection.disconnect()
        finally:
            self._close()

    def describe(self) -> str:
        return "emulated GPU: one compute unit of an MI300X, its waves saved and restored"

    def is_well(self) -> bool:
        return super().is_well() and self._emulator is not None and self._emulator.is_alive()

    def _start(self) -> None:
        emulator = self._emulator = Program(
            program("gpreempt-emu"),
            *(self._where, self._gpu, "--model", "mi300x", "--machine", "cwsr"),
            *("--compute-units", 1),
        )
        until("an emulated GPU", lambda: self._gpu.exists() or not emulator.is_alive())
        config = self.folder / "config.toml"
        config.write_text(CONFIG)
        self.daemon = Program(
            program("gpreemptd"),
            *("--no-nvidia", "--no-amd", "--socket", self._socket),
            *("--state", self.folder / "state", "--config", config, self._option, self._gpu),
        )
        self.daemon.until_says("ready at")

    def _close(self) -> None:
        # The daemon in good order, so that its keeper needs no folder later.
        for one in (self.daemon, self._emulator):
            if one is not None and one.is_alive():
                with contextlib.suppress(TestkitError):
                    one.terminate()
                if one.is_alive():
                    one.kill()


class EmulatedKfdStage(EmulatedStage):
    """The same as an AMD GPU behind its kernel driver; gpreempt-load runs the models."""

    backend = "emulated-kfd"
    can_count = False
    _where, _option = "--kfd", "--emulated-kfd"

    def describe(self) -> str:
        return "emulated AMD GPU behind an emulated kernel driver (KFD)"

    def model(self, shape: Shape, priority: int, start: Path, report_ms: int) -> Program:
        if isinstance(shape, Online):
            load: tuple[object, ...] = ("lc", "--kernels", shape.kernels, "--gap-us", 0)
            load += ("--every-us", shape.every_us, "--warmup-ms", 0)
        else:
            load = ("be", "--depth", shape.depth, "--report-ms", report_ms)
        return Program(
            *(program("gpreempt-load"), *load, "--kfd", self._gpu, "--json"),
            *("--kernel-us", shape.kernel_us, "--seconds", 86_400, "--wait-file", start),
            env={"GPREEMPT_PRIORITY": str(priority)},
        )


class CudaStage(Stage):
    """This machine's GPU and its gpreemptd; PyTorch networks are the models."""

    backend = "cuda"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._described = ""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Looks whether everything is there."""
        # In a process of its own: this one must not become a user of the GPU.
        code = "from gpreempt.testkit import torch_work; print(torch_work.require())"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if told.returncode != 0:
            raise TestkitError(told.stderr.strip().rpartition("TestkitError: ")[2])
        self._described = told.stdout.strip()
        connection.connect()
        yield
        connection.disconnect()

    def describe(self) -> str:
        return self._described


STAGES = {stage.backend: stage for stage in (EmulatedStage, EmulatedKfdStage, CudaStage)}


@contextlib.contextmanager
def opened(backend: str) -> Iterator[Stage]:
    """A stage of that kind, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpreempt-testkit-") as folder:
        stage = STAGES[backend](Path(folder))
        with stage.open():
            yield stage


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Variables have these values inside of the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def role_of(shape: Shape) -> Role:
    """What a model of that shape is."""
    return "online" if isinstance(shape, Online) else "offline"


def may_raise() -> bool:
    """Whether this user may have priorities above 7."""
    if os.geteuid() == 0:
        return True
    with contextlib.suppress(KeyError):
        return grp.getgrnam("gpreempt").gr_gid in (*os.getgroups(), os.getegid())
    return False
