"""The HTTP side all model servers share: loopback, a free port, streams, and what became of each request."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from model_servers.script import Garbage, Mind, Refuse, Seen, Turn

_MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError)
"""What reading a request raises that lacks a part, or has one of another type."""


class Unexpected(Exception):
    """Raised by a protocol for a request that a real server would refuse, or that no test should make."""


class ModelServer(ABC):
    """Answers a provider's protocol with what a mind says; as a context manager it fails on what was wrong.

    ``seen`` lists the requests that the mind answered, ``problems`` what clients did wrong, ``hung_up`` how many
    streams a client left before their end.
    """

    content_type: ClassVar[str] = "text/event-stream"
    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"

    def __init__(self, mind: Mind) -> None:
        self.mind = mind
        self.seen: list[Seen] = []
        self.problems: list[str] = []
        self.hung_up = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    # Protocols.

    @abstractmethod
    def read(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Seen | bytes:
        """Return what a POST asks of the model, or the JSON answer of a request that is none for the model.

        Raises Unexpected for what the real server would refuse: wrong roles, results of calls nobody made, bad schemas.
        """

    @abstractmethod
    def stream(self, turn: Turn, seen: Seen) -> Iterable[bytes]:
        """Return the events of an answer as they stand on the wire. Raises Unexpected for a tool nobody declared."""

    def whole(self, turn: Turn, seen: Seen) -> bytes:
        """Return an answer that was not asked for as a stream. Raises Unexpected, as ``stream`` does."""
        raise Unexpected(f"no stream was asked of {seen.model}, and only streams are served here: {turn}")

    @abstractmethod
    def error(self, status: int, message: str) -> bytes:
        """Return the body of an HTTP error in the provider's words."""

    def refusal(self, refuse: Refuse) -> bytes:
        """Return the body of a scripted HTTP error."""
        return self.error(refuse.status, f"scripted {refuse.status}")

    # Its life.

    @property
    def url(self) -> str:
        """Where it is, without a path."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        """End it, and every stream that hangs."""
        self._closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            assert not self.problems, self.problems

    # One request.

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class says so
                """Say nothing."""

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                _send(self, 404, owner.error(404, f"no such place: {self.path}"))

            def do_POST(self) -> None:
                with contextlib.suppress(ConnectionError):
                    owner._answer(self)

        return Handler

    def _answer(self, http: BaseHTTPRequestHandler) -> None:
        data = http.rfile.read(int(http.headers.get("Content-Length") or 0))
        try:
            found = self.read(http.path, json.loads(data), dict(http.headers.items()))
        except (Unexpected, *_MALFORMED) as error:
            self.problems.append(f"{http.path}: {_told(error)}")
            _send(http, 400, self.error(400, str(error)))
            return
        if isinstance(found, bytes):
            _send(http, 200, found)
            return
        with self._lock:
            self.seen.append(found)
            try:
                reply = self.mind(found)
            except Exception as error:  # noqa: BLE001 - a mind is a test's: what it did not expect fails the test
                self.problems.append(f"{http.path}: the mind knows no answer: {_told(error)}")
                reply = Refuse(500)
        if isinstance(reply, Refuse):
            after = {} if reply.retry_after is None else {"Retry-After": f"{reply.retry_after:g}"}
            _send(http, reply.status, self.refusal(reply), after)
            return
        if isinstance(reply, Garbage):
            self._send_stream(http, Turn(()), iter([reply.body]))
            return
        try:
            if not found.streams:
                _send(http, 200, self._body(reply, found))
                return
            events = self._events(reply, found)
        except Unexpected as error:
            self.problems.append(str(error))
            _send(http, 400, self.error(400, str(error)))
            return
        self._send_stream(http, reply, iter(events))

    def _body(self, turn: Turn, request: Seen) -> bytes:
        """Return the body of an answer. Raises Unexpected, also where it is to stop in its midst: it has none."""
        if turn.cut_after is not None or turn.hang_after is not None:
            raise Unexpected(f"the script stops a stream, and none was asked for: {turn}")
        return self.whole(turn, request)

    def _events(self, turn: Turn, request: Seen) -> list[bytes]:
        """Return the events of an answer. Raises Unexpected, also where it would end before it is to stop."""
        events = list(self.stream(turn, request))
        if max(turn.cut_after or 0, turn.hang_after or 0) >= len(events):
            raise Unexpected(f"the script stops the stream behind its {len(events)} events: {turn}")
        return events

    def _send_stream(self, http: BaseHTTPRequestHandler, turn: Turn, events: Iterator[bytes]) -> None:
        http.send_response(200)
        http.send_header("Content-Type", self.content_type)
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()
        try:
            for number, event in enumerate(events):
                if number == turn.cut_after:
                    http.close_connection = True
                    http.connection.shutdown(socket.SHUT_RDWR)
                    return
                if number == turn.hang_after:
                    self._hang(http, self.keep_alive if turn.kept_alive else None)
                    return
                if turn.pace_s and number:
                    time.sleep(turn.pace_s)
                _send_chunk(http, event)
            http.wfile.write(b"0\r\n\r\n")
            http.wfile.flush()
        except OSError:
            self.hung_up += 1
            http.close_connection = True

    def _hang(self, http: BaseHTTPRequestHandler, keep_alive: bytes | None) -> None:
        """Say nothing more, or only what keeps the connection open, until the client goes away or the server ends."""
        http.connection.settimeout(0.05)
        while not self._closing.is_set():
            try:
                if not http.connection.recv(1, socket.MSG_PEEK):
                    self.hung_up += 1
                    break
            except TimeoutError:
                if keep_alive is not None:
                    _send_chunk(http, keep_alive)
            except OSError:
                self.hung_up += 1
                break
        http.close_connection = True


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, Unexpected) else f"{type(error).__name__}: {error}"


def event(data: object, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _send_chunk(http: BaseHTTPRequestHandler, data: bytes) -> None:
    http.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
    http.wfile.flush()


def _send(
    http: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    http.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        http.send_header(name, value)
    http.send_header("Content-Length", str(len(body)))
    http.end_headers()
    http.wfile.write(body)
