"""Hints for each request of an ASGI application (FastAPI, Starlette, Quart, Django, Litestar).

>>> app = gpreempt.asgi.Hints(app, paths=["/v1/"])
>>> app.add_middleware(gpreempt.asgi.Hints, paths=["/v1/"])  # FastAPI, Starlette

The hint is given for the process that runs the application. Where another process uses the GPU, as
in vLLM, give that one a priority instead. A lifespan is not a request and passes unchanged.
"""

from __future__ import annotations

from typing import Any, Awaitable, Callable, MutableMapping, Optional, Sequence

from ._call import whole
from .errors import InvalidArgument
from .hint import _DEADLINE_US_MAX, Critical

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Hints:
    """Middleware that gives a hint for each HTTP request and each message of a WebSocket.

    The hint of an HTTP request begins when its body has arrived, so a slow upload reserves nothing,
    and ends before the last part of the answer is sent, so a slow reader reserves nothing either.
    That of a WebSocket begins with a message and ends when the application waits for the next one.
    An exception, a cancellation, and a client that goes away while the application computes, end
    it when the application returns.

    `paths` are the beginnings of the paths that use the GPU; without them every request counts,
    health checks too. `deadline_us` is that of critical().
    """

    def __init__(
        self, app: App, *, deadline_us: int = 0, paths: Optional[Sequence[str]] = None
    ) -> None:
        self.app = app
        self._deadline_us = whole(deadline_us, "deadline_us", 0, _DEADLINE_US_MAX)
        if isinstance(paths, str) or not all(path.startswith("/") for path in paths or ()):
            raise InvalidArgument(f"paths is {paths!r}; it must be a list such as ['/v1/']")
        self._paths = None if paths is None else tuple(paths)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Runs the application for a scope."""
        kind = scope["type"]
        if kind not in ("http", "websocket") or not self._counts(scope):
            await self.app(scope, receive, send)
            return
        request = _Request(self._deadline_us)
        try:
            if kind == "http":
                if not _has_body(scope):
                    request.begin()
                wrapped = _http(request, receive, send)
            else:
                wrapped = _websocket(request, receive), send
            await self.app(scope, *wrapped)
        finally:
            request.end()

    def _counts(self, scope: MutableMapping[str, Any]) -> bool:
        return self._paths is None or scope["path"].startswith(self._paths)


class _Request:
    """The hint of a request, which begins and ends at most once at a time."""

    __slots__ = ("_block", "_is_open")

    def __init__(self, deadline_us: int) -> None:
        self._block = Critical(deadline_us, False)
        self._is_open = False

    def begin(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._block.__enter__()

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._block.__exit__(None, None, None)


def _has_body(scope: MutableMapping[str, Any]) -> bool:
    """Whether a body is announced. One that is not, in HTTP/2, only begins the hint earlier."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _http(request: _Request, receive: Receive, send: Send) -> tuple[Receive, Send]:
    async def received() -> Message:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            request.begin()
        return message

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            request.end()
        await send(message)

    return received, sent


def _websocket(request: _Request, receive: Receive) -> Receive:
    async def received() -> Message:
        request.end()
        message = await receive()
        if message["type"] == "websocket.receive":
            request.begin()
        return message

    return received
