"""FIFOs that make a model's execute wait until the test lets it continue, and calls that run while
the test does something else.

A FIFO shows exactly when the other side has arrived: opening one waits for the other end, and end
of file means that the other end was closed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server.harness import Endpoints

LIMIT_S = 120.0
_numbers = itertools.count()


class Gate:
    """A FIFO that a model of the `gates` repository reads. `wait_entered` returns when the model
    has opened it; `open` lets the model continue."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"gate{next(_numbers)}"
        os.mkfifo(self.path)
        self._writer = -1

    def wait_entered(self) -> None:
        opened = threading.Event()

        def open_writer() -> None:
            self._writer = os.open(self.path, os.O_WRONLY)
            opened.set()

        threading.Thread(target=open_writer, daemon=True).start()
        if not opened.wait(LIMIT_S):
            raise AssertionError(f"no model has opened {self.path}")

    def open(self) -> None:
        os.close(self._writer)
        self._writer = -1

    def is_waited_at(self) -> bool:
        """True if a model waits at this gate now."""
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True


class Hold:
    """A file. While it exists, a model whose `execute` is `statement` waits."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"hold{next(_numbers)}"
        self._path.touch()

    @property
    def statement(self) -> str:
        exists = f"__import__('os').path.exists({str(self._path)!r})"
        return f"[time.sleep(0.005) for _ in iter(lambda: {exists}, False)]"

    def release(self) -> None:
        self._path.unlink(missing_ok=True)


class Report:
    """A FIFO that a model writes, read with a time limit."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.path = folder / (name or f"report{next(_numbers)}")
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self, until: bytes = b"") -> bytes:
        """Reads up to and including `until`, or until the writer closes it."""
        text = b""
        while not (until and until in text):
            if not select.select([self._reader], [], [], LIMIT_S)[0]:
                raise AssertionError(f"nothing more than {text!r} was reported")
            data = os.read(self._reader, 4096)
            if not data:
                break
            text += data
        return text

    def has_output(self) -> bool:
        """True if a model has written something, or has opened and closed the FIFO."""
        return bool(select.select([self._reader], [], [], 0)[0])

    def close(self) -> None:
        os.close(self._reader)


class HttpCall:
    """One request on its own connection. The test can wait for the response or disconnect."""

    def __init__(self, server: Endpoints, path: str, body: object) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=LIMIT_S)
        self.connection.request("POST", path, json.dumps(body))

    def response(self) -> tuple[int, dict[str, str], Any]:
        try:
            response = self.connection.getresponse()
            body = response.read()
        finally:
            self.connection.close()
        return response.status, dict(response.headers), json.loads(body) if body else None

    def disconnect(self) -> None:
        self.connection.close()

    def has_response(self) -> bool:
        return bool(select.select([self.connection.sock], [], [], 0)[0])


def text(name: str, *values: str, is_batched: bool = True) -> dict[str, Any]:
    shape = [1, len(values)] if is_batched else [len(values)]
    return {"name": name, "datatype": "BYTES", "shape": shape, "data": list(values)}


def call_gate(
    server: Endpoints, gate: Gate | None, model: str = "gate", **parameters: Any
) -> HttpCall:
    """Sends a request that waits at the gate, or does not wait if `gate` is None."""
    is_batched = model not in ("gate_plain", "gate_async")
    body = {
        "inputs": [text("GO", str(gate.path) if gate else "", is_batched=is_batched)],
        "parameters": parameters,
    }
    return HttpCall(server, f"/v2/models/{model}/infer", body)


def number(response: tuple[int, dict[str, str], Any]) -> int:
    status, _, body = response
    assert status == 200, body
    return int(body["outputs"][0]["data"][0])


def eventually(is_true: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Polls until `is_true`, for conditions without an event, such as a metric or a model's
    readiness."""
    end = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.005)


def pending(server: Endpoints, model: str) -> int:
    """Returns how many requests wait in the model's queue, according to the metrics."""
    page = server.get("/metrics", "metrics")[1].decode()
    for line in page.splitlines():
        if line.startswith("nv_inference_pending_request_count{") and f'model="{model}"' in line:
            return int(float(line.split()[-1]))
    return 0


def in_thread(action: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    """Runs `action` in a thread. The future gets its result or exception."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
