"""Pages of named origins may use the server from a browser."""

from __future__ import annotations

import pytest

from naiad.frontends.http.options import HttpOptions
from tests.fakes.keys import KeyRing
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import serving

APP = "https://app.example.com"
OTHER = "https://evil.example.com"
NAMED = HttpOptions(allowed_origins=frozenset((APP,)))
ANY = HttpOptions(allowed_origins=frozenset(("*",)))


def preflight(origin: str) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }


def cors_of(reply: Reply) -> dict[str, str]:
    return {
        name: value for name, value in reply.headers.items() if name.startswith("Access-Control")
    }


@pytest.mark.parametrize(
    ("options", "origin", "allowed"),
    [
        (NAMED, APP, APP),
        (ANY, OTHER, "*"),
        (NAMED, OTHER, None),
        (NAMED, APP + ".evil.com", None),
        (NAMED, "null", None),
        (HttpOptions(), APP, None),
    ],
)
@on_uvloop
async def test_a_preflight_is_answered_for_named_origins_only(
    options: HttpOptions, origin: str, allowed: str | None
) -> None:
    async with serving(options, guard=KeyRing().guard()) as server:
        client = await Client.connect(server.port)
        reply = await client.call("OPTIONS", "/v1/models", headers=preflight(origin))
        await client.close()
    if allowed is None:
        assert reply.status == 401
        assert cors_of(reply) == {}
    else:
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["Access-Control-Allow-Origin"] == allowed
        assert reply.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        assert "POST" in reply.headers["Access-Control-Allow-Methods"]
        assert "Access-Control-Allow-Credentials" not in reply.headers


@on_uvloop
async def test_names_that_are_not_headers_are_not_repeated() -> None:
    fields = {**preflight(APP), "Access-Control-Request-Headers": "a;b=<script>"}
    async with serving(NAMED) as server:
        client = await Client.connect(server.port)
        reply = await client.call("OPTIONS", "/v2", headers=fields)
        await client.close()
    assert reply.status == 204
    assert "Access-Control-Allow-Headers" not in reply.headers


@on_uvloop
async def test_a_preflight_for_a_foreign_host_name_is_refused() -> None:
    options = HttpOptions(allowed_origins=frozenset((APP,)), allowed_hosts=frozenset())
    async with serving(options) as server:
        client = await Client.connect(server.port)
        fields = {**preflight(APP), "Host": "rebound.example.com"}
        assert (await client.call("OPTIONS", "/v2", headers=fields)).status == 403
        await client.close()


@on_uvloop
async def test_pages_see_responses_and_refusals() -> None:
    ring = KeyRing()
    key = {"authorization": f"Bearer {ring.create('page')}"}
    async with serving(NAMED, guard=ring.guard()) as server:
        client = await Client.connect(server.port)
        for headers, status in (({}, 401), (key, 200)):
            reply = await client.call("GET", "/v2", headers={**headers, "Origin": APP})
            assert reply.status == status
            assert reply.headers["Access-Control-Allow-Origin"] == APP
            assert reply.headers["Vary"] == "Origin"
        for origin in (None, OTHER):
            fields = key if origin is None else {**key, "Origin": origin}
            reply = await client.call("GET", "/v2", headers=fields)
            assert (reply.status, cors_of(reply)) == (200, {})
        await client.close()


@on_uvloop
async def test_pages_may_infer_again_and_again() -> None:
    values = ",".join("1" * 16)
    tensors = ",".join(
        f'{{"name":"{name}","shape":[1,16],"datatype":"FP32","data":[{values}]}}'
        for name in ("INPUT0", "INPUT1")
    )
    body = f'{{"inputs":[{tensors}]}}'.encode()
    path = "/v2/models/add_sub/infer"
    fields = {"Content-Type": "application/json"}
    async with serving(NAMED) as server:
        client = await Client.connect(server.port)
        for _ in range(4):
            reply = await client.call("POST", path, body, {**fields, "Origin": APP})
            assert reply.headers["Access-Control-Allow-Origin"] == APP
            first = await client.call("POST", path, body, fields)
            assert cors_of(first) == {}
            assert (reply.status, reply.body) == (first.status, first.body)
            assert first.status == 200
        assert (await client.call("POST", path, body, {**fields, "Origin": OTHER})).status == 403
        await client.close()
