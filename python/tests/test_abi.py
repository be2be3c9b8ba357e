"""ctypes against the header: names, numbers, sizes and offsets."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from gpreempt import Backend, DeviceKind, Level, _abi, _library, errors
from scene import REPOSITORY

HEADER = REPOSITORY / "crates" / "agent" / "include" / "gpreempt.h"
# What Python does in another way: it filters lists itself and passes options.
UNUSED = {
    "gpreempt_amd_pipe_priority",
    "gpreempt_find_queues_by_priority",
    "gpreempt_queue_create",
}


def defined(prefix: str) -> dict[str, int]:
    """The numbers of the header whose names begin with a prefix, without it."""
    found = re.findall(rf"#define GPREEMPT_{prefix}(\w+) (-?\d+)$", HEADER.read_text(), re.M)
    assert found, prefix
    return {name: int(number) for name, number in found}


def test_every_function_of_the_header_is_declared() -> None:
    text = HEADER.read_text()
    in_header = set(re.findall(r"^[\w ]+[ *](gpreempt_\w+)\(", text, re.M))
    assert len(in_header) > 30
    declared = set(_abi._CODES)
    declared |= {"gpreempt_version", "gpreempt_strerror", "gpreempt_last_message"}
    assert declared == in_header - UNUSED


def test_every_code_has_an_exception() -> None:
    codes = defined("ERROR_")
    assert codes.pop("TOO_SMALL") == errors.TOO_SMALL
    assert set(codes.values()) == set(errors._BY_CODE)


def test_the_numbers_are_those_of_the_header() -> None:
    assert _library.VERSION_WANTED == defined("")["VERSION"]
    assert defined("DEVICE_") == {kind.name: kind.value for kind in DeviceKind}
    levels = {level.name: level.value for level in Level if level is not Level.NONE}
    assert defined("LEVEL_") == levels
    assert defined("BACKEND_") == {backend.name: backend.value for backend in Backend}
    for name, number in defined("QUEUE_").items():
        assert getattr(_abi, f"QUEUE_{name}") == number
    assert defined("EVICT_") == {"TREE": _abi.EVICT_TREE}
    assert defined("LAUNCH_") == {"NO_WAIT": _abi.LAUNCH_NO_WAIT}
    assert _abi.PRIORITY_OF_PROCESS == defined("PRIORITY_")["OF_PROCESS"]


@pytest.mark.parametrize("name", _abi.STRUCTURES)
def test_structures_are_laid_out_as_the_compiler_does(name: str, tmp_path: Path) -> None:
    structure = _abi.STRUCTURES[name]
    fields = [field[0] for field in structure._fields_]
    lines = [f'printf("%zu\\n", offsetof({name}, {field}));' for field in fields]
    source = tmp_path / "layout.c"
    source.write_text(
        f'#include <stdio.h>\n#include "{HEADER}"\n'
        f'int main(void) {{ printf("%zu\\n", sizeof({name})); {" ".join(lines)} return 0; }}\n'
    )
    program = tmp_path / "layout"
    subprocess.run(["cc", "-o", str(program), str(source)], check=True)
    size, *offsets = map(int, subprocess.check_output([str(program)]).split())
    assert ctypes.sizeof(structure) == size
    assert [getattr(structure, field).offset for field in fields] == offsets
