"""Requests of another user of this machine, and all routes of the console that such a user must not
use. Only root can send them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple, cast

from naiad.console.console import Console, ConsoleOptions
from naiad.repository.repository import Repository
from naiad.trace.tracing import Tracing
from tests.server.harness import Endpoints

_AS_NOBODY = """\
import encodings.idna, http.client, json, os, sys
server, leaves, calls = json.load(sys.stdin)
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
answers = []
for method, path, headers, body in calls:
    connection = http.client.HTTPConnection(server)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    if leaves:
        connection.close()
        continue
    response = connection.getresponse()
    answers.append((response.status, response.read().decode()))
print(json.dumps(answers))
"""
"""Other users may not be able to read the interpreter, so it imports everything first."""


class Call(NamedTuple):
    method: str
    path: str
    headers: dict[str, str] = {}
    body: str = ""


class Answer(NamedTuple):
    status: int
    body: str


def ask_as_nobody(
    server: Endpoints, calls: Iterable[Call], *, leaves: bool = False
) -> list[Answer]:
    """`leaves` closes each connection at once, without reading the response."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY],
        input=json.dumps([server.http, leaves, list(calls)]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [Answer(*answer) for answer in json.loads(done.stdout)]


def guarded_routes() -> list[tuple[str, str]]:
    """(method, path) of every route of the console that writes, starts or reads files."""
    console = Console(
        cast(Repository, None), lambda: True, lambda _name: {}, None, ConsoleOptions(), Tracing()
    )
    values = {"id": "1", "draft": "0" * 16, "model": "add_sub"}

    def path(pattern: str) -> str:
        return re.sub(r"\(\?P<(\w+)>.*?\)", lambda match: values[match[1]], pattern)

    return [
        (entry.method, path(entry.pattern))
        for entry in console.entries()
        if (entry.method != "GET" or entry.reads_files) and entry.pattern != "/console/api/session"
    ]


def guarded_calls(headers: dict[str, str]) -> list[Call]:
    return [
        Call(method, path, headers, "" if method == "GET" else "{}")
        for method, path in guarded_routes()
    ]
