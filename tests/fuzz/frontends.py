"""Targets in this process: the whole HTTP and gRPC frontends over a FakeCore, without sockets.

`http` and `http2` feed any bytes to a connection, in pieces whose sizes the first byte decides.
`json`, `chat` and `grpc` send a complete request, whose first byte chooses the route or the method;
they must get a response. Binary tensors of `json` follow MARK.
Rule: no handler fails unexpectedly. Each such failure is an error in the log, which ends the case.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Any

from naiad import log
from naiad.errors import invalid_arg
from naiad.frontends.grpc.frontend import API_CLASSES, GrpcFrontend
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.options import HttpOptions
from naiad.ipc.generation_call import CALL_PARAMETER, read_call
from naiad.repository.request_check import RequestCheck
from tests.fakes import FakeCore, FakeTransport
from tests.fakes.core import Held
from tests.fakes.language import LanguageCore, piece, say
from tests.fuzz.mutation import mutated_json
from tests.fuzz.target import target
from tests.wire.grpc_rig import Rig as GrpcRig

LIMIT_S = 5.0
MARK = b"\0\0"
MAX_COMPLETIONS = 128
EXPECTED_ERRORS = ("One or more of the kv metrics", "Error in kv metric", "orca_type is set to")
"""Errors that the log shows for requests whose header asks for a load report."""
JSON_ROUTES = (
    "/v2/models/add_sub/infer", "/v2/models/identity/infer", "/v2/models/classes/infer",
    "/v2/models/id_bytes/infer", "/v2/models/id_vv/infer", "/v2/models/add_sub/generate",
    "/v2/models/held_stream/generate_stream", "/v2/models/gen/generate", "/v2/repository/index",
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload", "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register", "/v2/systemsharedmemory/unregister", "/v2/logging",
    "/v2/trace/setting", "/v2/models/m/trace/setting",
)  # fmt: skip
CHAT_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
METHODS = ("ModelInfer", "ModelStreamInfer", *API_CLASSES)
HTTP_TOKENS = (
    b"GET ", b"POST ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Content-Length: ", b"\r\n\r\n",
    b"\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n",
    b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Host: localhost\r\n",
    b"Inference-Header-Content-Length: ", b"0\r\n\r\n", b"5\r\nabcde\r\n", b"Origin: http://a\r\n",
    b"Accept-Encoding: gzip\r\n", b"endpoint-load-metrics-format: text\r\n", b"/v2/models/",
    b"/infer",
    b"Authorization: Bearer x\r\n", b"\t", b"\0", b"%2e%2e", b"Upgrade: h2c\r\n",
)  # fmt: skip
FRAMES = tuple(
    bytes((0, 0, size, kind, flags, 0, 0, 0, stream)) + bytes(size)
    for kind, size in (
        (0, 8),
        (1, 5),
        (2, 5),
        (3, 4),
        (4, 6),
        (6, 8),
        (7, 8),
        (8, 4),
        (9, 3),
        (12, 2),
    )
    for flags in (0, 1, 4, 5, 8, 32)
    for stream in (0, 1, 3)
)


class Errors:
    """Collects what the log reports as an error, and what the event loop catches."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, message: str, details: str = "", *, request_id: str = "") -> None:
        if not message.startswith(EXPECTED_ERRORS):
            self.texts.append(f"{message}\n{details}")

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.texts.append(f"{context.get('message')}: {context.get('exception')!r}")

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        self.texts.clear()
        original = log.error
        log.error = self.add
        try:
            yield
        finally:
            log.error = original
        assert not self.texts, "\n".join(self.texts)


ERRORS = Errors()


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(ERRORS.on_loop_error)
    return loop


