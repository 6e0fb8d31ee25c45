"""Attacks on the server's memory: clients that make it hold as much as they can.

In:  the addresses of a running server that was started with FLAGS and serves `identity_fp32`. Out:
     nothing. Whoever runs an attack checks that probes are served meanwhile, that memory grows by
     at most MAX_GROWTH_BYTES, and that nothing is left afterwards.
Rule: an attack closes its connections before it returns.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.transport.http2.hpack import encode_headers
from tests.server.harness import Endpoints

MIB = 1 << 20
LIMIT_S = 120.0
BUDGET_BYTES = 256 * MIB
FLAGS = (f"--request-memory-byte-size={BUDGET_BYTES}",)
MAX_GROWTH_BYTES = BUDGET_BYTES + 192 * MIB
"""How far the memory of the server and its workers may grow: connections, the buffers of sockets
and Python's own come on top of the budget."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
FRAME_BYTES = 16_384


# Connections.


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


def connect_grpc(port: int, initial_window: int = 65_535) -> socket.socket:
    connection = connect(port)
    settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, initial_window)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
    return connection


def call_head(stream_id: int, fields: dict[str, str] | None = None) -> bytes:
    names = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/inference.GRPCInferenceService/ModelInfer",
        ":authority": "attack",
        "te": "trailers",
        "content-type": "application/grpc",
        **(fields or {}),
    }
    block = encode_headers([(name.encode(), value.encode()) for name, value in names.items()])
    return frame(HEADERS, END_HEADERS, stream_id, block)


def call_data(stream_id: int, message: bytes, *, is_compressed: bool = False) -> bytes:
    data = struct.pack(">BI", is_compressed, len(message)) + message
    pieces = [data[i : i + FRAME_BYTES] for i in range(0, len(data), FRAME_BYTES)]
    last = len(pieces) - 1
    return b"".join(
        frame(DATA, END_STREAM if i == last else 0, stream_id, piece)
        for i, piece in enumerate(pieces)
    )


def infer_message(num_bytes: int) -> bytes:
    message = ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[num_bytes // 4])
    message.raw_input_contents.append(bytes(num_bytes))
    return message.SerializeToString()


def http_request(num_bytes: int) -> bytes:
    tensor = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": [num_bytes // 4],
        "parameters": {"binary_data_size": num_bytes},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: attack\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + num_bytes}\r\n\r\n"
    )
    return head.encode() + header + bytes(num_bytes)


@contextlib.contextmanager
def reading(connection: socket.socket) -> Iterator[None]:
    """Reads and drops what the server sends, so that it can always write."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while connection.recv(1 << 16):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)


def send_until_refused(connection: socket.socket, data: bytes) -> None:
    """The server may close the connection at any time: that is its right."""
    with contextlib.suppress(OSError):
        connection.sendall(data)


# Attacks.


def gzip_calls(server: Endpoints, count: int = 60, num_bytes: int = 60 * MIB) -> None:
    """Calls of 58 KB on one connection, each of which unpacks to 60 MB."""
    packed = gzip.compress(infer_message(num_bytes), 9)
    with connect_grpc(server.grpc_port) as connection, reading(connection):
        for number in range(count):
            stream_id = 2 * number + 1
            send_until_refused(
                connection,
                call_head(stream_id, {"grpc-encoding": "gzip"})
                + call_data(stream_id, packed, is_compressed=True),
            )
        time.sleep(3)


def unread_grpc_responses(
    server: Endpoints, connections: int = 8, calls: int = 50, num_bytes: int = 4 * MIB
) -> None:
    """Large responses for clients that grant no window."""
    message = infer_message(num_bytes)
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            connection = stack.enter_context(connect_grpc(server.grpc_port, initial_window=0))
            stack.enter_context(reading(connection))
            for number in range(calls):
                stream_id = 2 * number + 1
                send_until_refused(connection, call_head(stream_id) + call_data(stream_id, message))
        time.sleep(3)


def unread_http_responses(
    server: Endpoints, connections: int = 60, num_bytes: int = 20 * MIB
) -> None:
    """Large responses for clients that never read."""
    request = http_request(num_bytes)
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            connection = stack.enter_context(connect(server.http_port))
            connection.settimeout(10)
            send_until_refused(connection, request)
        time.sleep(3)


def half_bodies(server: Endpoints, connections: int = 60, num_bytes: int = 40 * MIB) -> None:
    """Requests that stop in the middle, over HTTP and gRPC."""
    request, message = http_request(num_bytes), infer_message(num_bytes)
    half_call = call_head(1) + call_data(1, message)[: num_bytes // 2]
    with contextlib.ExitStack() as stack:
        for number in range(connections):
            if number % 2:
                connection = stack.enter_context(connect(server.http_port))
                data = request[: num_bytes // 2]
            else:
                connection = stack.enter_context(connect_grpc(server.grpc_port))
                stack.enter_context(reading(connection))
                data = half_call
            connection.settimeout(10)
            send_until_refused(connection, data)
        time.sleep(2)


def abandoned_requests(server: Endpoints, rounds: int = 3, connections: int = 60) -> None:
    """Clients that send large requests and leave before the response."""
    request = http_request(16 * MIB)
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            for _ in range(connections):
                connection = stack.enter_context(connect(server.http_port))
                connection.settimeout(10)
                send_until_refused(connection, request)
                # A reset, not a close: nothing is delivered any more.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def header_blocks(server: Endpoints, connections: int = 50, blocks: int = 250) -> None:
    """Connections that each send many different header blocks of nearly 32 KB."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(connections):
            connection = stack.enter_context(connect_grpc(server.grpc_port))
            stack.enter_context(reading(connection))
            opened.append(connection)
        for number in range(blocks):
            fields = {"x": f"{number:06}" + "y" * 14_000}
            stream_id = 2 * number + 1
            request = call_head(stream_id, fields) + call_data(stream_id, b"\n\0")
            for connection in opened:
                send_until_refused(connection, request)
        time.sleep(1)


def gzip_bodies(server: Endpoints, connections: int = 60) -> None:
    """HTTP bodies of 60 KB that unpack to 60 MB."""
    packed = gzip.compress(bytes(60 * MIB), 9)
    head = (
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: attack\r\n"
        "Content-Encoding: gzip\r\nInference-Header-Content-Length: 0\r\n"
        f"Content-Length: {len(packed)}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            connection = stack.enter_context(connect(server.http_port))
            send_until_refused(connection, head.encode() + packed)
        time.sleep(3)


MEMORY: dict[str, Callable[[Endpoints], None]] = {
    "gzip-calls": gzip_calls,
    "gzip-bodies": gzip_bodies,
    "unread-grpc-responses": unread_grpc_responses,
    "unread-http-responses": unread_http_responses,
    "half-bodies": half_bodies,
    "abandoned-requests": abandoned_requests,
    "header-blocks": header_blocks,
}
