"""Random heads in both directions through a router, in front of replicas that count requests.

    python -m tests.attacks.router_heads --requests 100000 [--seed 7]

Clients send requests over HTTP/1.1 and gRPC whose heads are made up: fields of all kinds, any of
them named in `Connection`, lengths that contradict each other, bodies that look like requests. The
replicas parse what reaches them with h11 and h2, and respond with heads that are made up alike;
some of them lie about where their response ends. The rules: each request that was passed on is
parsed by one replica, once, and nothing else is; and no client gets the response to another one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import sys
import time
from collections import Counter

import msgspec
import uvloop

from naiad.pb import grpc_service_pb2 as pb
from naiad.router import http_fields
from naiad.router.address import Address
from naiad.router.breaker import BreakerOptions
from naiad.router.config import ModelSpec, RetryOptions, RouterConfig
from naiad.router.grpc_pool import GrpcPool, GrpcResponseHead, GrpcUpstream
from naiad.router.outlier import OutlierOptions
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.stream import Stream
from tests.wire.counting_replica import CountingGrpcReplica, CountingReplica, honest
from tests.wire.router_rig import Rig, routing

NUM_CLIENTS = 16
_LIMIT_S = 30.0
_ANSWER = re.compile(rb"answer to (\d+);")
_INNER = (
    b"POST /v2/repository/models/m/unload HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nid=0;"
)
_HIDDEN = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nanswer to 0;"
NAMES: tuple[bytes, ...] = tuple(
    sorted(
        http_fields.HOP_BY_HOP
        | http_fields.WRITTEN
        | http_fields._END_TO_END
        | http_fields._OF_ORIGIN
        | {start + b"x" for start in http_fields._END_TO_END_STARTS}
        | {
            b"accept-encoding", b"access-control-allow-origin", b"close", b"content-encoding",
            b"content-md5", b"content-type", b"max-forwards", b"priority", b"proxy-status",
            b"sec-fetch-site", b"via", b"warning", b"x-forwarded-for", b"x-hop", b"x-user",
            b"x-http-method-override", b"x-original-url", b"x-naiad-router", b"", b"*", b"a b",
        }
    )
)  # fmt: skip
"""What a peer may name in `Connection`: every field that the router knows, and others."""
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"host", b"", b"*", b"a b"))
_REQUEST_FIELDS = tuple(
    name for name in NAMES if name not in _FRAMING | {b"expect", b"connection", b"close"}
)


class Outcome(msgspec.Struct):
    num_requests: int
    num_parsed: int
    """By the replicas."""
    kinds: dict[str, int]
    failures: list[str]


class Run:
    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.chance = random.Random(seed)
        self.numbers = itertools.count(1)
        self.kinds: Counter[str] = Counter()
        self.failures: list[str] = []
        self.passed_on: Counter[int] = Counter()
        """Requests that a replica must have parsed, by id."""
        self.uncertain: set[int] = set()
        """Requests that a replica may have parsed."""
        self.num_sent = 0

    def note(self, kind: str, number: int, answer: int | None) -> None:
        self.kinds[kind] += 1
        if answer is not None and answer != number:
            self.failures.append(f"request {number} got the answer to {answer}")

    # Heads.

    def _case(self, name: bytes) -> bytes:
        how = self.chance.randrange(3)
        return (name, name.title(), name.upper())[how]

    def _connection(self) -> list[bytes]:
        chance = self.chance
        lines = []
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            names = chance.choices(NAMES, k=chance.randint(1, 6))
            if chance.random() < 0.9:
                names = [name for name in names if name != b"close"]
            value = b", ".join(self._case(name) for name in names)
            lines.append(b"%b: %b\r\n" % (self._case(b"connection"), value))
        return lines

    def _fields(self, names: tuple[bytes, ...]) -> list[bytes]:
        chance = self.chance
        values = (b"1", b"chunked", b"0", b"identity", b"x, y", b"99999999999999999999", b"")
        return [
            b"%b: %b\r\n" % (self._case(name), chance.choice(values))
            for name in chance.sample(names, chance.randint(0, 5))
        ]

    def request(self, number: int) -> bytes:
        chance = self.chance
        body = b"id=%d;" % number
        if chance.random() < 0.7:
            body += chance.choice((_INNER, b"x" * chance.randint(0, 5000), b"\r\n\r\n" + _INNER))
        lines = [*self._connection(), *self._fields(_REQUEST_FIELDS), b"Host: x\r\n"]
        length = b"%b: %d\r\n" % (self._case(b"content-length"), len(body))
        how = chance.random()
        if how < 0.55:
            lines.append(length)
        elif how < 0.85:
            lines.append(b"Transfer-Encoding: %b\r\n" % self._case(b"chunked"))
            if how < 0.65:
                lines.append(length if how < 0.6 else b"Content-Length: 3\r\n")
            body = self._chunked(body)
        elif how < 0.9:
            lines += [length, b"Content-Length: %d\r\n" % chance.choice((0, 3, len(body)))]
        elif how < 0.95:
            lines.append(b"Content-Length: %b\r\n" % chance.choice((b"+5", b"0x5", b"5 5", b"-1")))
        else:
            lines += [length, b"Transfer-Encoding: %b\r\n" % chance.choice((b"gzip", b"x,chunked"))]
        chance.shuffle(lines)
        path = chance.choice((b"infer", b"infer?x=1", b"generate", b"versions/1/infer"))
        return b"POST /v2/models/m/%b HTTP/1.1\r\n%b\r\n%b" % (path, b"".join(lines), body)

    def _chunked(self, body: bytes) -> bytes:
        parts = []
        while body:
            size = self.chance.randint(1, len(body))
            parts.append(b"%x\r\n%b\r\n" % (size, body[:size]))
            body = body[size:]
        return b"".join(parts) + b"0\r\n\r\n"

    def response(self, number: int) -> list[bytes]:
        """What a replica sends; b"" ends its connection."""
        chance = self.chance
        how = chance.random()
        if how < 0.3:
            return honest(number)
        body = b"answer to %d;" % number + b"x" * chance.choice((0, 10, 3000))
        fields = self._fields(tuple(name for name in NAMES if name not in _FRAMING | {b"close"}))
        fields = [line for line in fields if not line.lower().startswith(b"connection:")]
        head = b"HTTP/1.1 200 OK\r\n" + b"".join([*self._connection(), *fields])
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        chunked = b"Transfer-Encoding: chunked\r\n\r\n" + self._chunked(body)
        if how < 0.55:
            return [head + length + body]
        if how < 0.75:
            return [head + chunked]
        if how < 0.8:
            return [b"HTTP/1.1 103 X\r\nA: 1\r\n\r\n" * chance.randint(1, 12), head + length + body]
        if how < 0.85:
            return [head + b"\r\n" + body, b""]
        lies = (
            [head + length + body + _HIDDEN],
            [head + chunked + _HIDDEN],
            [head + b"Content-Length: 3\r\n" + chunked],
            [head + b"Content-Length: 99999999999999999999\r\n\r\n" + body],
            [head + b"Content-Length: 3\r\n" + length + body],
            [b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + body],
            [b"HTTP/1.1 204 X\r\n" + length + body],
            [head.replace(b"\r\n", b"\n", 1) + length + body],
            [head + b"X-A: 1\n" + length + body],
            [head + length + body[:-1], b""],
            [_HIDDEN[:8], b""],
        )
        return list(chance.choice(lies))

    # HTTP/1.1.

    async def http_client(self, num_requests: int) -> None:
        left = num_requests
        while left > 0:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.rig.port)
            try:
                while left > 0:
                    left -= 1
                    self.num_sent += 1
                    number = next(self.numbers)
                    writer.write(self.request(number))
                    async with asyncio.timeout(_LIMIT_S):
                        if not await self._read(reader, number):
                            break
            except (ConnectionError, asyncio.IncompleteReadError):
                # The response broke off, because the replica's did.
                self.note("broken off", number, None)
                self.uncertain.add(number)
            finally:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader, number: int) -> bool:
        """Reads one response. Returns False if the connection ends with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        status, fields = _parse(head)
        if b"transfer-encoding" in fields:
            body = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:size]
            await reader.readexactly(2)
        else:
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        found = _ANSWER.match(body)
        if status == 200 or status == 502:
            self.passed_on[number] += 1
            if status == 200 and found is None:
                self.failures.append(f"request {number}: status 200 without an answer")
        elif status == 204:
            self.uncertain.add(number)
        elif status == 503:
            self.uncertain.add(number)  # its connection ended, with or without it
        for name in (b"set-cookie", b"access-control-allow-origin", b"upgrade"):
            if name in fields:
                self.failures.append(f"request {number}: {name!r} of a replica was passed on")
        self.note(f"HTTP {status}", number, int(found[1]) if found else None)
        return b"close" not in fields.get(b"connection", b"")

    # gRPC.

    async def grpc_client(self, pool: GrpcPool, num_requests: int) -> None:
        for _ in range(num_requests):
            self.num_sent += 1
            number = next(self.numbers)
            names = self.chance.sample(_REQUEST_FIELDS, self.chance.randint(0, 4))
            if self.chance.random() < 0.05:
                names.append(b"connection")
            fields = [
                (name, self.chance.choice(NAMES)) for name in names if name != b"content-type"
            ]
            call = await send_infer(pool, number, fields)
            if call.status != 0:
                self.note(f"gRPC {call.status}", number, None)
                continue
            self.passed_on[number] += 1
            answer = pb.ModelInferResponse.FromString(bytes(call.data)[5:])
            self.note("gRPC 0", number, int(answer.id))
            for name in (b"set-cookie", b"access-control-allow-origin"):
                if name in call.trailers:
                    self.failures.append(f"call {number}: {name!r} of a replica was passed on")

    def trailers(self, number: int) -> list[tuple[str, str]]:
        names = [
            name.decode()
            for name in self.chance.sample(NAMES, self.chance.randint(0, 4))
            if name.strip(b"*") and b" " not in name
            and name not in http_fields.HOP_BY_HOP | _FRAMING
            and not name.startswith(b"grpc-")
        ]  # fmt: skip
        return [(name, "7") for name in names]


