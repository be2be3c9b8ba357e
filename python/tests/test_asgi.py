"""gpreempt.asgi under real servers, with requests that overlap."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import threading
import time
from typing import Any, AsyncIterator, Callable, Iterator

import pytest
import uvicorn
from websockets.sync.client import connect

import gpreempt
from gpreempt import hint
from listing import busy_load, idle_queue
from scene import Scene, until

SIZE = 10


class App:
    """An application whose requests last until a test lets them end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.may_end = threading.Event()
        self.has_started = False
        self.blocks: Callable[[], int] = lambda: 0
        """Hints of the thread of the event loop that are open."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        thread = hint._this_thread()
        self.blocks = lambda: len(thread.blocks)
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self.websocket(receive, send)
        else:
            await self.http(scope["path"], receive, send)

    async def lifespan(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        self.has_started = self.blocks() == 0
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def http(self, path: str, receive: Any, send: Any) -> None:
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.disconnect":
            return
        if path.endswith("/fails"):
            raise ZeroDivisionError
        self.running.append(path)
        while path.endswith("/waits") and not self.may_end.is_set():
            await asyncio.sleep(0.005)
        headers = [(b"content-length", str(2 * SIZE).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        part = {"type": "http.response.body", "body": b"x" * SIZE, "more_body": True}
        await send(part)
        counted = f"{self.blocks():>{SIZE}}".encode()
        await send({"type": "http.response.body", "body": counted, "more_body": False})

    async def websocket(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": str(self.blocks())})


@contextlib.contextmanager
def served(app: Any) -> Iterator[int]:
    """A server with an application; the value is its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", lifespan="on")
        server = uvicorn.Server(config)
        run = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        run.start()
        try:
            until("the server", lambda: server.started)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            run.join(60)


def get(port: int, path: str, **more: Any) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(more.pop("method", "GET"), path, **more)
        return connection.getresponse().read()


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def app() -> App:
    return App()


def test_requests_that_overlap_keep_the_device_free(scene: Scene, app: App) -> None:
    low = busy_load(scene)[1]
    with idle_queue(), served(gpreempt.asgi.Hints(app, deadline_us=5_000_000)) as port:
        assert app.has_started
        waiting = [in_background(lambda: get(port, "/waits")) for _ in range(20)]
        until("all of them", lambda: len(app.running) == 20)
        assert app.blocks() == 20
        until("it was made free", lambda: not gpreempt.queue(low).is_on)
        assert [get(port, "/quick")[-1:] for _ in range(10)] == [b"1"] * 10
        time.sleep(0.3)
        assert not gpreempt.queue(low).is_on, "a request that ended took the others' hint away"
        app.may_end.set()
        for thread in waiting:
            thread.join(60)
        until("every hint has ended", lambda: app.blocks() == 0)
        until("it is given back", lambda: gpreempt.queue(low).is_on)


def test_a_request_counts_from_its_whole_body_on(scene: Scene, app: App) -> None:
    with served(gpreempt.asgi.Hints(app)) as port:
        assert get(port, "/all", method="POST", body=b"y" * 1000)[-1:] == b"1"
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
            time.sleep(0.2)
            assert app.blocks() == 0, "a slow upload reserves the GPU"
            slow.sendall(b"cd")
            until("its answer", lambda: "/slow" in app.running)
        chunks = iter([b"one", b"two"])
        assert get(port, "/chunks", method="POST", body=chunks)[-1:] == b"1"


def test_paths_choose_the_requests(scene: Scene, app: App) -> None:
    with served(gpreempt.asgi.Hints(app, paths=["/v1/", "/generate"])) as port:
        found = {path: get(port, path)[-1:] for path in ("/v1/x", "/generate", "/health", "/v1")}
    assert found == {"/v1/x": b"1", "/generate": b"1", "/health": b"0", "/v1": b"0"}


