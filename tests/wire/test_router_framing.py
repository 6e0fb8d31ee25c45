"""The router frames every message itself, whatever its peers say in `Connection` or elsewhere."""

from __future__ import annotations

import asyncio
import json

import pytest

from naiad.router.config import ModelSpec, ReplicaSpec, RouterConfig
from naiad.router.health import HealthCheck
from naiad.router.replica import ReplicaState
from tests.attacks.router_heads import NAMES, attack, call_infer
from tests.wire.counting_replica import CountingGrpcReplica, CountingReplica
from tests.wire.http_client import Client
from tests.wire.router_rig import FakeReplica, respond_ok, routing, whole

INNER = b"POST /v2/repository/models/m/unload HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
KNOWN = (b"authorization", b"content-type", b"inference-header-content-length", b"x-request-id")


async def test_a_body_never_becomes_a_request() -> None:
    """FOUND C1: `Connection: content-length` made the body the next request of the connection."""
    async with routing("a") as rig:
        client = await Client.connect(rig.port)
        client.send(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
            b"Connection: keep-alive, content-length\r\nContent-Length: %d\r\n\r\n" % len(INNER)
        )
        client.send(INNER)
        assert (await client.read()).status == 200
        assert (await rig.ask(body=b"next")).body == b"a"
        bodies = [request.partition(b"\r\n\r\n")[2] for request in rig.a.requests]
        assert bodies == [INNER, b"next"]
        client.writer.close()


async def test_connection_may_name_any_field_of_a_request() -> None:
    async with routing() as rig:
        replica = CountingReplica()
        await rig.add("a", replica)
        client = await Client.connect(rig.port)
        for number, name in enumerate(NAMES):
            body = b"id=%d;" % number + INNER
            own = b"" if name in (b"", b"*", b"a b", b"content-length", b"host") else name
            field = b"%b: 1\r\n" % own if own else b""
            if own in (
                b"transfer-encoding",
                b"expect",
                b"connection",
                b"sec-fetch-site",
                b"origin",
            ):
                field = b""  # these have a meaning of their own
            length = b"Content-Length: %d\r\n" % len(body)
            if number % 2:
                length = b"Transfer-Encoding: chunked\r\n"
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            options = b"x-hop, " + name if name != b"close" else b"x-hop"
            client.send(
                b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nX-Hop: 1\r\nConnection: %b\r\n%b%b"
                b"Authorization: Bearer k\r\nContent-Type: a/b\r\nX-Request-Id: 7\r\n"
                b"Inference-Header-Content-Length: 1\r\n\r\n%b"
                % (options, field if own not in KNOWN else b"", length, body)
            )
            reply = await client.read()
            assert (reply.status, reply.body) == (200, b"answer to %d;" % number), name
            fields = dict(replica.heads[-1])
            assert all(known in fields for known in KNOWN), name
            assert b"x-hop" not in fields
            assert b"connection" not in fields
        assert replica.parsed == list(range(len(NAMES)))
        assert replica.broken == []
        client.writer.close()


async def test_connection_may_name_any_field_of_a_response() -> None:
    async with routing("a") as rig:
        for name in NAMES:

            async def respond(
                replica: FakeReplica, writer: asyncio.StreamWriter, name: bytes = name
            ) -> None:
                size, body = b"Content-Length: 5", b"hello"
                if len(name) % 2:
                    size, body = b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"
                writer.write(
                    b"HTTP/1.1 200 OK\r\nConnection: x-hop, %b\r\nX-Hop: 1\r\nContent-Type: a/b\r\n"
                    b"Set-Cookie: s=1\r\n%b\r\n\r\n%b" % (name, size, body)
                )

            rig.a.behave = respond
            reply = await rig.ask()
            assert (reply.status, reply.body) == (200, b"hello"), name
            assert reply.headers["Content-Type"] == "a/b"
            assert not reply.headers.keys() & {"X-Hop", "Set-Cookie", "Connection"}
            rig.a.behave = respond_ok
            assert (await rig.ask()).body == b"a", name
        assert rig.num_requests == 2 * len(NAMES)


