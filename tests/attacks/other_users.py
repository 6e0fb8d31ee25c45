"""Other users of the machine, and clients behind a proxy of the server's user, attack the console.

They reach the port as the server's user does. Needs root, which alone can act as another user.
"""

from __future__ import annotations

import http.client
import json
import os

from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target
from tests.server.other_user import Call, ask_as_nobody, guarded_calls

_DEPLOY = json.dumps({"source": {"kind": "catalogue", "value": "double"}})


@attack(max_memory_bytes=64 * MIB)
def console_of_another_user(target: Target) -> None:
    """No route that writes, starts something or reads files, with the token or without it, and not
    by leaving before the server has looked who it was."""
    assert os.geteuid() == 0, "only root can act as another user"
    token = target.server.console_headers()
    deploy = Call("POST", "/console/api/models/double/deploy", token, _DEPLOY)
    for headers in ({}, {"x-naiad-console": "x" * 22}, token):
        for call, answer in zip(
            calls := guarded_calls(headers), ask_as_nobody(target.server, calls), strict=True
        ):
            assert answer.status == 403, (call, answer)
    ask_as_nobody(target.server, [deploy] * 300, leaves=True)
    status, body = target.get("/console/api/models/double/deploy")
    assert status == 404, body


@attack(max_memory_bytes=64 * MIB)
def console_through_a_proxy(target: Target) -> None:
    """A proxy of the server's user passes requests on: one that says so, and one that does not and
    whose client has no token. Neither brings code, over any door."""
    files = {"parameters": {"config": "{}", "file:1/model.py": "cHJpbnQoMSk="}}
    for field in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"):
        token = {**target.server.console_headers(), field: "203.0.113.9"}
        for call in guarded_calls({}):
            for headers in (token, {}):
                status = _ask(target, call, headers)
                assert status == 403, (call, headers, status)
        body = json.dumps(files).encode()
        json_type = {"Content-Type": "application/json"}
        path = "/v2/repository/models/evil/load"
        status, text = target.post(path, body, {field: "203.0.113.9", **json_type})
        assert (status, b"through a proxy" in text) == (403, True), (field, status, text)


def _ask(target: Target, call: Call, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", target.server.http_port, timeout=60)
    try:
        names = {"Content-Type": "application/json", **headers}
        connection.request(call.method, call.path, call.body, names)
        return connection.getresponse().status
    finally:
        connection.close()
