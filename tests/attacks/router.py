"""Requests hidden in the bodies of others, sent through a router (see also router_heads.py)."""

from __future__ import annotations

import http.client
import json
import socket

from tests.attacks.attack import MIB, attack
from tests.attacks.probe import INFER, request_bytes
from tests.attacks.target import Target
from tests.server.gates import eventually
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags

_LIMIT_S = 30.0
_HIDDEN = (
    request_bytes("POST", "/v2/repository/models/add_sub/unload", b"{}")
    + INFER
    + b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
)
_NAMES = (
    "content-length", "Content-Length", "CONTENT-LENGTH, close", "host", "transfer-encoding",
    "content-length, transfer-encoding", "content-type", "keep-alive", "expect", "\tcontent-length",
    "x, content-length ,y", "inference-header-content-length", "te, trailer, upgrade", "*",
)  # fmt: skip


@attack(64 * MIB, flags=("--model-control-mode=explicit", "--load-model=*"))
def router_smuggling(target: Target) -> None:
    """A body is never a request, whatever `Connection` names."""
    ports = free_ports()
    replica = f"--replica=http://127.0.0.1:{target.server.http_port}"
    command = naiad_command("router", *port_flags(ports), replica)
    router = Server(command, ports, naiad_environment()).wait_started()
    try:
        eventually(lambda: router.get("/v2/health/ready")[0] == 200, "the router is not ready")
        _smuggle(target, ports[0])
    finally:
        router.stop()


def _smuggle(target: Target, port: int) -> None:
    for name in _NAMES:
        for framing in ("length", "chunked"):
            with socket.create_connection(("127.0.0.1", port), _LIMIT_S) as client:
                head = (
                    f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: x\r\nConnection: {name}\r\n"
                )
                if framing == "length":
                    body = f"Content-Length: {len(_HIDDEN)}\r\n\r\n".encode() + _HIDDEN
                else:
                    body = b"Transfer-Encoding: chunked\r\n\r\n"
                    body += b"%x\r\n%b\r\n0\r\n\r\n" % (len(_HIDDEN), _HIDDEN)
                client.sendall(head.encode() + body)
                target.sent_bytes += len(body)
                answer = client.recv(65536)
                # The hidden requests would have status 200.
                assert answer[9:10] in (b"4", b"5"), f"{name}: {answer[:60]!r}"
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
            # Another client gets its own response, and the model is still there.
            connection.request("POST", "/v2/models/add_sub/infer", INFER.partition(b"\r\n\r\n")[2])
            response = connection.getresponse()
            outputs = json.loads(response.read())["outputs"]
            assert response.status == 200, f"{name}: status {response.status}"
            assert outputs[0]["data"][0] == 2, f"{name}: the response is {outputs}"
            connection.close()
    assert target.get("/v2/models/add_sub/ready")[0] == 200