def test_clients_that_leave_and_exceptions_end_the_hint(scene: Scene, app: App) -> None:
    with served(gpreempt.asgi.Hints(app)) as port:
        for _ in range(3):
            assert b"Internal Server Error" in get(port, "/fails")
        assert app.blocks() == 0
        with socket.create_connection(("127.0.0.1", port)) as leaves:
            leaves.sendall(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
            until("it computes", lambda: app.running == ["/waits"])
        with socket.create_connection(("127.0.0.1", port)) as leaves:
            leaves.sendall(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab")
        app.may_end.set()
        until("both have ended", lambda: app.blocks() == 0)
        assert get(port, "/quick")[-1:] == b"1"


def test_each_message_of_a_websocket_is_a_request(scene: Scene, app: App) -> None:
    with served(gpreempt.asgi.Hints(app)) as port:
        with connect(f"ws://127.0.0.1:{port}/") as client, connect(f"ws://127.0.0.1:{port}/"):
            for _ in range(3):
                client.send("request")
                assert client.recv(timeout=60) == "1"
            until("it waits for the next", lambda: app.blocks() == 0)


def test_it_is_middleware_of_starlette(scene: Scene, app: App) -> None:
    """With an endpoint in another thread, an answer in pieces, and one that is never read."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    def plain(request: Any) -> PlainTextResponse:
        return PlainTextResponse(str(app.blocks()))

    async def pieces() -> AsyncIterator[bytes]:
        app.running.append("pieces")
        while True:
            await asyncio.sleep(0.005)
            yield str(app.blocks()).encode()

    async def streamed(request: Any) -> StreamingResponse:
        thread = hint._this_thread()
        app.blocks = lambda: len(thread.blocks)
        return StreamingResponse(pieces())

    routes = [Route("/plain", plain), Route("/streamed", streamed)]
    starlette = Starlette(routes=routes)
    starlette.add_middleware(gpreempt.asgi.Hints, deadline_us=5_000, paths=["/plain", "/streamed"])
    with served(starlette) as port:
        with socket.create_connection(("127.0.0.1", port)) as leaves:
            leaves.sendall(b"GET /streamed HTTP/1.1\r\nHost: x\r\n\r\n")
            until("pieces", lambda: app.running == ["pieces"])
            assert app.blocks() == 1
            assert get(port, "/plain") == b"2"
        until("it was noticed", lambda: app.blocks() == 0)
        assert get(port, "/plain") == b"1"


def test_another_server_works_too(scene: Scene, app: App) -> None:
    """Hypercorn speaks HTTP/2 as well and cancels what is left when it ends."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    config = Config()
    config.bind, config.graceful_timeout = [f"127.0.0.1:{port}"], 0.5

    async def main() -> list[bytes]:
        end = asyncio.Event()
        wrapped: Any = gpreempt.asgi.Hints(app)
        server = asyncio.create_task(serve(wrapped, config, shutdown_trigger=end.wait))
        await asyncio.to_thread(until, "it listens", lambda: listens(port))
        reads = [asyncio.to_thread(get, port, "/quick") for _ in range(8)]
        answers = await asyncio.gather(*reads)
        leaves = socket.create_connection(("127.0.0.1", port))
        leaves.sendall(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.to_thread(until, "it computes", lambda: "/waits" in app.running)
        end.set()
        await server
        leaves.close()
        return answers

    answers = asyncio.run(main())
    assert len(answers) == 8 and all(int(answer[SIZE:]) >= 1 for answer in answers)
    assert app.blocks() == 0


def listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def test_without_a_daemon_requests_are_answered(app: App) -> None:
    with served(gpreempt.asgi.Hints(app)) as port:
        assert len(get(port, "/quick")) == 2 * SIZE


def test_a_daemon_that_hangs_delays_one_request_only(scene: Scene, app: App) -> None:
    with served(gpreempt.asgi.Hints(app)) as port:
        os.kill(scene.daemon.pid, signal.SIGSTOP)
        try:
            times = []
            for _ in range(20):
                begun = time.monotonic()
                get(port, "/quick")
                times.append(time.monotonic() - begun)
                time.sleep(0.05)
        finally:
            os.kill(scene.daemon.pid, signal.SIGCONT)
    assert sum(length > 0.15 for length in times) <= 1, times


@pytest.mark.parametrize(
    "wrong", [{"paths": "/v1/"}, {"paths": ["v1"]}, {"deadline_us": -1}, {"deadline_us": 2**40}]
)
def test_wrong_settings_are_refused_at_the_start(wrong: Any, app: App) -> None:
    with pytest.raises(gpreempt.InvalidArgument, match=next(iter(wrong))):
        gpreempt.asgi.Hints(app, **wrong)
