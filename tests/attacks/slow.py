"""Slow and silent clients: every deadline of a connection, resets that the client provokes, and
many Health.Watch calls.

In:  a running server that was started with FLAGS. Out: an AssertionError if the server keeps what
     it should have closed.
Rule: an attack opens many connections, makes no progress on them, and leaves nothing open.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from naiad.transport.http2.frame import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame_header,
)
from naiad.transport.http2.hpack import encode_headers
from tests.server.harness import Endpoints, Server, serving_processes

REQUEST_TIMEOUT_S = 2.0
IDLE_TIMEOUT_S = 3.0
FLAGS = (
    f"--http-request-timeout-secs={REQUEST_TIMEOUT_S}",
    f"--http-keepalive-timeout-secs={IDLE_TIMEOUT_S}",
    f"--grpc-request-timeout-secs={REQUEST_TIMEOUT_S}",
    f"--grpc-idle-timeout-secs={IDLE_TIMEOUT_S}",
    f"--grpc-stream-idle-timeout-secs={IDLE_TIMEOUT_S}",
)
NUM_CONNECTIONS = 50
LIMIT_S = 30.0
"""Far beyond the deadlines, and far below the time for which a server without them waits."""
_DRIP_INTERVAL_S = 0.3

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
_SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"
_WATCH = "/grpc.health.v1.Health/Watch"
_EMPTY_MESSAGE = bytes(5)
WATCH_S = 2.5
MAX_WATCH_CPU = 0.05
"""The part of a core that the server may use while nothing changes."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_header.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def headers(path: str, stream_id: int, flags: int = END_HEADERS) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "attack",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = encode_headers([(name.encode(), value.encode()) for name, value in fields.items()])
    return frame(HEADERS, flags, stream_id, block)


_GREETING = PREFACE + frame(SETTINGS, 0, 0)
_CALL = headers(_SERVER_LIVE, 1) + frame(DATA, END_STREAM, 1, _EMPTY_MESSAGE)


