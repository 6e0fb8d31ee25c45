"""The console of a router: pages, signing in, and who may use the admin API behind it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server
from tests.server.router_fleet import Fleet
from tests.server.test_deploy import create_key


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Fleet(tmp_path_factory.mktemp("router-console"))
    try:
        yield one.route()
    finally:
        one.stop()


def ask(router: Server, path: str, **headers: str) -> tuple[int, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{router.http}{path}", headers=names)
    return router.fetch(request)[:2]


def test_a_router_has_the_page_of_its_nodes_only(router: Server) -> None:
    status, page = ask(router, "/console")
    assert (status, b'"console/static/app.js"' in page) == (200, True)
    assert ask(router, "/console/static/nodes.js")[0] == 200
    session = json.loads(ask(router, "/console/api/session")[1])
    assert (session["pages"], session["is_signed_in"]) == (["nodes"], True)
    assert ask(router, "/console/api/state")[0] == 404


def test_a_page_of_another_name_cannot_act_as_the_operator(router: Server) -> None:
    """A name of an attacker that was made to point to this machine."""
    status, body = ask(router, "/router/replicas", Host="evil.example")
    assert (status, b"open to this machine only" in body) == (403, True)
    for host in ("127.0.0.1:8000", "localhost", "[::1]:8000"):
        assert ask(router, "/router/replicas", Host=host)[0] == 200


def test_a_client_behind_a_proxy_is_not_the_operator(router: Server) -> None:
    for field in ("Forwarded", "X_Forwarded_For", "X_Real_IP", "Via"):
        status, body = ask(router, "/router/replicas", **{field: "203.0.113.9"})
        assert (status, b"that of a proxy" in body) == (403, True)


def test_a_router_with_keys_has_sessions(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = create_key(file, "watcher", "--scopes", "statistics")["Authorization"]
    one = Fleet(tmp_path)
    try:
        router = one.route(f"--api-key-file={file}")
        session = json.loads(ask(router, "/console/api/session")[1])
        assert (session["needs_key"], session["is_signed_in"]) == (True, False)
        assert ask(router, "/router/replicas")[0] == 401
        body = {"key": key.removeprefix("Bearer ")}
        request = urllib.request.Request(
            f"http://{router.http}/console/api/session",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            cookie = response.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert ask(router, "/router/replicas", Cookie=cookie.partition(";")[0])[0] == 200
    finally:
        one.stop()
