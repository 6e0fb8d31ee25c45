"""Any bytes may arrive: `receive` returns, memory stays bounded, and two of our own connections
understand each other."""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import (
    ConnectionFailed,
    DataReceived,
    HeadersReceived,
    StreamEnded,
    TrailersReceived,
)
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.limits import Http2Limits
from naiad.transport.http2.stream import CLOSED, Stream
from tests.unit.transport.http2.http2_rig import (
    HELLO,
    REQUEST,
    RESPONSE,
    TRAILERS,
    frame,
    request,
    sent,
    server,
)

frame_bytes = st.builds(
    frame,
    st.one_of(st.integers(0, 9), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 32, 37]), st.integers(0, 255)),
    st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([REQUEST, TRAILERS, b"\0" * 8]),
        st.builds(lambda n: b"\0" * n, st.integers(0, 70_000)),
    ),
)


def check_consistent(connection: Http2Connection) -> None:
    assert all(stream.state != CLOSED for stream in connection.streams.values())
    assert connection.sender.pending_bytes == sum(
        stream.pending_bytes for stream in connection.streams.values()
    )
    assert len(connection.streams) <= connection.limits.max_concurrent_streams
    assert len(connection._held) <= 64 * 1024


@given(
    st.lists(st.one_of(frame_bytes, st.binary(max_size=30)), max_size=25),
    st.integers(1, 5000),
    st.booleans(),
)
def test_any_frames(parts: list[bytes], size: int, answers: bool) -> None:
    connection = server(Http2Limits(max_concurrent_streams=8))
    data = b"".join(parts)
    for at in range(0, len(data), size):
        for event in connection.receive(data[at : at + size]):
            if answers and isinstance(event, HeadersReceived) and event.stream.state != CLOSED:
                connection.sender.response(
                    event.stream, RESPONSE, [b"x" * 20_000], 20_000, TRAILERS
                )
        check_consistent(connection)
    sent(connection)


@given(st.binary(max_size=300))
def test_any_bytes_as_a_client(data: bytes) -> None:
    for connection in (Http2Connection(is_server=False), Http2Connection(is_server=True)):
        connection.receive(data)
        check_consistent(connection)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(0, 6))
def test_a_good_conversation_with_some_bytes_changed(rng: random.Random, changes: int) -> None:
    client = Http2Connection(is_server=False)
    connection = Http2Connection(is_server=True)
    for _ in range(4):
        stream = client.open_stream(REQUEST)
        client.sender.data(stream, [b"d" * rng.randrange(5000)], 0, end_stream=True)
    data = bytearray(sent(client))
    for _ in range(changes):
        data[rng.randrange(len(data))] = rng.randrange(256)
    connection.receive(bytes(data))
    check_consistent(connection)