class Clients:
    """Connections on which the server must get tired of waiting."""

    def __init__(self, server: Endpoints, kind: str, count: int = NUM_CONNECTIONS) -> None:
        self.received = b""
        """What the server sent on all of them."""
        self._selector = selectors.DefaultSelector()
        self._sockets: set[socket.socket] = set()
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", server.port(kind)), timeout=LIMIT_S)
            self._sockets.add(one)
            self._selector.register(one, selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        for one in list(self._sockets):
            try:
                one.sendall(data)
            except OSError:
                self._drop(one)

    def read(self, limit_s: float) -> None:
        """Reads what comes within `limit_s`, or until the server has closed every connection."""
        end_s = time.monotonic() + limit_s
        while self._sockets and (left_s := end_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    data = one.recv(1 << 16)
                except OSError:
                    data = b""
                self.received += data
                if not data:
                    self._drop(one)

    def expect_closed(self, drip: bytes = b"", limit_s: float = LIMIT_S) -> None:
        """The server closes every connection, although `drip` arrives all the time."""
        end_s = time.monotonic() + limit_s
        while self._sockets and time.monotonic() < end_s:
            if drip:
                self.send(drip)
                self.read(_DRIP_INTERVAL_S)
            else:
                self.read(end_s - time.monotonic())
        assert not self._sockets, f"{len(self._sockets)} connections are open after {limit_s} s"

    def close(self) -> None:
        for one in list(self._sockets):
            self._drop(one)
        self._selector.close()

    def _drop(self, one: socket.socket) -> None:
        self._sockets.discard(one)
        self._selector.unregister(one)
        one.close()


@contextlib.contextmanager
def clients(server: Endpoints, kind: str, count: int = NUM_CONNECTIONS) -> Iterator[Clients]:
    ours = Clients(server, kind, count)
    try:
        yield ours
    finally:
        ours.close()


# HTTP/1.1.


def silent_http(server: Endpoints) -> None:
    with clients(server, "http") as ours:
        ours.expect_closed()
        assert not ours.received


def empty_line_drips(server: Endpoints) -> None:
    with clients(server, "http") as ours:
        ours.expect_closed(b"\r\n")


def head_drips(server: Endpoints) -> None:
    with clients(server, "http") as ours:
        ours.send(b"POST /v2/models/add_sub/infer HTTP/1.1\r\nX: ")
        ours.expect_closed(b"x")
        assert b" 408 " in ours.received


def body_drips(server: Endpoints) -> None:
    with clients(server, "http") as ours:
        ours.send(b"POST /v2/models/add_sub/infer HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        ours.expect_closed(b"x")
        assert b" 408 " in ours.received


def chunk_drips(server: Endpoints) -> None:
    with clients(server, "http") as ours:
        ours.send(b"POST /v2/models/add_sub/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        ours.expect_closed(b"1\r\nx\r\n")
        assert b" 408 " in ours.received


def idle_http(server: Endpoints) -> None:
    with clients(server, "http") as ours:
        ours.send(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        ours.expect_closed()
        assert b" 200 OK" in ours.received


# HTTP/2.


def silent_grpc(server: Endpoints) -> None:
    with clients(server, "grpc") as ours:
        ours.expect_closed()


def preface_only(server: Endpoints) -> None:
    with clients(server, "grpc") as ours:
        ours.send(_GREETING)
        ours.expect_closed()


def headers_without_end(server: Endpoints) -> None:
    with clients(server, "grpc") as ours:
        ours.send(_GREETING + _CALL + headers(_INFER, 3, 0))
        ours.expect_closed()


def header_drips(server: Endpoints) -> None:
    with clients(server, "grpc") as ours:
        ours.send(_GREETING + _CALL + headers(_INFER, 3, 0))
        ours.send(frame(CONTINUATION, 0, 3, b"x" * 1000)[:9])
        ours.expect_closed(b"x")


def half_frames(server: Endpoints) -> None:
    for begun in (
        frame(DATA, 0, 1, bytes(1000))[:500],
        frame(SETTINGS, 0, 0, bytes(6))[:12],
        frame(0x77, 0, 0, bytes(1000))[:500],
        b"\0",
    ):
        with clients(server, "grpc") as ours:
            ours.send(_GREETING + _CALL + begun)
            ours.expect_closed()


def message_drips(server: Endpoints) -> None:
    """Whole frames of one byte each: only the message makes no progress worth the name."""
    with clients(server, "grpc") as ours:
        ours.send(_GREETING + headers(_INFER, 1) + frame(DATA, 0, 1, b"\0\0\0\x10\0"))
        ours.expect_closed(frame(DATA, 0, 1, b"x"))


def calls_without_data(server: Endpoints) -> None:
    calls = b"".join(headers(_INFER, stream_id) for stream_id in range(1, 200, 2))
    with clients(server, "grpc") as ours:
        ours.send(_GREETING + calls)
        ours.expect_closed()


def idle_streams(server: Endpoints) -> None:
    with clients(server, "grpc") as ours:
        ours.send(_GREETING + headers(_STREAM_INFER, 1))
        ours.expect_closed()


def idle_grpc(server: Endpoints) -> None:
    with clients(server, "grpc") as ours:
        ours.send(_GREETING + _CALL)
        ours.expect_closed()


def made_you_reset(server: Endpoints) -> None:
    """Trailers that do not end their stream make the server reset it. No frame of this attack is a
    control frame, whose number is limited anyway."""
    fault = b"".join(2 * headers(_INFER, stream_id) for stream_id in range(1, 20_000, 2))
    with clients(server, "grpc", 4) as ours:
        ours.send(_GREETING + fault)
        ours.expect_closed()
        assert b"too many streams were opened and reset" in ours.received


# Health.Watch.


def many_watches(server: Server) -> None:
    """8,000 calls that all wait for a change. The 101st of a connection is refused."""
    watches = b"".join(
        headers(_WATCH, stream_id) + frame(DATA, END_STREAM, stream_id, _EMPTY_MESSAGE)
        for stream_id in range(1, 202, 2)
    )
    before = _cpu_share(server)  # others may send requests all the time
    with clients(server, "grpc", 80) as ours:
        ours.send(_GREETING + watches)
        ours.read(3.0)
        assert b"the server allows 100 Watch calls on one connection" in ours.received
        used = _cpu_share(server) - before
    assert used < MAX_WATCH_CPU, f"8,000 Watch calls take {used:.0%} of a core"


def _cpu_share(server: Server) -> float:
    """Returns the part of a core that the processes use that serve."""
    pids = serving_processes(server)
    used_s, start_s = sum(map(_cpu_s, pids)), time.monotonic()
    time.sleep(WATCH_S)
    return (sum(map(_cpu_s, pids)) - used_s) / (time.monotonic() - start_s)


def _cpu_s(pid: int) -> float:
    """The CPU time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


SLOW: tuple[Callable[[Server], None], ...] = (
    silent_http,
    empty_line_drips,
    head_drips,
    body_drips,
    chunk_drips,
    idle_http,
    silent_grpc,
    preface_only,
    headers_without_end,
    header_drips,
    half_frames,
    message_drips,
    calls_without_data,
    idle_streams,
    idle_grpc,
    made_you_reset,
    many_watches,
)
