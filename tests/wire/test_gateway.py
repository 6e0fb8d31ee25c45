"""What gateways and clusters ask for on the HTTP port."""

from __future__ import annotations

from naiad import __version__
from naiad.metrics.page import CONTENT_TYPE
from tests.fakes.keys import KeyRing
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_rig import serving


@on_uvloop
async def test_health_follows_readiness() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        for is_ready, status in ((True, 200), (False, 503)):
            server.core.ready = is_ready
            for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
                reply = await client.call(method, path)
                assert (reply.status, reply.body) == (status, b"")
        await client.close()


@on_uvloop
async def test_the_version() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        assert (await client.call("GET", "/version")).json() == {"version": __version__}
        await client.close()


@on_uvloop
async def test_the_metrics_page() -> None:
    def fail() -> bytes:
        raise RuntimeError("no page")

    for render, status, body in ((lambda: b"up 1\n", 200, b"up 1\n"), (fail, 500, b"")):
        async with serving(render_metrics=render) as server:
            client = await Client.connect(server.port)
            reply = await client.call("GET", "/metrics")
            assert (reply.status, reply.body) == (status, body)
            assert reply.headers["Content-Type"] == CONTENT_TYPE
            await client.close()
    async with serving() as server:
        client = await Client.connect(server.port)
        assert (await client.call("GET", "/metrics")).status == 404
        await client.close()


@on_uvloop
async def test_health_needs_no_key_unless_it_is_guarded_and_metrics_always_do() -> None:
    ring = KeyRing()
    key = {"authorization": f"Bearer {ring.create('all', scopes=('health', 'metrics'))}"}
    paths = ("/health", "/ping", "/metrics")
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        client = await Client.connect(server.port)
        assert [(await client.call("GET", path)).status for path in paths] == [200, 200, 401]
        assert (await client.call("GET", "/metrics", headers=key)).status == 200
        assert (await client.call("GET", "/version")).status == 401
        await client.close()
    closed = ring.guard(guarded_apis=frozenset(("health", "metrics")))
    async with serving(guard=closed, render_metrics=bytes) as server:
        for path in paths:
            client = await Client.connect(server.port)
            assert (await client.call("GET", path)).status == 401
            await client.close()
            client = await Client.connect(server.port)
            assert (await client.call("GET", path, headers=key)).status == 200
            await client.close()