def on_loop(run: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await run()

    with ERRORS.watch():
        event_loop().run_until_complete(limited())


def prepared(core: FakeCore) -> FakeCore:
    """Lets every model check its inputs, as a real one does, and keeps nothing of a case."""
    core.keeps_requests = False
    for model in core.models.values():
        model.check = RequestCheck(model.spec).check
    return core


class HttpHost:
    """A frontend that lives as long as this process, and a new connection for each case."""

    def __init__(self, core: FakeCore) -> None:
        self.core = prepared(core)
        self.frontend = HttpFrontend(core, HttpOptions())

    async def feed(self, data: bytes, size: int) -> FakeTransport:
        connection = self.frontend.protocol_factory()
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        for start in range(0, len(data), size):
            feed(connection, transport, data[start : start + size])
            await asyncio.sleep(0)
        return transport

    async def request(self, path: str, headers: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        if body or "json" in headers:
            head += f"Content-Length: {len(body)}\r\n"
        transport = await self.feed(f"{head}\r\n".encode() + body, 1 << 16)
        while not transport.written and not transport.is_closed:
            self.respond()
            await asyncio.sleep(0)
        response = bytes(transport.written)
        await self.finish(transport)
        return response

    async def finish(self, transport: FakeTransport) -> None:
        for _ in range(3):
            self.respond()
            await asyncio.sleep(0)
        if not transport.is_closed:
            transport.close()
        await asyncio.sleep(0)
        self.core.held.clear()
        self.core.loaded.clear()
        self.core.unloaded.clear()

    def respond(self) -> None:
        """Responds to the language models' requests and ends the others'."""
        while self.core.held:
            held = self.core.held.pop()
            text = held.request.parameters.get(CALL_PARAMETER)
            if text is None or held.is_cancelled:
                end(held)
                continue
            count = min(read_call(str(text)).parameters.n, MAX_COMPLETIONS)
            pieces = [piece("some text", index, "stop") for index in range(count)]
            say(held, *pieces, is_final=True)


def end(held: Held) -> None:
    if held.is_cancelled:
        return
    if held.request.inputs:
        held.answer()
    else:
        held.stream.fail(invalid_arg("no input"))


@cache
def plain_host() -> HttpHost:
    return HttpHost(FakeCore())


@cache
def language_host() -> HttpHost:
    return HttpHost(LanguageCore())


@target(tokens=HTTP_TOKENS)
def http(data: bytes) -> None:
    if not data:
        return

    async def run() -> None:
        host = plain_host()
        transport = await host.feed(data[1:], data[0] or 1 << 16)
        written = bytes(transport.written)
        await host.finish(transport)
        assert not written or written.startswith(b"HTTP/1."), written[:100]
        assert b"internal error" not in written, written

    on_loop(run)


def mutated_body(data: bytes, chance: random.Random) -> bytes:
    head, mark, tail = data[1:].partition(MARK)
    return data[:1] + mutated_json(head, chance) + mark + tail


def send_body(host: HttpHost, routes: tuple[str, ...], data: bytes) -> None:
    head, mark, tail = data[1:].partition(MARK)
    headers = "Content-Type: application/json\r\n"
    if mark:
        headers += f"Inference-Header-Content-Length: {len(head)}\r\n"

    async def run() -> None:
        path = routes[data[0] % len(routes)]
        response = await host.request(path, headers, head + tail)
        assert response.startswith(b"HTTP/1.1 "), response[:100]
        assert b"internal error" not in response, response

    on_loop(run)


JSON_TOKENS = (
    b'"inputs"', b'"name"', b'"datatype"', b'"shape"', b'"data"', b'"outputs"', b'"parameters"',
    b'"binary_data_size"', b'"binary_data"', b'"classification"', b'"shared_memory_region"',
    b'"sequence_id"', b'"priority"', b'"timeout"', b'"id"', b'"BYTES"', b'"FP16"', b'"INT64"', MARK,
)  # fmt: skip


@target(tokens=JSON_TOKENS, mutate=mutated_body)
def json(data: bytes) -> None:
    if data:
        send_body(plain_host(), JSON_ROUTES, data)


CHAT_TOKENS = (
    b'"messages"', b'"role"', b'"content"', b'"tool_calls"', b'"tools"', b'"tool_choice"',
    b'"stream"',
    b'"stop"', b'"n"', b'"logprobs"', b'"response_format"', b'"logit_bias"', b'"max_tokens"',
    b'"image_url"', b'"guided_json"', b'"prompt"', b'"suffix"', b'"echo"', b'"input"', b'"previous',
)  # fmt: skip


@target(tokens=CHAT_TOKENS, mutate=mutated_body)
def chat(data: bytes) -> None:
    if data:
        send_body(language_host(), CHAT_ROUTES, data)


@cache
def grpc_frontend() -> tuple[FakeCore, GrpcFrontend]:
    core = prepared(FakeCore())
    return core, GrpcFrontend(core)


@target(tokens=FRAMES)
def http2(data: bytes) -> None:
    if not data:
        return

    async def run() -> None:
        core, frontend = grpc_frontend()
        protocol = frontend.protocol_factory()
        transport = FakeTransport(protocol)
        protocol.connection_made(transport)
        size = data[0] or 1 << 16
        for start in range(1, len(data), size):
            feed(protocol, transport, data[start : start + size])
            while core.held:
                end(core.held.pop())
            await asyncio.sleep(0)
        transport.close()
        await asyncio.sleep(0)
        core.loaded.clear()
        core.unloaded.clear()
        core.held.clear()
        protocol.account.settle()

    on_loop(run)


def feed(protocol: Any, transport: FakeTransport, data: bytes) -> None:
    """Hands data over as a transport does: into the buffer that the protocol provides."""
    while data and not transport.is_closed:
        buffer = protocol.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


@cache
def grpc_rig() -> GrpcRig:
    """A rig with an open connection. A case closes it at its end."""
    rig = GrpcRig()
    prepared(rig.core)
    return rig


@target(
    tokens=(b"\x0a", b"\x12", b"\x1a", b"\x2a", b"\x3a", b"FP32", b"BYTES", b"add_sub", b"INPUT0")
)
def grpc(data: bytes) -> None:
    """The first byte chooses the method, and the second the compression flag."""
    if len(data) < 2:
        return

    async def run() -> None:
        rig = grpc_rig()
        if rig.transport.is_closed:
            rig.connect()
        method = METHODS[data[0] % len(METHODS)]
        flag = data[1] % 3
        metadata = {"grpc-encoding": ("gzip", "deflate", "identity")[data[1] // 3 % 3]}
        call = rig.open(f"/inference.GRPCInferenceService/{method}", metadata)
        rig.send(call, data[2:], end=True, flag=flag)
        while call.status is None and call.reset_code is None and not rig.goaways:
            await rig.settle()
            while rig.core.held:
                end(rig.core.held.pop())
        assert call.message != "internal error", (method, data)
        await rig.close()

    on_loop(run)