async def test_grpc_fields_of_a_connection_reach_nobody() -> None:
    async with routing() as rig:
        grpc = CountingGrpcReplica()
        grpc.trailers = lambda number: [("set-cookie", "s=1"), ("x-own", "1")]
        await rig.add("a", CountingReplica(), grpc)
        for number, name in enumerate(name for name in NAMES if name.replace(b"-", b"").isalpha()):
            call = await call_infer(rig.grpc_port, number + 1, [(name, b"1")])
            if name in (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding"):
                assert call.status != 0, name
            elif call.status == 0:
                assert call.trailers == {b"x-own": b"1"}
                fields = [field for field, _ in grpc.heads[-1]]
                assert fields.count(b":authority") == 1
                assert b"host" not in fields
                assert grpc.parsed[-1] == number + 1
        assert len(grpc.parsed) == len(set(grpc.parsed)) > 20
        assert grpc.broken == []


async def test_random_heads_in_both_directions() -> None:
    """The short form of `python -m tests.attacks.router_heads`."""
    outcome = await attack(1500)
    assert outcome.failures == []
    assert outcome.num_parsed > 1000


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 103 Early\r\n\r\n" * 9 + whole(200, b"late"),
        whole(200, b"short") + b"HTTP/1.1 200 OK\r\n",
    ],
)
async def test_what_is_not_one_response_is_a_502(response: bytes) -> None:
    async with routing("a") as rig:

        async def lie(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(response)

        rig.a.behave = lie
        assert (await rig.ask()).status == 502
        assert rig.num_requests == 1
        rig.a.behave = respond_ok
        assert (await rig.ask()).body == b"a"
        assert rig.a.num_connections == 2


async def test_eight_informational_responses_are_allowed() -> None:
    async with routing("a") as rig:

        async def hint(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * 8 + whole(200, b"a"))

        rig.a.behave = hint
        assert (await rig.ask()).body == b"a"


# Responses that do not come.


async def never(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def test_a_missing_response_has_the_deadline_of_its_route() -> None:
    config = RouterConfig(
        read_timeout_s=0.05,
        model={"m": ModelSpec(response_timeout_s=0.05), "*": ModelSpec()},
    )
    async with routing("a", config=config) as rig:
        rig.a.behave = never
        for path, method in (("/v2/models/m/stats", "GET"), ("/v2/models/m/infer", "POST")):
            reply = await rig.ask(path, method=method)
            assert (reply.status, reply.error()) == (
                504,
                "replica 'a': no response within 0.05 s",
            )
        replica = rig.replica("a")
        assert replica.num_in_flight == 0
        assert replica.counters["server_errors"] == 2


async def test_an_inference_waits_for_ever_by_default() -> None:
    async with routing("a", config=RouterConfig(read_timeout_s=0.01)) as rig:
        go_on = asyncio.Event()

        async def slow(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            await respond_ok(replica, writer)

        rig.a.behave = slow
        asking = asyncio.ensure_future(rig.ask())
        while not rig.a.requests:
            await asyncio.sleep(0)
        # The limit of another request, which was sent later, has passed.
        assert (await rig.ask("/v2/models/m/stats", method="GET", body=b"")).status == 504
        assert not asking.done()
        go_on.set()
        assert (await asking).body == b"a"


# The router itself is no replica.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_refuses_its_own_address(host: str) -> None:
    async with routing("a") as rig:
        rig.core.fleet.own_places = {("127.0.0.1", rig.port)}
        for spec in (
            {"url": f"http://{host}:{rig.port}"},
            {"url": "http://127.0.0.1:1", "grpc": f"{host}:{rig.port}"},
        ):
            reply = await rig.ask("/router/replicas", json.dumps(spec).encode())
            assert reply.status == 400
            assert "is the address of this router itself" in reply.error()


async def test_finds_itself_behind_another_name() -> None:
    async with routing("a") as rig:
        replica = rig.core.fleet.add(ReplicaSpec(f"http://127.0.0.1:{rig.port}", name="x"), "flag")
        await HealthCheck(rig.core.fleet, replica).check()
        assert replica.state is ReplicaState.DOWN
        assert replica.reason == f"127.0.0.1:{rig.port} is this router itself"


@pytest.mark.parametrize(
    "spec",
    [
        {"url": "http://x\r\ny:80"},
        {"url": "http://x\ty:80"},
        {"url": "http://x:80 "},
        {"url": "http://x:80", "grpc": "y\n:81"},
        {"url": "http://x:80", "name": "a\x1b[1m"},
        {"url": "http://x:80", "note": "a\nb"},
    ],
)
async def test_refuses_replicas_with_control_characters(spec: dict[str, str]) -> None:
    async with routing("a") as rig:
        reply = await rig.ask("/router/replicas", json.dumps(spec).encode())
        assert reply.status == 400
        assert "control character" in reply.error()
        assert [replica.name for replica in rig.core.fleet] == ["a"]


# Health checks.


async def answer_check(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
    path = replica.requests[-1].split(b" ")[1]
    if path == b"/v1/models":
        writer.write(whole(404, b""))
    else:
        writer.write(whole(200, b'[{"name": "m", "version": "1", "state": "READY"}]'))


async def test_a_health_check_asks_everything_over_one_connection() -> None:
    async with routing("a") as rig:
        rig.a.behave = answer_check
        replica = rig.replica("a")
        await HealthCheck(rig.core.fleet, replica).check()
        assert replica.state is ReplicaState.READY
        assert replica.models == {"m": frozenset(("1",))}
        assert (len(rig.a.requests), rig.a.num_connections) == (3, 1)


async def test_a_health_check_finds_that_the_grpc_port_is_back() -> None:
    async with routing() as rig:
        fake, grpc = FakeReplica("a"), CountingGrpcReplica()
        fake.behave = answer_check
        await rig.add("a", fake, grpc)
        fleet, replica = rig.core.fleet, rig.replica("a")
        await grpc.stop()
        for _ in range(3):
            fleet.on_failure(replica, "connect_failures", is_grpc=True)
        check = HealthCheck(fleet, replica)
        await check.check()
        assert fleet.candidates("m", is_grpc=True) == []
        assert fleet.candidates("m") == [replica]
        await grpc.start()
        await check.check()
        assert fleet.candidates("m", is_grpc=True) == [replica]
        assert (await call_infer(rig.grpc_port, 1, [])).status == 0
