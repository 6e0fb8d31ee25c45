"""A gRPC endpoint and a client, joined without sockets: bytes go through a fake transport, time
through a fake clock."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Sequence

from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.keys.guard import Guard
from naiad.transport.grpc.endpoint import GrpcEndpoint
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.protocol import GrpcProtocol
from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import (
    ConnectionFailed,
    DataReceived,
    GoAwayReceived,
    HeadersReceived,
    StreamEnded,
    TrailersReceived,
)
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.limits import Http2Limits
from naiad.transport.http2.stream import Stream
from naiad.transport.turn import Turn
from tests.fakes import FakeClock, FakeCore, FakeTransport

SERVICE = "/inference.GRPCInferenceService/"


class ClientCall:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] | None = None
        self.data = bytearray()
        self.reset_code: int | None = None

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        """The compressed flag and the content of each message."""
        found, data = [], bytes(self.data)
        while data:
            flag, length = struct.unpack_from(">BI", data)
            found.append((flag, data[5 : 5 + length]))
            data = data[5 + length :]
        return found

    @property
    def status(self) -> int | None:
        fields = self.trailers if self.trailers is not None else self.headers
        return int(fields["grpc-status"]) if "grpc-status" in fields else None

    @property
    def message(self) -> str:
        fields = self.trailers if self.trailers is not None else self.headers
        return fields.get("grpc-message", "")


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


class Rig:
    """With `methods` the server is an endpoint that has only these; without, it is the whole
    frontend over a FakeCore."""

    def __init__(
        self,
        options: GrpcOptions | None = None,
        methods: list[Method] | None = None,
        client_limits: Http2Limits | None = None,
        guard: Guard | None = None,
        limit_bytes: int = sys.maxsize,
    ) -> None:
        """`limit_bytes` is the size of the memory budget."""
        self.core = FakeCore()
        self.core.budget.limit_bytes = limit_bytes
        self.clock = FakeClock()
        if methods is None:
            self.frontend = GrpcFrontend(self.core, options, guard)
            self.endpoint = self.frontend._endpoint
            self.endpoint.clock_ns = self.clock.now_ns
        else:
            self.endpoint = GrpcEndpoint(
                methods, options, clock_ns=self.clock.now_ns, budget=self.core.budget
            )
        self.endpoint.turn = Turn(lambda: 1.0)  # a turn that never ends
        self.client_limits = client_limits
        self.connect()

    def connect(self) -> None:
        self.client = Http2Connection(is_server=False, limits=self.client_limits)
        self.protocol: GrpcProtocol = self.endpoint.protocol_factory()
        self.transport = FakeTransport(self.protocol)
        self.calls: dict[int, ClientCall] = {}
        self.goaways: list[GoAwayReceived] = []
        self.protocol.connection_made(self.transport)
        self.exchange()

    def feed(self, data: bytes) -> None:
        """Hands data to the server as a transport does: into whatever buffer the protocol gives."""
        while data and not self.transport.is_closed:
            buffer = self.protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    def to_server(self) -> None:
        out = bytearray()
        while self.client.sender.out:
            for piece in self.client.sender.pop_output():
                out += piece
        self.feed(bytes(out))

    def from_server(self) -> None:
        for event in self.client.receive(self.transport.take()):
            self.hear(event)

    def exchange(self) -> None:
        for _ in range(100):
            self.to_server()
            self.from_server()
            if not self.client.sender.out:
                return

    async def settle(self) -> None:
        """Lets both sides do everything that is due now."""
        for _ in range(3):
            await asyncio.sleep(0)
            self.exchange()

    def hear(self, event: object) -> None:
        match event:
            case HeadersReceived(stream, head, _):
                self.calls[stream.id].headers = _text(head)
            case TrailersReceived(stream, head):
                self.calls[stream.id].trailers = _text(head)
            case DataReceived(stream, data, _):
                self.calls[stream.id].data += data
            case StreamEnded(stream, code, _) if stream.id in self.calls:
                self.calls[stream.id].reset_code = code
            case GoAwayReceived():
                self.goaways.append(event)
            case ConnectionFailed(code, reason):
                raise AssertionError(f"the client found fault with the server: {code} {reason}")

    def open(
        self,
        path: str,
        metadata: dict[str, str] | None = None,
        *,
        end: bool = False,
        more: Sequence[tuple[str, str]] = (),
    ) -> ClientCall:
        """`more` are headers whose names may repeat."""
        if not path.startswith("/"):
            path = SERVICE + path
        fields = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "test",
            "te": "trailers", "content-type": "application/grpc", **(metadata or {}),
        }  # fmt: skip
        headers = [*fields.items(), *more]
        block = encode_headers([(name.encode(), value.encode()) for name, value in headers])
        stream = self.client.open_stream(block, end_stream=end)
        call = self.calls[stream.id] = ClientCall(stream)
        return call

    def send(self, call: ClientCall, message: bytes, *, end: bool = False, flag: int = 0) -> None:
        data = framed(message, flag)
        self.client.sender.data(call.stream, [data], len(data), end_stream=end)

    def half_close(self, call: ClientCall) -> None:
        self.client.sender.data(call.stream, [], 0, end_stream=True)

    async def unary(
        self, path: str, message: bytes, metadata: dict[str, str] | None = None
    ) -> ClientCall:
        call = self.open(path, metadata)
        self.send(call, message, end=True)
        await self.settle()
        return call

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance_s(seconds)
        if not self.transport.is_closed:
            self.protocol.deadlines.tick(self.clock.now_ns())

    def forget_requests(self) -> None:
        """The core lets go of the requests that it keeps for the test, and with them of their
        memory."""
        self.core.requests.clear()
        self.core.buffers.clear()
        self.core.held.clear()
        self.protocol.account.settle()

    def _used_bytes(self) -> int:
        self.forget_requests()
        return self.endpoint.budget.used_bytes

    async def close(self) -> None:
        """Closes the connection and asserts that nothing is left of it."""
        self.transport.close()
        await asyncio.sleep(0)
        assert not self.endpoint.connections
        async with asyncio.timeout(10):
            # A thread that has decompressed or decoded a message may still be about to drop it.
            while self._used_bytes():
                await asyncio.sleep(0.001)
        assert not self.protocol.connection.streams


def _text(head: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in head}
