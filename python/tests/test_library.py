"""Finding the library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpreempt
from gpreempt import _library
from scene import LIBRARY, Scene


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_named_library_is_the_only_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPREEMPT_LIBRARY", "/opt/x.so")
    assert _library.candidates() == ["/opt/x.so"]


def test_one_beside_the_package_comes_before_the_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPREEMPT_LIBRARY")
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))
    assert _library.candidates() == ["libgpreempt.so"]
    beside = tmp_path / "libgpreempt.so"
    beside.symlink_to(LIBRARY)
    assert _library.candidates() == [str(beside), "libgpreempt.so"]
    assert _library._load_first(_library.candidates()).path == str(beside)


def test_the_system_finds_it_by_its_name() -> None:
    code = "import gpreempt; print(gpreempt.library_path())"
    found = python(code, GPREEMPT_LIBRARY="", LD_LIBRARY_PATH=str(LIBRARY.parent))
    assert found.stdout == "libgpreempt.so\n", found.stderr


def test_it_says_which_version_it_is() -> None:
    assert gpreempt.library_version() == "0.1.0"
    assert gpreempt.library_path() == str(LIBRARY)


WITHOUT_LIBRARY = """
import gpreempt
try:
    gpreempt.queues()
except gpreempt.LibraryNotFound as error:
    assert isinstance(error, ImportError)
    print(error)
for _ in range(3):
    with gpreempt.critical() as is_heard:
        assert not is_heard
try:
    with gpreempt.critical(required=True):
        raise AssertionError("the block must not run")
except gpreempt.LibraryNotFound:
    print("again")
print(gpreempt.status())
"""


def test_without_a_library_hints_do_nothing_and_calling_explains() -> None:
    told = python(WITHOUT_LIBRARY, GPREEMPT_LIBRARY="/nowhere/libgpreempt.so")
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    for part in ("/nowhere/libgpreempt.so", "GPREEMPT_LIBRARY", "cargo build", "\nagain\n"):
        assert part in told.stdout
    status = told.stdout.splitlines()[-1]
    assert status.startswith("gpreempt 0.1.0: nothing is done, library: libgpreempt.so"), told


def test_the_status_is_one_line(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = f"gpreemptd answers at {scene.socket}, hints are heard"
    assert gpreempt.status() == f"gpreempt 0.1.0: {answers}"
    gpreempt.disconnect()
    monkeypatch.setenv("GPREEMPT_SOCKET", "/nowhere/at.all")
    status = gpreempt.status()
    begin = "gpreempt 0.1.0: nothing is done, gpreemptd: gpreemptd is not running"
    assert status.startswith(begin) and "\n" not in status


HEAVY = ("asyncio", "ctypes", "dataclasses", "enum", "inspect", "json", "pathlib", "typing")


def test_importing_the_package_loads_next_to_nothing() -> None:
    code = f"""
import sys
import gpreempt
print(*[name for name in {HEAVY} if name in sys.modules])
print(*sorted(name for name in sys.modules if name.startswith("gpreempt")))
with gpreempt.critical():
    pass
"""
    # Without site: what an environment loads for itself is not the package's.
    path = str(Path(gpreempt.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r})\n{code}"
    command = [sys.executable, "-S", "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.stdout == "\ngpreempt\n", told


def test_every_name_is_where_its_import_says() -> None:
    source = Path(gpreempt.__file__).read_text()
    (block,) = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    written = {str(node.module): sorted(name.name for name in node.names) for node in imports}
    modules = written.pop("None")
    assert written == {module: names.split() for module, names in gpreempt._MODULES.items()}
    listed = {name for names in written.values() for name in names} | set(modules)
    assert sorted(listed) == gpreempt.__all__
    for name in gpreempt.__all__:
        assert getattr(gpreempt, name) is not None and name in dir(gpreempt)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        gpreempt.nothing


def test_a_library_that_is_another_one_is_refused() -> None:
    code = "import gpreempt; gpreempt.queues()"
    told = python(code, GPREEMPT_LIBRARY="libc.so.6")
    assert "LibraryNotFound" in told.stderr and "gpreempt_hint_begin" in told.stderr


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "VERSION_WANTED", 0x09_02_00)
    with pytest.raises(gpreempt.VersionMismatch, match="0.1.0.*9.2.0"):
        _library._load_first([str(LIBRARY)])
