"""Every test gets the real library; those that ask for it, a scene with the real programs."""

from __future__ import annotations

import os
from typing import Iterator

import pytest

import scene as scenes

# Before anything loads it. The variable reaches child processes as well.
os.environ["GPREEMPT_LIBRARY"] = str(scenes.LIBRARY)


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[None]:
    """A test without a scene must not find the daemon of this machine, nor an older scene's."""
    import gpreempt

    monkeypatch.setenv("GPREEMPT_SOCKET", f"{tmp_path}/no-daemon.sock")
    monkeypatch.setenv("GPREEMPT_EMULATED_SOCKET", f"{tmp_path}/no-gpu")
    gpreempt.disconnect()
    yield
    gpreempt.disconnect()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[scenes.Scene]:
    """An emulated GPU and a daemon, where the library looks for them."""
    with scenes.Scene() as made:
        monkeypatch.setenv("GPREEMPT_SOCKET", str(made.socket))
        monkeypatch.setenv("GPREEMPT_EMULATED_SOCKET", str(made.gpu))
        yield made


@pytest.fixture
def amd_scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[scenes.Scene]:
    """An AMD GPU, as far as the daemon can tell."""
    with scenes.Scene(is_amd=True) as made:
        monkeypatch.setenv("GPREEMPT_SOCKET", str(made.socket))
        yield made