class RandomCall:
    """See CallOwner."""

    def __init__(self, message: bytes) -> None:
        self.stream: Stream | None = None
        self.upstream: GrpcUpstream | None = None
        self.data = b""
        self.status = -1
        self.trailers: dict[bytes, bytes] = {}
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._message = message

    def on_started(self) -> None:
        assert self.upstream is not None
        assert self.stream is not None
        message = b"\0" + len(self._message).to_bytes(4, "big") + self._message
        self.upstream.write(self.stream, (message,), len(message), is_last=True)

    def on_data(self, data: bytes | memoryview) -> None:
        self.data += bytes(data)

    def on_leaving(self) -> None:
        pass

    def on_closed(self, head: GrpcResponseHead) -> None:
        self.status, self.trailers = head.grpc_status, dict(head.fields)
        self.ended.set_result(None)

    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        self.ended.set_result(None)


async def send_infer(pool: GrpcPool, number: int, fields: list[tuple[bytes, bytes]]) -> RandomCall:
    """Sends a request with this id and these further fields, and waits for its end."""
    call = RandomCall(pb.ModelInferRequest(model_name="m", id=str(number)).SerializeToString())
    head = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", b"router"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    pool.start(encode_headers([*head, *fields]), call)
    async with asyncio.timeout(_LIMIT_S):
        await call.ended
    return call


