"""A daemon that is older or newer than this package and its library."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import threading
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import gpreempt

HEADER = struct.Struct("<4sHHI4xQ")
OK, REFUSED = 0x8001, 0x8002
BAD_MESSAGE, VERSION = 1, 2

Answer = Callable[[int, int], bytes]
"""Of the kind and the number of a request."""


def packet(version: int, kind: int, request: int, body: bytes = b"") -> bytes:
    return HEADER.pack(b"GPRE", version, kind, len(body), request) + body


def refusal(version: int, request: int, code: int, sentence: bytes) -> bytes:
    return packet(version, REFUSED, request, struct.pack("<H6x248s", code, sentence))


def newer(kind: int, request: int) -> bytes:
    """What a daemon of protocol version 2 says to this client."""
    sentence = b"the message has protocol version 1, this program speaks version 2"
    return refusal(2, 0, VERSION, sentence)


def older(kind: int, request: int) -> bytes:
    """A daemon of this protocol version that knows the first message only."""
    if kind == 1:
        return packet(1, OK, request)
    return refusal(1, request, BAD_MESSAGE, f"message kind {kind:#06x} is not known here".encode())


@pytest.fixture(params=[newer, older])
def answer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Answer]:
    """A daemon that answers every request in one way."""
    path = tmp_path / "other.sock"
    chosen: Answer = request.param
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(8)
        # A process of its own: a call may keep the interpreter lock while it waits for the answer.
        context: Any = multiprocessing.get_context("fork")
        daemon = context.Process(target=serve, args=(listener, chosen))
        daemon.start()
        monkeypatch.setenv("GPREEMPT_SOCKET", str(path))
        gpreempt.disconnect()
        yield chosen
        gpreempt.disconnect()
        daemon.kill()
        daemon.join(60)


def serve(listener: socket.socket, answer: Answer) -> None:
    while True:
        client = listener.accept()[0]
        # A process has one connection for requests and another one for hints.
        threading.Thread(target=talk, args=(client, answer), daemon=True).start()


def talk(client: socket.socket, answer: Answer) -> None:
    with client, contextlib.suppress(OSError):
        while received := client.recv(4096):
            _, _, kind, _, number = HEADER.unpack(received[: HEADER.size])
            client.send(answer(kind, number))


def test_one_sentence_names_what_to_update(answer: Answer) -> None:
    for call in (gpreempt.queues, lambda: gpreempt.set_priority(2)):
        with pytest.raises(gpreempt.VersionMismatch) as caught:
            call()
        told = str(caught.value)
        assert "\n" not in told and "gpreemptd" in told, told
        if answer is newer:
            assert "speaks protocol version 2, this program speaks version 1; update" in told
        else:
            assert "is not known here" in told and "update" in told, told


def test_hints_do_nothing_and_the_status_says_why(answer: Answer) -> None:
    with gpreempt.critical() as is_heard:
        assert not is_heard
    with pytest.raises(gpreempt.VersionMismatch):
        with gpreempt.critical(required=True):
            raise AssertionError("the block must not run")
    status = gpreempt.status()
    assert status.startswith("gpreempt 0.1.0: nothing is done, ") and "update" in status, status
    assert "\n" not in status
