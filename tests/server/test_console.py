"""The console on a real server: it stops with pages open, and costs nothing without them."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path

from tests.server.harness import Server, launch_naiad, naiad

ROOT = Path(__file__).parents[2]
EXAMPLES = str(ROOT / "examples" / "repository")
OPTIONS = ["--model-control-mode=explicit", "--load-model=add_sub"]


def open_events(server: Server) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    connection.request("GET", "/console/api/events")
    response = connection.getresponse()
    assert response.status == 200
    return connection, response


def read_event(response: http.client.HTTPResponse) -> dict[str, object]:
    while True:
        line = response.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            assert isinstance(event, dict)
            return event


def test_a_server_with_an_open_page_stops_at_once() -> None:
    with naiad([EXAMPLES], [*OPTIONS, "--exit-timeout-secs=30"]) as server:
        connection, response = open_events(server)
        read_event(response)
        start_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start_s < 10
        while response.readline():
            pass
        connection.close()


def test_shows_instances_and_models_that_are_not_loaded() -> None:
    with naiad([EXAMPLES], OPTIONS) as server:
        status, body = server.get("/console/api/state")
        assert status == 200
        rows = {row["name"]: row for row in json.loads(body)["models"]}
        (instance,) = rows["add_sub"]["instances"]
        assert (rows["add_sub"]["state"], instance["state"]) == ("READY", "ready")
        assert instance["pid"] > 0
        assert instance["memory_bytes"] > 1 << 20
        assert rows["digits"]["state"] == ""


def test_the_console_can_be_switched_off() -> None:
    with naiad([EXAMPLES], [*OPTIONS, "--console=false"]) as server:
        assert server.get("/console")[0] == 404
        assert server.get("/console/api/state")[0] == 404


def test_a_server_that_others_reach_needs_keys_for_the_console() -> None:
    server = launch_naiad([EXAMPLES], [*OPTIONS, "--http-address=0.0.0.0", "--console=true"])
    try:
        server.wait_for_line("--console=true requires API keys")
    finally:
        server.stop()