async def call_infer(port: int, number: int, fields: list[tuple[bytes, bytes]]) -> RandomCall:
    pool = GrpcPool(Address("127.0.0.1", port))
    try:
        return await send_infer(pool, number, fields)
    finally:
        pool.close()


def _parse(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    lines = head.split(b"\r\n")
    pairs = (line.partition(b":") for line in lines[1:] if line)
    return int(lines[0].split(b" ")[1]), {
        name.lower(): value.strip().lower() for name, _, value in pairs
    }


async def attack(num_requests: int, seed: int = 7) -> Outcome:
    config = RouterConfig(
        model={"m": ModelSpec(idempotent=False)},
        retry=RetryOptions(max_retries=0),
        breaker=BreakerOptions(failures=1 << 30),
        outlier=OutlierOptions(errors=0, latency_factor=0.0),
    )
    async with routing(config=config) as rig:
        run = Run(rig, seed)
        replicas: list[CountingReplica] = []
        for name in ("a", "b"):
            http, grpc = CountingReplica(), CountingGrpcReplica()
            http.respond, grpc.trailers = run.response, run.trailers
            replicas += [http, grpc]
            await rig.add(name, http, grpc)
        pool = GrpcPool(Address("127.0.0.1", rig.grpc_port))
        share = -(-num_requests // (NUM_CLIENTS + NUM_CLIENTS // 2))
        await asyncio.gather(
            *(run.http_client(share) for _ in range(NUM_CLIENTS)),
            *(run.grpc_client(pool, share) for _ in range(NUM_CLIENTS // 2)),
        )
        pool.close()
        parsed = Counter(number for replica in replicas for number in replica.parsed)
        _judge(run, parsed, [text for replica in replicas for text in replica.broken])
    return Outcome(run.num_sent, parsed.total(), dict(sorted(run.kinds.items())), run.failures)


def _judge(run: Run, parsed: Counter[int], broken: list[str]) -> None:
    run.failures += [f"a replica could not parse: {text}" for text in broken]
    for number, count in parsed.items():
        if count != run.passed_on[number] and not (count == 1 and number in run.uncertain):
            run.failures.append(f"request {number} was parsed {count} times")
    run.failures += [f"request {n} was not parsed" for n in run.passed_on if n not in parsed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    start_s = time.monotonic()
    outcome = uvloop.run(attack(arguments.requests, arguments.seed))
    print(
        f"{outcome.num_requests} requests, {outcome.num_parsed} parsed by replicas, "
        f"{len(outcome.failures)} failures, {time.monotonic() - start_s:.0f} s; {outcome.kinds}"
    )
    for failure in outcome.failures[:20]:
        print(failure)
    return int(bool(outcome.failures))


if __name__ == "__main__":
    sys.exit(main())