class Walk:
    """Two of our connections, and a random order of commands and deliveries between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        limits = Http2Limits(
            stream_window_bytes=rng.choice([65_535, 1 << 20]),
            connection_window_bytes=rng.choice([65_535, 1 << 20]),
        )
        self.client = Http2Connection(is_server=False, limits=limits)
        self.server = Http2Connection(is_server=True, limits=limits)
        self.wire = {id(self.client): bytearray(), id(self.server): bytearray()}
        self.said: dict[tuple[str, int], bytearray] = {}
        self.heard: dict[tuple[str, int], bytearray] = {}
        self.open: dict[int, Stream] = {}
        self.done: set[int] = set()
        self.reset: set[int] = set()

    def step(self) -> None:
        self.rng.choice([self.request, self.deliver, self.deliver, self.more, self.cancel])()

    def request(self) -> None:
        if len(self.client.streams) >= self.client.peer_max_concurrent_streams:
            return
        stream = self.client.open_stream(
            encode_headers([(b":method", b"POST"), (b":path", b"/%d" % self.rng.randrange(3))])
        )
        self.open[stream.id] = stream
        self.more()

    def more(self) -> None:
        for stream in list(self.open.values()):
            data = self.rng.randbytes(self.rng.choice([0, 1, 200, 9000]))
            end = self.rng.random() < 0.5
            self.said.setdefault(("request", stream.id), bytearray()).extend(data)
            self.client.sender.data(stream, [data], len(data), end_stream=end)
            if end:
                del self.open[stream.id]

    def cancel(self) -> None:
        streams = list(self.client.streams.values())
        if streams and self.rng.random() < 0.3:
            stream = self.rng.choice(streams)
            self.client.sender.reset(stream, 8)
            self.open.pop(stream.id, None)
            self.reset.add(stream.id)

    def deliver(self) -> None:
        for source, target in ((self.client, self.server), (self.server, self.client)):
            wire = self.wire[id(source)]
            wire += sent(source)
            size = self.rng.choice([1, 9, 100, len(wire)])
            data, wire[:size] = bytes(wire[:size]), b""
            for event in target.receive(data):
                self.hear(target, event)

    def hear(self, target: Http2Connection, event: object) -> None:
        assert not isinstance(event, ConnectionFailed), event
        kind = "request" if target is self.server else "response"
        match event:
            case DataReceived(stream, data, end):
                self.heard.setdefault((kind, stream.id), bytearray()).extend(data)
                if end and kind == "request":
                    self.answer(stream)
            case TrailersReceived(stream, _):
                self.done.add(stream.id)
            case StreamEnded(stream, _, _):
                self.reset.add(stream.id)
                self.open.pop(stream.id, None)

    def answer(self, stream: Stream) -> None:
        if stream.state == CLOSED:
            return
        data = self.rng.randbytes(self.rng.choice([0, 5, 4000, 100_000]))
        self.said[("response", stream.id)] = bytearray(data)
        self.server.sender.response(stream, RESPONSE, [data], len(data), TRAILERS)

    def finish(self) -> None:
        for stream in list(self.open.values()):
            self.client.sender.data(stream, [], 0, end_stream=True)
            self.said.setdefault(("request", stream.id), bytearray())
        self.open.clear()
        for _ in range(10_000):
            for source, target in ((self.client, self.server), (self.server, self.client)):
                wire = self.wire[id(source)]
                wire += sent(source)
                data = bytes(wire)
                wire.clear()
                for event in target.receive(data):
                    self.hear(target, event)
            if not self.client.streams and not self.server.streams and not any(self.wire.values()):
                return
        raise AssertionError("the conversation does not end")


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_walk(seed: int) -> None:
    rng = random.Random(seed)
    walk = Walk(rng)
    for _ in range(rng.randrange(5, 60)):
        walk.step()
        check_consistent(walk.client)
        check_consistent(walk.server)
    walk.finish()
    for key, data in walk.said.items():
        if key[1] not in walk.reset:
            assert walk.heard.get(key, b"") == data
            assert key[1] in walk.done


class TestOtherImplementation:
    """The `h2` package on the other side."""

    def test_as_their_server(self) -> None:
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.initiate_connection()
        connection = Http2Connection(is_server=True)
        answers: list[h2.events.Event] = []
        payload = bytes(range(256)) * 1000
        for stream_id in (1, 3, 5):
            fields = {
                ":method": "POST",
                ":scheme": "http",
                ":path": "/x",
                ":authority": "a",
                "n": str(stream_id),
            }
            client.send_headers(stream_id, list(fields.items()))
            client.send_data(stream_id, b"q" * 1000, end_stream=True)
        for _ in range(200):
            for event in connection.receive(client.data_to_send()):
                if isinstance(event, DataReceived) and event.end_stream:
                    connection.sender.response(
                        event.stream, RESPONSE, [payload], len(payload), TRAILERS
                    )
            events = client.receive_data(sent(connection))
            for answer in events:
                if isinstance(answer, h2.events.DataReceived):
                    client.acknowledge_received_data(
                        answer.flow_controlled_length, answer.stream_id
                    )
            answers += events
        for stream_id in (1, 3, 5):
            content = b"".join(
                e.data
                for e in answers
                if isinstance(e, h2.events.DataReceived) and e.stream_id == stream_id
            )
            assert content == payload
        assert sum(isinstance(e, h2.events.StreamEnded) for e in answers) == 3
        assert not connection.streams

    def test_as_their_client(self) -> None:
        other = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        other.initiate_connection()
        client = Http2Connection(is_server=False)
        stream = client.open_stream(REQUEST)
        client.sender.data(stream, [b"q" * 200_000], 200_000, end_stream=True)
        received, events = b"", []
        for _ in range(100):
            for event in other.receive_data(sent(client)):
                if isinstance(event, h2.events.DataReceived):
                    received += event.data
                    other.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    other.send_headers(1, [(":status", "200")])
                    other.send_data(1, b"answer")
                    other.send_headers(1, [("grpc-status", "0")], end_stream=True)
            events += client.receive(other.data_to_send())
        assert received == b"q" * 200_000
        content = [
            event
            for event in events
            if isinstance(event, (HeadersReceived, DataReceived, TrailersReceived))
        ]
        assert [bytes(e.data) for e in content if isinstance(e, DataReceived)] == [b"answer"]
        assert isinstance(content[-1], TrailersReceived)
        assert content[-1].head == [(b"grpc-status", b"0")]
        assert not client.streams


def test_a_request_that_drips_in_byte_by_byte_costs_no_memory() -> None:
    connection = Http2Connection(is_server=True)
    for byte in HELLO + request(1):
        connection.receive(bytes((byte,)))
        assert len(connection._held) < 64
    assert len(connection.streams) == 1
