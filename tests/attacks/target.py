"""The server under attack: ways to send it anything, and readings of what it holds.

Every request goes over a connection of its own unless the attack opens one itself, so that nothing
of the attacker is left when an attack ends.
"""

from __future__ import annotations

import http.client
import os
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import grpc

from tests.server.harness import Server, process_tree, serving_processes

_LIMIT_S = 180.0
_SERVICE = "/inference.GRPCInferenceService/"


class Target:
    def __init__(self, server: Server, headers: Mapping[str, str] | None = None) -> None:
        """`headers` go with every request of `post`, `get` and `call`; their names are in lower
        case."""
        self.server = server
        self._headers = dict(headers or {})
        self.sent_bytes = 0

    # Requests.

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        return self._send("POST", path, body, headers)

    def put(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        return self._send("PUT", path, body, headers)

    def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.http_port, timeout=_LIMIT_S
        )
        try:
            self.sent_bytes += len(body)
            connection.request(method, path, body, {**self._headers, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://{self.server.http}{path}", headers=self._headers)
        return self.server.fetch(request, _LIMIT_S)

    def call(self, method: str, message: bytes, compression: grpc.Compression | None = None) -> str:
        """Calls a unary method with the bytes of a message; returns the status and its text."""
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(self.server.grpc, options) as channel:
            self.sent_bytes += len(message)
            function = channel.unary_unary(_SERVICE + method, None, None)
            try:
                metadata = list(self._headers.items())
                function(message, timeout=_LIMIT_S, metadata=metadata, compression=compression)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
            return "OK"

    def connect(self, kind: str = "http") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port(kind)), timeout=_LIMIT_S)

    # Readings.

    @property
    def pid(self) -> int:
        return self.server.pid

    def processes(self) -> set[int]:
        return set(process_tree(self.pid))

    # The server process and its frontend processes count together.

    def num_descriptors(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in serving_processes(self.server))

    def status_bytes(self, field: str) -> int:
        """A field of /proc/PID/status, such as VmHWM, in bytes."""
        return sum(_status_bytes(pid, field) for pid in serving_processes(self.server))

    def reset_peak(self) -> None:
        for pid in serving_processes(self.server):
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def metric(self, name: str) -> float:
        """The sum of all series of a metric; 0 when the page does not have it."""
        page = self.server.get("/metrics", "metrics")[1].decode()
        rows = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)
