"""A client with minimal CPU cost: one prepared HTTP request, pipelined over plain sockets.

All requests are the same, so all responses have the same length, and the client only counts bytes.
It fails if the first status is not 200 or the number of bytes is wrong.
"""

from __future__ import annotations

import json
import socket
import threading

import numpy as np

ADD_SUB = json.dumps(
    {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": list(range(16))},
            {"name": "INPUT1", "datatype": "FP32", "shape": [1, 16], "data": [1] * 16},
        ]
    }
).encode()


def small_request() -> bytes:
    head = (
        "POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(ADD_SUB)}\r\n\r\n"
    )
    return head.encode() + ADD_SUB


def large_request(num_bytes: int) -> bytes:
    """Returns a request to identity_fp32 with a binary FP32 tensor as input and output."""
    tensor = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": [num_bytes // 4],
        "parameters": {"binary_data_size": num_bytes},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + num_bytes}\r\n\r\n"
    )
    return head.encode() + header + np.arange(num_bytes // 4, dtype=np.float32).tobytes()


def response_length(connection: socket.socket, request: bytes) -> int:
    """Sends one request and returns the length of its response."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"unexpected response: {data[:300]!r}")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    left = length - len(body)
    while left > 0:
        left -= len(receive(connection))
    return len(head) + 4 + length


def receive(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 20)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


def send_many(port: int, request: bytes, count: int, connections: int = 4, depth: int = 16) -> None:
    """Sends `count` requests in total, `depth` at a time on each connection."""
    errors: list[BaseException] = []

    def work(share: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                length = response_length(connection, request)
                done = 1
                while done < share:
                    burst = min(depth, share - done)
                    connection.sendall(request * burst)
                    left = length * burst
                    while left > 0:
                        left -= len(receive(connection))
                    if left < 0:
                        raise RuntimeError("the responses have more bytes than expected")
                    done += burst
        except BaseException as error:
            errors.append(error)

    shares = [
        count // connections + (number < count % connections) for number in range(connections)
    ]
    threads = [threading.Thread(target=work, args=(share,)) for share in shares if share]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
