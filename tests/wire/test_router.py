"""The router in front of replicas that fail in every way: what is sent again, and what is not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

import pytest

from naiad.router.address import Address
from naiad.router.breaker import BreakerOptions
from naiad.router.config import ModelSpec, RetryOptions, RouterConfig
from naiad.router.grpc_pool import GrpcPool
from naiad.router.policy import RoutedRequest
from naiad.router.replica import Replica, ReplicaState
from tests.attacks.router_heads import send_infer
from tests.wire.counting_replica import CountingGrpcReplica, CountingReplica
from tests.wire.http_client import Client
from tests.wire.router_rig import FakeReplica, respond_ok, routing, whole

SEQUENCE = b'{"inputs": [], "parameters": {"sequence_id": 5, "sequence_start": true}}'


async def die(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def refuse(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(503, b"full", "Retry-After: 1"))


async def never(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


# What passes through.


async def test_passes_request_and_response_through_unchanged() -> None:
    async with routing("a") as rig:
        reply = await rig.ask(
            body=b'{"inputs": []}',
            headers={
                "X-Request-Id": "r-7",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "Authorization": "Bearer sk-secret",
                "Connection": "keep-alive, X-Hop",
                "X-Hop": "dropped",
                "TE": "trailers",
            },
        )
        assert (reply.status, reply.body) == (200, b"a")
        head, _, body = rig.a.requests[0].partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        assert lines[0] == "POST /v2/models/m/infer HTTP/1.1"
        assert f"Host: 127.0.0.1:{rig.a.port}" in lines
        assert "X-Request-Id: r-7" in lines
        assert "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" in lines
        assert "Authorization: Bearer sk-secret" in lines
        assert not any(line.lower().startswith(("x-hop", "te:", "connection")) for line in lines)
        assert body == b'{"inputs": []}'


async def test_a_chunked_request_reaches_the_replica_with_its_length() -> None:
    async with routing("a") as rig:
        client = await Client.connect(rig.port)
        client.send(
            b"POST /v2/models/m/infer?x=1 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await client.read()).status == 200
        assert rig.a.requests[0].startswith(b"POST /v2/models/m/infer?x=1 HTTP/1.1\r\n")
        assert b"Content-Length: 5\r\n\r\nabcde" in rig.a.requests[0]
        client.writer.close()


async def test_connections_to_replicas_are_used_again() -> None:
    async with routing("a") as rig:
        client = await Client.connect(rig.port)
        for _ in range(20):
            client.request("POST", "/v2/models/m/infer", b"{}")
            assert (await client.read()).status == 200
        assert rig.a.num_connections == 1
        client.writer.close()


@pytest.mark.parametrize("size", [0, 100, 70_000, 3_000_000])
async def test_bodies_of_any_size_pass_both_ways(size: int) -> None:
    async with routing("a") as rig:

        async def echo(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(whole(200, replica.requests[-1].partition(b"\r\n\r\n")[2]))

        rig.a.behave = echo
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        reply = await rig.ask(body=body)
        assert reply.status == 200
        assert reply.body == body


async def test_a_stream_passes_through_as_it_comes() -> None:
    async with routing("a") as rig:
        go_on = asyncio.Event()

        async def stream(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\n")
            writer.write(b"9\r\ndata: 1\n\n\r\n")
            await go_on.wait()
            writer.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

        rig.a.behave = stream
        client = await Client.connect(rig.port)
        client.request("POST", "/v2/models/m/generate_stream", b"{}")
        head = await client.read_head()
        assert head.headers["X-A"] == "1"
        assert await client.read_chunk() == b"data: 1\n\n"
        go_on.set()
        assert await client.read_chunk() == b"data: 2\n\n"
        assert await client.read_chunk() == b""
        client.request("POST", "/v2/models/m/infer", b"{}")  # the connection goes on
        rig.a.behave = respond_ok
        assert (await client.read()).body == b"a"
        client.writer.close()


async def test_a_slow_reader_stops_the_replica() -> None:
    async with routing("a") as rig:
        sent = 0

        async def flood(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            for _ in range(1600):  # 100 MiB
                writer.write(chunk)
                await writer.drain()
                sent += 65536
            writer.write(b"0\r\n\r\n")

        rig.a.behave = flood
        client = await Client.connect(rig.port)
        client.request("POST", "/v2/models/m/generate_stream", b"{}")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while sent != before:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.1)
        assert 0 < sent < 40 << 20  # what sockets and one read hold
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        reply = await client.read()
        assert len(reply.body) == 1600 * 65536
        client.writer.close()


async def test_a_client_that_leaves_ends_the_request_at_the_replica() -> None:
    async with routing("a") as rig:
        rig.a.behave = never
        client = await Client.connect(rig.port)
        client.request("POST", "/v2/models/m/infer", b"{}")
        while not rig.a.requests:
            await asyncio.sleep(0)
        client.writer.transport.abort()
        while rig.replica("a").num_in_flight:
            await asyncio.sleep(0)
        assert rig.core.counters["cancelled"] == 1


# What is sent again.


async def test_a_refused_connection_is_tried_elsewhere() -> None:
    async with routing("a", "b") as rig:
        await rig.a.stop()
        replies = [await rig.ask() for _ in range(10)]
        assert {(reply.status, reply.body) for reply in replies} == {(200, b"b")}
        assert rig.replica("a").counters["connect_failures"] >= 1
        assert len(rig.b.requests) == 10


async def test_a_replica_that_dies_before_its_response_is_replaced() -> None:
    async with routing("a", "b") as rig:
        rig.a.behave = die
        replies = [await rig.ask() for _ in range(10)]
        assert {reply.body for reply in replies} == {b"b"}
        # After three failures the breaker keeps requests away from it.
        assert len(rig.a.requests) == 3


async def test_a_model_that_is_not_idempotent_is_not_executed_twice() -> None:
    config = RouterConfig(model={"m": ModelSpec(idempotent=False)})
    async with routing("a", "b", config=config) as rig:
        rig.a.behave = rig.b.behave = die
        reply = await rig.ask()
        assert reply.status == 503
        assert "Retry-After" not in reply.headers
        assert "closed the connection before its response was complete" in reply.body.decode()
        assert rig.num_requests == 1


async def test_connecting_costs_nothing_of_the_budget() -> None:
    """FOUND_2 N2: requests that had been sent nowhere failed beside two idle replicas."""
    config = RouterConfig(
        retry=RetryOptions(budget=0.0, burst=0, max_retries=0),
        breaker=BreakerOptions(failures=1000),
    )
    async with routing("a", "b", "c", config=config) as rig:
        await rig.a.stop()
        await rig.b.stop()
        assert {(await rig.ask()).body for _ in range(9)} == {b"c"}
        assert rig.replica("a").counters["connect_failures"] > 0
        assert rig.core.retries.num_refused == 0


async def test_a_request_that_is_not_idempotent_still_moves_when_nothing_was_sent() -> None:
    config = RouterConfig(model={"m": ModelSpec(idempotent=False)})
    async with routing("a", "b", config=config) as rig:
        await rig.a.stop()
        assert {(await rig.ask()).body for _ in range(6)} == {b"b"}


async def test_the_middle_of_a_sequence_is_not_sent_again() -> None:
    async with routing("a", "b") as rig:
        rig.a.behave = rig.b.behave = die
        assert (await rig.ask(body=SEQUENCE)).status == 503
        assert rig.num_requests == 1


async def test_a_sequence_stays_with_its_replica() -> None:
    async with routing("a", "b") as rig:
        used: dict[int, set[bytes]] = {}
        for _ in range(5):
            for number in range(1, 9):
                body = json.dumps({"inputs": [], "parameters": {"sequence_id": number}}).encode()
                used.setdefault(number, set()).add((await rig.ask(body=body)).body)
        assert all(len(names) == 1 for names in used.values())
        assert len(set.union(*used.values())) == 2


async def test_a_replica_that_does_not_admit_a_request_is_left_out() -> None:
    async with routing("a", "b") as rig:
        rig.a.behave = refuse
        assert {(await rig.ask()).body for _ in range(10)} == {b"b"}
        assert rig.replica("a").counters["not_admitted"] == len(rig.a.requests) > 0


@pytest.mark.parametrize("more", [(), ("Retry-After: 1",)])
async def test_a_replica_that_always_refuses_is_seen_by_few(more: tuple[str, ...]) -> None:
    """FOUND G3: a fourth replica that answered 503 got half of all attempts."""
    async with routing("a", "b", "c", "d") as rig:

        async def full(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(whole(503, b"full", *more))

        rig.fakes["d"].behave = full
        statuses = Counter([(await rig.ask()).status for _ in range(1000)])
        assert statuses[200] >= 995
        assert len(rig.fakes["d"].requests) <= 5
        assert rig.replica("d").counters["refused"] == len(rig.fakes["d"].requests) > 0


async def test_grpc_calls_go_where_the_port_is() -> None:
    """FOUND G2b: a replica without a gRPC port failed at once, so it was preferred."""
    async with routing() as rig:
        grpc = CountingGrpcReplica()
        await rig.add("a", CountingReplica(), grpc)
        await rig.add("b", CountingReplica())
        pool = GrpcPool(Address("127.0.0.1", rig.grpc_port))
        calls = [await send_infer(pool, number, []) for number in range(1, 200)]
        assert {call.status for call in calls} == {0}
        assert grpc.parsed == list(range(1, 200))
        assert rig.core.counters["retries"] == 0
        pool.close()


async def test_the_refusal_itself_is_the_response_when_all_refuse() -> None:
    async with routing("a", "b") as rig:
        rig.a.behave = rig.b.behave = refuse
        reply = await rig.ask()
        assert (reply.status, reply.body) == (503, b"full")
        assert reply.headers["Retry-After"] == "1"
        assert rig.num_requests == 2


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_other_errors_are_responses(status: int) -> None:
    async with routing("a", "b") as rig:

        async def fail(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(whole(status, b"no"))

        rig.a.behave = rig.b.behave = fail
        reply = await rig.ask()
        assert (reply.status, reply.body) == (status, b"no")
        assert rig.num_requests == 1


async def test_a_response_that_breaks_off_is_never_sent_again() -> None:
    async with routing("a", "b") as rig:

        async def break_off(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()

        rig.a.behave = rig.b.behave = break_off
        client = await Client.connect(rig.port)
        client.request("POST", "/v2/models/m/generate_stream", b"{}")
        await client.read_head()
        assert await client.read_chunk() == b"abc"
        with pytest.raises(asyncio.IncompleteReadError):
            await client.read_chunk()
        assert rig.num_requests == 1
        assert rig.core.counters["broken_streams"] == 1
        client.writer.close()


async def test_a_response_shorter_than_its_length_breaks_off_too() -> None:
    async with routing("a") as rig:

        async def break_off(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
            await writer.drain()
            writer.transport.abort()

        rig.a.behave = break_off
        with pytest.raises(asyncio.IncompleteReadError):
            await rig.ask()


async def test_garbage_from_a_replica_is_an_error() -> None:
    async with routing("a") as rig:

        async def garbage(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")

        rig.a.behave = garbage
        reply = await rig.ask()
        assert reply.status == 502
        assert "not an HTTP/1.1 response" in reply.body.decode()
        reply = await rig.ask("/v1/completions", b'{"model": "m"}')
        assert (reply.status, reply.json()["error"]["type"]) == (502, "server_error")


async def test_retries_end_with_the_budget() -> None:
    config = RouterConfig(retry=RetryOptions(budget=0.0, burst=2))
    async with routing("a", "b", config=config) as rig:
        await rig.a.stop()
        await rig.b.stop()
        for _ in range(3):
            assert (await rig.ask()).status == 503
        assert rig.core.retries.tokens == 0
        assert rig.core.retries.num_refused > 0


async def test_a_replica_that_comes_back_in_time_gets_the_request_again() -> None:
    config = RouterConfig(retry=RetryOptions(backoff_s=0.1))
    async with routing("a", config=config) as rig:
        await rig.a.stop()
        asking = asyncio.ensure_future(rig.ask())
        while not rig.core.counters["retries"]:
            await asyncio.sleep(0)
        await rig.a.start()
        assert (await asking).status == 200


async def test_a_stopped_replica_loses_its_waiting_requests_to_others() -> None:
    async with routing("a", "b") as rig:
        rig.a.behave = never
        asking = [asyncio.ensure_future(rig.ask()) for _ in range(10)]
        while rig.num_requests < 10:
            await asyncio.sleep(0)
        waiting = len(rig.a.requests)
        assert waiting > 0
        replica = rig.replica("a")
        rig.core.fleet.set_state(replica, ReplicaState.DOWN, "no response")
        replica.http_pool.fail_waiting("no response", lambda owner: True)
        replies = await asyncio.gather(*asking)
        assert {reply.body for reply in replies} == {b"b"}


# Nobody.


async def test_nobody_can_serve() -> None:
    async with routing("a") as rig:
        rig.core.fleet.set_state(rig.replica("a"), ReplicaState.DOWN, "refused")
        reply = await rig.ask()
        assert reply.status == 503
        assert reply.headers["Retry-After"] == "1"
        assert reply.body == b'{"error":"no replica can serve model \'m\' now"}'
        reply = await rig.ask("/v1/chat/completions", b'{"model": "m"}')
        assert reply.status == 503
        assert json.loads(reply.body)["error"]["type"] == "service_unavailable_error"


async def test_a_model_that_no_replica_has_does_not_exist() -> None:
    async with routing("a") as rig:
        reply = await rig.ask("/v2/models/other/infer")
        assert (reply.status, reply.body) == (
            404,
            b'{"error":"Request for unknown model: \'other\' is not found"}',
        )
        reply = await rig.ask("/v1/completions", b'{"model": "other"}')
        assert reply.status == 404
        assert json.loads(reply.body)["error"]["code"] == "model_not_found"


async def test_a_request_waits_for_a_model_that_sleeps() -> None:
    async with routing("a", config=RouterConfig(asleep=("z",))) as rig:
        waiting = asyncio.create_task(rig.ask("/v2/models/z/infer"))
        while not rig.core.waiting:
            await asyncio.sleep(0)
        assert rig.core.waiting == {"z": 1}
        models = {"m": frozenset(("1",)), "z": frozenset(("1",))}
        rig.core.fleet.set_models(rig.replica("a"), models, {})
        reply = await waiting
        assert (reply.status, reply.body) == (200, b"a")
        assert not rig.core.waiting


async def test_a_model_that_does_not_wake_is_unavailable() -> None:
    async with routing("a", config=RouterConfig(asleep=("z",), max_wait_s=0.01)) as rig:
        reply = await rig.ask("/v2/models/z/infer")
        assert reply.status == 503
        assert "Retry-After" in reply.headers
        assert not rig.core.waiting


async def test_few_requests_may_wait_for_a_model_that_sleeps() -> None:
    async with routing("a", config=RouterConfig(asleep=("z",), max_waiting=0)) as rig:
        assert (await rig.ask("/v2/models/z/infer")).status == 503


async def test_a_client_that_leaves_waits_for_nothing() -> None:
    async with routing("a", config=RouterConfig(asleep=("z",))) as rig:
        client = await Client.connect(rig.port)
        client.request("POST", "/v2/models/z/infer", b"{}", None)
        while not rig.core.waiting:
            await asyncio.sleep(0)
        client.writer.close()
        async with asyncio.timeout(10):
            while rig.core.waiting:
                await asyncio.sleep(0)


# Spreading.


async def test_a_burst_is_spread_evenly() -> None:
    async with routing("a", "b", "c", "d") as rig:
        for fake in rig.fakes.values():
            fake.behave = never
        asking = [asyncio.ensure_future(rig.ask()) for _ in range(40)]
        while rig.num_requests < 40:
            await asyncio.sleep(0)
        assert {len(fake.requests) for fake in rig.fakes.values()} == {10}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_sessions_stay() -> None:
    config = RouterConfig(policy="session")
    async with routing("a", "b", "c", config=config) as rig:
        used: dict[str, Counter[bytes]] = {}
        for _ in range(4):
            for number in range(12):
                reply = await rig.ask(
                    "/v1/chat/completions",
                    b'{"model": "m"}',
                    {"x-session-id": f"s{number}"},
                )
                used.setdefault(f"s{number}", Counter())[reply.body] += 1
        assert all(len(names) == 1 for names in used.values())
        assert len({name for names in used.values() for name in names}) == 3


class Wrong:
    def choose(self, request: object, replicas: object) -> object:
        raise RuntimeError("no idea")


async def test_a_policy_that_fails_is_replaced() -> None:
    config = RouterConfig(policy=f"{__name__}:Wrong")
    async with routing("a", "b", config=config) as rig:
        assert (await rig.ask()).status == 200
        assert rig.core.counters["policy_failures"] == 1


class WrongHooks:
    """Chooses well, and fails in everything else."""

    def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica:
        return replicas[0]

    def on_sent(self, *arguments: object) -> None:
        raise RuntimeError("sent")

    def on_first_byte(self, *arguments: object) -> None:
        raise RuntimeError("first byte")

    def on_ended(self, *arguments: object) -> None:
        raise RuntimeError("ended")


async def test_a_policy_that_fails_when_it_is_told_harms_no_request() -> None:
    config = RouterConfig(policy=f"{__name__}:WrongHooks")
    async with routing("a", "b", config=config) as rig:
        assert [(await rig.ask()).body for _ in range(3)] == [b"a"] * 3
        assert rig.core.counters["policy_failures"] == 9
        assert rig.replica("a").num_in_flight == 0


# The admin API.


async def test_lists_adds_drains_and_removes_replicas() -> None:
    async with routing("a", "b") as rig:
        listed = json.loads((await rig.ask("/router/replicas", method="GET", body=b"")).body)
        assert [row["name"] for row in listed["replicas"]] == ["a", "b"]
        assert listed["replicas"][0]["state"] == "ready"

        extra = rig.fakes["c"] = FakeReplica("c")
        await extra.start()
        spec = {"url": f"http://127.0.0.1:{extra.port}", "name": "c"}
        reply = await rig.ask("/router/replicas", json.dumps(spec).encode())
        assert reply.status == 201
        assert json.loads(reply.body)["state"] == "starting"
        again = await rig.ask("/router/replicas", json.dumps(spec).encode())
        assert (again.status, json.loads(again.body)["error"]) == (
            400,
            "there is a replica with the name 'c' already",
        )

        assert (await rig.ask("/router/replicas/a/drain", b"")).status == 200
        assert {(await rig.ask()).body for _ in range(6)} == {b"b"}
        row = json.loads((await rig.ask("/router/replicas/a", method="GET", body=b"")).body)
        assert (row["state"], row["health"]) == ("draining", "ready")
        assert (await rig.ask("/router/replicas/a/resume", b"")).status == 200
        assert {(await rig.ask()).body for _ in range(6)} == {b"a", b"b"}

        assert (await rig.ask("/router/replicas/b", method="DELETE", body=b"")).status == 200
        assert {(await rig.ask()).body for _ in range(6)} == {b"a"}
        assert (await rig.ask("/router/replicas/b/drain", b"")).status == 404
        models = json.loads((await rig.ask("/router/models", method="GET", body=b"")).body)
        assert models == {"models": [{"name": "m", "policy": "least_load", "replicas": ["a"]}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a replica"),
        (b'{"url": "http://h:1", "weight": 3}', "unknown field `weight`"),
        (b'{"name": "x"}', "missing required field `url`"),
        (b'{"url": "h:0/path"}', "has a path"),
    ],
)
async def test_says_what_is_wrong_with_a_replica(body: bytes, message: str) -> None:
    async with routing("a") as rig:
        reply = await rig.ask("/router/replicas", body)
        assert reply.status == 400
        assert message in json.loads(reply.body)["error"]


# What the router knows itself, and what it refuses.


async def test_index_and_models_are_those_of_all_replicas() -> None:
    async with routing("a", "b") as rig:
        fleet = rig.core.fleet
        fleet.set_models(rig.replica("b"), {"n": frozenset(("2",))}, {"m": "unloaded", "x": "bad"})
        rig.replica("b").openai_models = frozenset(("n",))
        reply = await rig.ask("/v2/repository/index", b"{}")
        assert json.loads(reply.body) == [
            {"name": "m", "version": "1", "state": "READY"},
            {"name": "n", "version": "2", "state": "READY"},
            {"name": "x", "state": "UNAVAILABLE", "reason": "bad"},
        ]
        reply = await rig.ask("/v2/repository/index", b'{"ready": true}')
        assert [row["name"] for row in json.loads(reply.body)] == ["m", "n"]
        reply = await rig.ask("/v1/models", method="GET", body=b"")
        assert [card["id"] for card in json.loads(reply.body)["data"]] == ["n"]
        assert rig.num_requests == 0


async def test_is_ready_while_a_replica_is() -> None:
    async with routing("a") as rig:
        paths = ["/v2/health/ready", "/v2/models/m/ready", "/health"]
        assert [(await rig.ask(p, method="GET", body=b"")).status for p in paths] == [200] * 3
        rig.core.fleet.set_state(rig.replica("a"), ReplicaState.DOWN, "refused")
        assert [(await rig.ask(p, method="GET", body=b"")).status for p in paths] == [400, 400, 503]
        assert (await rig.ask("/v2/health/live", method="GET", body=b"")).status == 200


@pytest.mark.parametrize(
    "path",
    ["/v2/repository/models/m/load", "/v2/systemsharedmemory/region/r/register", "/v2/logging"],
)
async def test_does_not_pass_on_what_concerns_one_server(path: str) -> None:
    async with routing("a") as rig:
        reply = await rig.ask(path)
        assert reply.status == 501
        assert b"send them to a replica" in reply.body
        assert rig.num_requests == 0
