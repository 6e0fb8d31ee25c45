"""A client that a test runs on a host of its own:

    python -m tests.network.client KIND ADDRESS NUMBER...

It prints `ready` when its first items have come, and `complete` when all have, in order.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator

import numpy as np
import tritonclient.grpc as grpc_client


def int32(name: str, value: int) -> dict[str, object]:
    return {"name": name, "shape": [1], "datatype": "INT32", "data": [value]}


def sse_items(address: str, count: int, pause_ms: int, size: int, name: str) -> Iterator[int]:
    connection = http.client.HTTPConnection(address)
    body = {"id": name, "COUNT": count, "PAUSE_MS": pause_ms, "SIZE": size}
    connection.request("POST", "/v2/models/ticker/generate_stream", json.dumps(body))
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            yield int(json.loads(line[6:])["INDEX"])


def grpc_items(address: str, count: int, pause_ms: int, size: int, name: str) -> Iterator[int]:
    import queue

    received: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()
    client = grpc_client.InferenceServerClient(address)
    client.start_stream(lambda result, error: received.put((result, error)))
    inputs = []
    for field, value in (("COUNT", count), ("PAUSE_MS", pause_ms), ("SIZE", size)):
        tensor = grpc_client.InferInput(field, [1], "INT32")
        tensor.set_data_from_numpy(np.array([value], np.int32))
        inputs.append(tensor)
    client.async_stream_infer("ticker", inputs, request_id=name)
    for _ in range(count):
        result, error = received.get()
        assert error is None, error
        yield int(result.as_numpy("INDEX")[0])  # type: ignore[attr-defined]
    client.stop_stream()


def big_values(address: str, size: int) -> Iterator[int]:
    connection = http.client.HTTPConnection(address)
    body = {
        "inputs": [int32("SIZE", size)],
        "outputs": [{"name": "VALUES", "parameters": {"binary_data": True}}],
    }
    connection.request("POST", "/v2/models/big/infer", json.dumps(body))
    response = connection.getresponse()
    head = int(response.headers["Inference-Header-Content-Length"])
    response.read(head)
    index = 0
    while index < size:
        values = np.frombuffer(response.read(4 * min(1 << 16, size - index)), np.int32)
        assert np.array_equal(values, np.arange(index, index + len(values)))
        yield index
        index += len(values)


def main() -> None:
    kind, address, *numbers = sys.argv[1:]
    if kind == "big":
        items = big_values(address, int(numbers[0]))
        expected = range(0, int(numbers[0]), 1 << 16)
    else:
        count, pause_ms, size = map(int, numbers)
        read = sse_items if kind == "sse" else grpc_items
        items = read(address, count, pause_ms, size, f"{kind}-{pause_ms}")
        expected = range(count)
    for index, item in zip(expected, items, strict=True):
        assert index == item, f"expected item {index}, got {item}"
        if index == 0:
            print("ready", flush=True)
    print("complete", flush=True)


if __name__ == "__main__":
    main()
