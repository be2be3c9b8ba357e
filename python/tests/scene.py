"""A scene: the real emulated GPU, the real daemon and loads, in a folder of their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

from gpreempt.testkit.programs import Program, until

__all__ = ["LIBRARY", "REPOSITORY", "Load", "Program", "Scene", "binaries", "until"]

REPOSITORY = Path(__file__).resolve().parents[2]


def binaries() -> Path:
    """The folder of the programs under test."""
    chosen = os.environ.get("GPREEMPT_BIN")
    if chosen:
        return Path(chosen)
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    for profile in ("debug", "release"):
        if (target / profile / "gpreemptd").exists():
            return target / profile
    raise FileNotFoundError(
        f"there is no gpreemptd below {target}; run `cargo xtask python`, or set GPREEMPT_BIN"
    )


def library() -> Path:
    """The library under test: the one beside the programs, unless another is named."""
    chosen = os.environ.get("GPREEMPT_LIBRARY")
    return Path(chosen) if chosen else binaries() / "libgpreempt.so"


LIBRARY = library()


class Load(Program):
    """A load without end on the emulated GPU."""

    def total(self) -> int:
        """Kernels that are complete."""
        rates = self.reports("rate")
        return int(rates[-1]["total"]) if rates else 0

    def finish(self) -> dict[str, Any]:
        """Ends it in good order; it proves that every kernel ran exactly once."""
        status = self.terminate()
        assert status == 0, f"{status}: its work is not exact: {list(self.lines)[-3:]}"
        return self.reports("final")[-1]


class Scene:
    """An emulated GPU and a daemon."""

    def __init__(
        self,
        machine: str = "cwsr",
        devices: int = 1,
        is_amd: bool = False,
        hint_max_ms: int = 10_000,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpreempt-")
        self.folder = Path(self._folder.name)
        self.socket = self.folder / "gpreemptd.sock"
        self.gpu = self.folder / "gpu"
        # By its own socket, or as a KFD.
        self._where = "--kfd" if is_amd else "--socket"
        self._option = "--emulated-kfd" if is_amd else "--emulated"
        self._hint_max_ms = hint_max_ms
        self._programs: list[Program] = []
        self.emulator = self._start(
            Program(
                binaries() / "gpreempt-emu",
                *(self._where, self.gpu, "--model", "mi300x", "--machine", machine),
                *("--compute-units", 1, "--devices", devices),
            )
        )
        until("an emulator", self.gpu.exists)
        self.daemon = self.start_daemon()

    def start_daemon(self) -> Program:
        """Starts a daemon, the first or the next."""
        config = self.folder / "config.toml"
        # Found soon, because tests wait for it; and a hint counts for as long as a test takes.
        hint = f"hint_max_ms = {self._hint_max_ms}"
        config.write_text(f"[daemon]\nrescan_ms = 100\n[scheduler]\n{hint}\n")
        self.daemon = self._start(
            Program(
                binaries() / "gpreemptd",
                *("--no-nvidia", "--no-amd", "--socket", self.socket),
                *("--state", self.folder / "state"),
                *("--config", config, self._option, self.gpu),
            )
        )
        self.daemon.until_says("ready at")
        return self.daemon

    def load(
        self, *, kernel_us: int = 2000, device: int = 0, env: Optional[dict[str, str]] = None
    ) -> Load:
        """Starts a load without end and waits until it is ready."""
        load = Load(
            binaries() / "gpreempt-load",
            *("be", self._where, self.gpu, "--seconds", 3600, "--json"),
            *("--kernel-us", kernel_us, "--depth", 4, "--report-ms", 20, "--device", device),
            env=env,
        )
        self._programs.append(load)
        load.until_says('"ready"')
        return load

    def _start(self, program: Program) -> Program:
        self._programs.append(program)
        return program

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything; the daemon in good order, so that its keeper needs no folder later."""
        if self.daemon.is_alive():
            self.daemon.terminate()
        for program in reversed(self._programs):
            if program.is_alive():
                program.kill()
        self._folder.cleanup()
