"""A process that asks the server something every few milliseconds and reports the slowest response.

`python -m tests.attacks.probe PORT` writes `ready` when both probes were served once, probes until
its standard input ends, and then writes one JSON object: for each probe the number of requests,
the worst latency, and the number of failures. It is a process of its own so that the attacker's
work does not delay it.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass

_PAUSE_S = 0.005
_LIMIT_S = 120.0
_TENSOR = (
    '{"name":"%s","datatype":"FP32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}'
)
_BODY = f'{{"inputs":[{_TENSOR % "INPUT0"},{_TENSOR % "INPUT1"}]}}'.encode()


@dataclass
class Reading:
    count: int = 0
    worst_s: float = 0.0
    failures: int = 0


def request_bytes(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


LIVE = request_bytes("GET", "/v2/health/live")
INFER = request_bytes("POST", "/v2/models/add_sub/infer", _BODY)


class Probe(threading.Thread):
    """Sends one request after another over one connection."""

    def __init__(self, port: int, request: bytes) -> None:
        super().__init__(daemon=True)
        self.reading = Reading()
        self.is_served = threading.Event()
        self._request = request
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_stopping = False

    def run(self) -> None:
        while not self._is_stopping:
            start_s = time.monotonic()
            try:
                self._socket.sendall(self._request)
                is_ok = self._read()
            except OSError:
                self.reading.failures += 1
                return
            self.reading.failures += not is_ok
            if self.is_served.is_set():
                # The first request opens the fast path and wakes the worker up.
                self.reading.count += 1
                self.reading.worst_s = max(self.reading.worst_s, time.monotonic() - start_s)
            self.is_served.set()
            time.sleep(_PAUSE_S)

    def _read(self) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(body) < length:
            body += self._more()
        return head.startswith(b"HTTP/1.1 200")

    def _more(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection of a probe")
        return data

    def stop(self) -> Reading:
        self._is_stopping = True
        self.join(_LIMIT_S)
        self._socket.close()
        return self.reading


def main() -> None:
    port = int(sys.argv[1])
    probes = {"live": Probe(port, LIVE), "infer": Probe(port, INFER)}
    for probe in probes.values():
        probe.start()
    for probe in probes.values():
        probe.is_served.wait(_LIMIT_S)
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps({name: asdict(probe.stop()) for name, probe in probes.items()}), flush=True)


if __name__ == "__main__":
    main()
