"""Every route of the HTTP endpoint against a core without workers: status, type and body."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from naiad.frontends.http.options import HttpOptions, Restriction
from naiad.repository.config.config_json import config_to_json
from tests.fakes.core import FakeCore
from tests.wire.http_client import Client, call, on_uvloop
from tests.wire.http_rig import serving

JSON = "application/json"
TEXT = "text/plain"


NO_SHARED_MEMORY = (
    b'{"error":"Client shared memory is disabled. Start the server with '
    b"'--allow-client-shm=true' to enable.\"}"
)
EMPTY_BODY = b'{"error":"failed to parse the request JSON buffer: The document is empty. at 0"}'


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type", "body"),
    [
        ("GET", "/v2/health/live", 200, JSON, b'{"live":true}'),
        ("GET", "/v2/health/ready", 200, JSON, b'{"ready":true}'),
        ("GET", "/v2/models/add_sub/ready", 200, TEXT, b""),
        ("GET", "/v2/models/add_sub/versions/1/ready", 200, TEXT, b""),
        (
            "GET",
            "/v2/models/add_sub/versions/2/ready",
            400,
            JSON,
            b'{"error":"Model version not ready"}',
        ),
        ("GET", "/v2/models/nope/ready", 400, JSON, b'{"error":"Model version not ready"}'),
        (
            "GET",
            "/v2",
            200,
            JSON,
            b'{"name":"triton","version":"2.73.0","extensions":["classification","sequence","statistics"]}',
        ),
        ("GET", "/v2?x=1", 200, JSON, None),
        ("GET", "/v2/models/add_sub", 200, JSON, None),
        ("GET", "/v2/models/add_sub/versions/1", 200, JSON, None),
        ("GET", "/v2/models/add%5Fsub", 200, JSON, None),
        (
            "GET",
            "/v2/models/nope",
            404,
            JSON,
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/a%2Fb",
            404,
            JSON,
            b'{"error":"Request for unknown model: \'a/b\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/add_sub/versions/2",
            404,
            JSON,
            b'{"error":"Request for unknown model: \'add_sub\' version 2 is not found"}',
        ),
        (
            "GET",
            "/v2/models/add_sub/config",
            200,
            JSON,
            config_to_json(FakeCore().models["add_sub"].config),
        ),
        ("GET", "/v2/models/nope/config", 404, JSON, None),
        ("GET", "/v2/models/add_sub/stats", 200, JSON, None),
        ("GET", "/v2/models/stats", 200, JSON, None),
        (
            "GET",
            "/v2/models/nope/stats",
            400,
            JSON,
            b'{"error":"requested model \'nope\' is not available"}',
        ),
        ("GET", "/v2/logging", 200, JSON, None),
        ("POST", "/v2/logging", 500, JSON, EMPTY_BODY),
        ("GET", "/v2/trace/setting", 200, JSON, None),
        ("POST", "/v2/models/add_sub/trace/setting", 500, JSON, EMPTY_BODY),
        (
            "GET",
            "/v2/models/nosuch/trace/setting",
            400,
            JSON,
            b'{"error":"Request for unknown model : nosuch"}',
        ),
        ("GET", "/v2/models/add_sub/versions/1/trace/setting", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/systemsharedmemory/status", 200, JSON, b"[]"),
        ("GET", "/v2/cudasharedmemory/status", 200, JSON, b"[]"),
        (
            "GET",
            "/v2/systemsharedmemory/region/a/status",
            404,
            JSON,
            b'{"error":"Unable to find system shared memory region: \'a\'"}',
        ),
        (
            "GET",
            "/v2/cudasharedmemory/region/a/status",
            404,
            JSON,
            b'{"error":"Unable to find cuda shared memory region: \'a\'"}',
        ),
        ("POST", "/v2/systemsharedmemory/unregister", 501, JSON, NO_SHARED_MEMORY),
        ("POST", "/v2/cudasharedmemory/unregister", 501, JSON, NO_SHARED_MEMORY),
        ("POST", "/v2/systemsharedmemory/region/a/unregister", 501, JSON, NO_SHARED_MEMORY),
        ("POST", "/v2/cudasharedmemory/region/a/unregister", 501, JSON, NO_SHARED_MEMORY),
        ("POST", "/v2/systemsharedmemory/region/a/register", 501, JSON, NO_SHARED_MEMORY),
        ("POST", "/v2/cudasharedmemory/region/a/register", 501, JSON, NO_SHARED_MEMORY),
        # Unknown paths and wrong methods.
        ("GET", "/", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "//v2", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/health/live/", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/models", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/models/add_sub/", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/models/add_sub/versions/x", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/models/add_sub/foo", 404, JSON, b'{"error":"Not Found"}'),
        ("GET", "/v2/models/../health/live", 404, JSON, b'{"error":"Not Found"}'),
        ("POST", "/v2/nope", 404, JSON, b'{"error":"Not Found"}'),
        ("POST", "/v2", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("PUT", "/v2", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/models/add_sub/infer", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/models/add_sub/generate", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/repository/index", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("DELETE", "/v2/models/add_sub", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("OPTIONS", "/v1/chat/completions", 405, JSON, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v1/chat/completions", 405, JSON, None),
        ("OPTIONS", "/v1/nope", 404, JSON, b'{"error":"Not Found"}'),
        ("OPTIONS", "*", 404, JSON, b'{"error":"Not Found"}'),
        ("CONNECT", "a:1", 404, JSON, b'{"error":"Not Found"}'),
    ],
)
@on_uvloop
async def test_every_route(
    method: str, path: str, status: int, content_type: str, body: bytes | None
) -> None:
    async with serving() as server:
        reply = await call(server.port, method, path)
        assert (reply.status, reply.headers["Content-Type"]) == (status, content_type)
        if body is not None:
            assert reply.body == body
        if status == 405:
            assert reply.headers["Allow"] in ("GET", "POST")


@on_uvloop
async def test_model_metadata() -> None:
    async with serving() as server:
        reply = await call(server.port, "GET", "/v2/models/add_sub")
        assert reply.json() == {
            "name": "add_sub",
            "versions": ["1"],
            "platform": "python",
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [-1, 16]}
                for name in ("INPUT0", "INPUT1")
            ],
            "outputs": [
                {"name": name, "datatype": "FP32", "shape": [-1, 16]}
                for name in ("OUTPUT0", "OUTPUT1")
            ],
        }


@pytest.mark.parametrize(
    "path",
    ["/v2", "/v2/health/live", "/v2/models/add_sub", "/v2/models/nope", "/v2/models/add_sub/stats"],
)
@on_uvloop
async def test_head_is_get_without_the_body(path: str) -> None:
    async with serving() as server:
        get, head = await call(server.port, "GET", path), await call(server.port, "HEAD", path)
        assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")


@on_uvloop
async def test_health_details_list_every_model() -> None:
    core = FakeCore()
    async with serving(core=core) as server:
        details = json.loads((await call(server.port, "GET", "/v2/health/details")).body)
    assert (details["live"], details["ready"]) == (True, True)
    add_sub = {"name": "add_sub", "version": "1", "ready": True, "instances": []}
    assert add_sub in details["models"]
    assert [row["name"] for row in details["models"]] == sorted(core.models)


@on_uvloop
async def test_a_server_that_is_not_ready_is_still_live() -> None:
    core = FakeCore()
    core.ready = False
    async with serving(core=core) as server:
        assert (await call(server.port, "GET", "/v2/health/ready")).status == 400
        assert (await call(server.port, "GET", "/v2/health/live")).status == 200


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/add_sub/ready"])
@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 400)])
@on_uvloop
async def test_readiness_waits_for_what_the_model_says(
    path: str, is_ready: bool, status: int
) -> None:
    core = FakeCore()
    asked: asyncio.Future[Callable[[bool], None]] = asyncio.get_running_loop().create_future()
    core.models["add_sub"].ask_ready = asked.set_result  # type: ignore[method-assign, assignment]
    async with serving(core=core) as server:
        asking = asyncio.ensure_future(call(server.port, "GET", path))
        answer = await asked
        assert (await call(server.port, "GET", "/v2/health/live")).status == 200
        assert not asking.done()
        answer(is_ready)
        assert (await asking).status == status


# The repository.


@on_uvloop
async def test_the_repository_index() -> None:
    async with serving() as server:
        everything = (await call(server.port, "POST", "/v2/repository/index")).json()
        assert {
            "name": "old",
            "version": "1",
            "state": "UNAVAILABLE",
            "reason": "unloaded",
        } in everything
        assert {"name": "sleeping"} in everything
        for path in ("/v2/repository/index", "/v2/repository/some/index"):
            ready = (await call(server.port, "POST", path, {"ready": True})).json()
            assert all(row["state"] == "READY" for row in ready)
        bodies: list[Any] = [[], {"a": 1}, {"ready": False}]
        for body in bodies:
            assert (
                await call(server.port, "POST", "/v2/repository/index", body)
            ).json() == everything
        reply = await call(server.port, "POST", "/v2/repository/index", {"ready": 1})
        assert (reply.status, reply.error()) == (
            400,
            "Invalid value for 'ready': expected a boolean",
        )
        reply = await call(server.port, "POST", "/v2/repository/index", b'{"ready":')
        assert (reply.status, reply.error()) == (
            500,
            "failed to parse the request JSON buffer: Invalid value. at 9",
        )


@on_uvloop
async def test_load_and_unload() -> None:
    async with serving() as server:
        bodies: list[Any] = [b"", b"[]", {}, {"parameters": {}}]
        for body in bodies:
            reply = await call(server.port, "POST", "/v2/repository/models/add_sub/load", body)
            assert (reply.status, reply.body) == (200, b"")
        assert server.core.loaded == [("add_sub", {})] * 4
        files = {"config": "{}", "file:1/model.py": base64.b64encode(b"\0code").decode()}
        assert (
            await call(
                server.port, "POST", "/v2/repository/models/new%20one/load", {"parameters": files}
            )
        ).status == 200
        assert server.core.loaded[-1] == ("new one", {"config": "{}", "file:1/model.py": b"\0code"})
        assert (await call(server.port, "POST", "/v2/repository/models/m/unload")).status == 200
        assert (
            await call(
                server.port,
                "POST",
                "/v2/repository/models/m/unload",
                {"parameters": {"unload_dependents": True}},
            )
        ).status == 200
        assert (
            await call(server.port, "POST", "/v2/repository/models/m/unload", b"{bad")
        ).status == 200
        assert server.core.unloaded == [("m", False), ("m", True), ("m", False)]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "models/nope/load",
            b"",
            500,
            "failed to load 'nope', failed to poll from model repository",
        ),
        ("some/models/m/load", b"", 501, "'repository_name' specification is not supported"),
        ("some/models/m/unload", b"", 501, "'repository_name' specification is not supported"),
        (
            "models/m/load",
            b"{bad",
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
        ("models/m/load", {"parameters": 1}, 500, "attempt to get members for non-object"),
        (
            "models/m/load",
            {"parameters": {"config": 1}},
            500,
            "attempt to access JSON non-string as string",
        ),
        (
            "models/m/load",
            {"parameters": {"file:x": 1}},
            500,
            "attempt to access JSON non-string as string",
        ),
        (
            "models/m/load",
            {"parameters": {"foo": "x"}},
            400,
            "Unrecognized load parameter 'foo' with type 'STRING'",
        ),
        (
            "models/m/load",
            {"parameters": {"file:x": "###"}},
            400,
            "load parameter 'file:x' is not valid base64",
        ),
    ],
)
@on_uvloop
async def test_loads_that_fail(path: str, body: Any, status: int, message: str) -> None:
    async with serving() as server:
        reply = await call(server.port, "POST", f"/v2/repository/{path}", body)
        assert (reply.status, reply.error()) == (status, message)
        assert server.core.loaded == []


# The page for browsers.


@on_uvloop
async def test_the_root_is_a_page_for_a_browser_only() -> None:
    async with serving() as server:
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        reply = await call(server.port, "GET", "/", headers=browser)
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert b"<title>Naiad</title>" in reply.body
        for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
            reply = await call(server.port, "GET", "/", headers=headers)
            assert (reply.status, reply.body) == (404, b'{"error":"Not Found"}')


# Restricted APIs.

GROUPS = {
    "/v2/health/live": "health",
    "/v2/models/add_sub/ready": "health",
    "/v2": "metadata",
    "/v2/models/add_sub": "metadata",
    "/v2/models/add_sub/config": "model-config",
    "/v2/models/add_sub/stats": "statistics",
    "/v2/models/stats": "statistics",
    "/v2/systemsharedmemory/status": "shared-memory",
    "/v2/logging": "logging",
    "/v2/trace/setting": "trace",
}


@pytest.mark.parametrize(("path", "group"), GROUPS.items())
@on_uvloop
async def test_restricted_apis(path: str, group: str) -> None:
    options = HttpOptions(restricted_apis={group: Restriction("X-Key", "secret")})
    async with serving(options) as server:
        for headers in ({}, {"x-key": "wrong"}, {"x-key": ""}, {"Host": "secret"}):
            reply = await call(server.port, "GET", path, headers=headers)
            assert (reply.status, reply.error()) == (
                403,
                "This API is restricted, expecting header 'X-Key'",
            )
        assert (await call(server.port, "GET", path, headers={"x-KEY": "secret"})).status != 403
        for other in GROUPS:
            if GROUPS[other] != group:
                assert (await call(server.port, "GET", other)).status != 403


@pytest.mark.parametrize(
    "path",
    ["/v2/models/add_sub/infer", "/v2/models/gen/generate", "/v2/models/gen/generate_stream"],
)
@on_uvloop
async def test_restricted_inference(path: str) -> None:
    async with serving(HttpOptions(restricted_apis={"inference": Restriction("k", "v")})) as server:
        client = await Client.connect(server.port)
        assert (await client.call("POST", path, {})).status == 403
        assert (await client.call("POST", path, {}, {"k": "v"})).status != 403
        assert (await client.call("POST", path, {})).status == 403, (
            "the key of one request is not that of the next"
        )
        await client.close()


@pytest.mark.parametrize("host", ["x/?", "a#b", "u@h", "a b"])
@on_uvloop
async def test_the_host_header_does_not_change_the_route(host: str) -> None:
    async with serving(HttpOptions(restricted_apis={"metadata": Restriction("k", "v")})) as server:
        assert (await call(server.port, "GET", "/v2", headers={"Host": host})).status == 400
