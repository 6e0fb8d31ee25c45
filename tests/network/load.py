"""Clients of a router, on a host of their own: closed loops for some seconds.

    python -m tests.network.load ADDRESS HTTP_PORT GRPC_PORT SECONDS

Writes one JSON object per request: its kind, its id, when it began and how long it took in seconds
since the start, and the error, which is empty for a right response.
"""

from __future__ import annotations

import http.client
import itertools
import json
import queue
import sys
import threading
import time
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

_LIMIT_S = 100.0
_THINK_S = 0.05
_NUM_ITEMS = 20
_PADDING = 3000
"""Requests are larger than a frame, so that a black hole for large ones meets them."""


class Clients:
    def __init__(self, address: str, http_port: int, grpc_port: int, seconds: float) -> None:
        self._address, self._http_port, self._grpc_port = address, http_port, grpc_port
        self._start_s = time.monotonic()
        self._end_s = self._start_s + seconds
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def run(self) -> None:
        kinds = [
            (self._http, "count"), (self._http, "count"), (self._http, "once"),
            (self._grpc, "count"), (self._grpc, "count"), (self._grpc, "once"),
            (self._grpc_stream, "ticker"), (self._sse, "ticker"),
        ]  # fmt: skip
        threads = [threading.Thread(target=self._loop, args=kind) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _loop(self, ask: Any, model: str) -> None:
        while time.monotonic() < self._end_s:
            number = next(self._numbers)
            began_s = time.monotonic()
            try:
                error = ask(model, number)
            except (OSError, http.client.HTTPException, InferenceServerException) as caught:
                error = f"{type(caught).__name__}: {caught}"
            row = {
                "kind": f"{ask.__name__.strip('_')} {model}",
                "id": number,
                "began_s": round(began_s - self._start_s, 2),
                "took_s": round(time.monotonic() - began_s, 2),
                "error": error,
            }
            with self._lock:
                print(json.dumps(row), flush=True)
            time.sleep(_THINK_S)

    def _body(self, number: int) -> dict[str, Any]:
        shape = [_PADDING]
        tensor = {"name": "X", "datatype": "INT32", "shape": shape, "data": [number] * _PADDING}
        return {"id": str(number), "inputs": [tensor]}

    def _http(self, model: str, number: int) -> str:
        connection = http.client.HTTPConnection(self._address, self._http_port, timeout=_LIMIT_S)
        try:
            path = f"/v2/models/{model}/infer"
            connection.request("POST", path, json.dumps(self._body(number)))
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            return f"status {response.status}: {body.decode()[:200]}"
        found = json.loads(body)["outputs"][0]["data"][0]
        return "" if found == number + 1 else f"WRONG: {found}"

    def _sse(self, model: str, number: int) -> str:
        connection = http.client.HTTPConnection(self._address, self._http_port, timeout=_LIMIT_S)
        try:
            path = f"/v2/models/{model}/generate_stream"
            body = {"X": [number] * _PADDING}
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        found = []
        for line in text.splitlines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return str(event["error"])[:200]
                found.append(event["Y"])
        return _judge(found, number) if response.status == 200 else f"status {response.status}"

    def _input(self, number: int) -> list[Any]:
        tensor = grpc_client.InferInput("X", [_PADDING], "INT32")
        tensor.set_data_from_numpy(np.full(_PADDING, number, np.int32))
        return [tensor]

    def _grpc(self, model: str, number: int) -> str:
        client = grpc_client.InferenceServerClient(f"{self._address}:{self._grpc_port}")
        try:
            result = client.infer(
                model, self._input(number), request_id=str(number), client_timeout=_LIMIT_S
            )
        finally:
            client.close()
        found = int(result.as_numpy("Y")[0])
        return "" if found == number + 1 else f"WRONG: {found}"

    def _grpc_stream(self, model: str, number: int) -> str:
        client = grpc_client.InferenceServerClient(f"{self._address}:{self._grpc_port}")
        items: queue.Queue[tuple[Any, Any]] = queue.Queue()
        found: list[int] = []
        try:
            client.start_stream(lambda result, error: items.put((result, error)))
            client.async_stream_infer(model, self._input(number), request_id=str(number))
            while len(found) < _NUM_ITEMS:
                result, error = items.get(timeout=_LIMIT_S)
                if error is not None:
                    return str(error)[:200]
                found.append(int(result.as_numpy("Y")[0]))
        except queue.Empty:
            return f"no item within {_LIMIT_S} s"
        finally:
            client.close()
        return _judge(found, number)


def _judge(found: list[int], number: int) -> str:
    wanted = [number + item for item in range(_NUM_ITEMS)]
    return "" if found == wanted else f"WRONG: {found}"


if __name__ == "__main__":
    Clients(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])).run()
