"""A hostile client over real sockets, built on the `h2` package. The server must respond, reject or
close the connection, and serve other clients."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest

from naiad.core.memory_budget import CHUNK_BYTES
from naiad.pb.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.limits import Http2Limits
from tests.wire.grpc_host import Host, hosted

INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    limits = Http2Limits(
        control_frame_burst=500,
        control_frames_per_s=100,
        reset_burst=100,
        resets_per_s=10,
        max_concurrent_streams=100,
    )
    with hosted(GrpcOptions(http2=limits)) as host:
        yield host


class Adversary:
    """An h2 client without those checks of h2 that would prevent an attack."""

    def __init__(self, host: Host, initial_window: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", host.port), timeout=30)
        config = h2.config.H2Configuration(
            client_side=True,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        if initial_window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window})
        self.events: list[h2.events.Event] = []
        self.flush()
        self.read_until(h2.events.RemoteSettingsChanged)

    def __enter__(self) -> Adversary:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.raw(self.h2.data_to_send())

    def raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # The server has closed the connection, which `closed` sees.

    def open(self, path: str = INFER, **extra: str) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "content-type": "application/grpc",
        }
        self.h2.send_headers(stream_id, [*headers.items(), *extra.items()])
        return stream_id

    def send(self, stream_id: int, message: bytes, *, end: bool = True) -> None:
        self.h2.send_data(stream_id, struct.pack(">BI", 0, len(message)) + message, end_stream=end)
        self.flush()

    def read_until(self, kind: type[h2.events.Event]) -> h2.events.Event:
        """Reads until an event of this type. Fails if the connection ends before."""
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    return event
            data = self.socket.recv(65536)
            assert data, f"closed before {kind.__name__}: {self.events}"
            self.events += self.h2.receive_data(data)
            self.flush()

    def closed(self) -> h2.errors.ErrorCodes | None:
        """Reads until the connection ends. Returns the error code of GOAWAY, or None without one.
        Parses the frames itself, because h2 rejects some of them."""
        received = bytearray()
        try:
            while data := self.socket.recv(65536):
                received += data
        except OSError:
            pass
        code = None
        while len(received) >= 9:
            length = int.from_bytes(received[:3], "big")
            if received[3] == 7:
                code = h2.errors.ErrorCodes(int.from_bytes(received[13:17], "big"))
            del received[: 9 + length]
        return code


def identity(data: bytes = b"\0\0\0\0") -> bytes:
    message = ModelInferRequest(model_name="identity", raw_input_contents=[data])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[len(data) // 4])
    return message.SerializeToString()


@pytest.fixture(autouse=True)
def assert_other_clients_are_served(host: Host) -> Iterator[None]:
    yield
    with Adversary(host) as good:
        good.send(good.open(), identity(b"\1\2\3\4"))
        event = good.read_until(h2.events.DataReceived)
        assert isinstance(event, h2.events.DataReceived)
        assert ModelInferResponse.FromString(event.data[5:]).raw_output_contents[0] == b"\1\2\3\4"


def is_calm(code: h2.errors.ErrorCodes | None) -> bool:
    return code is h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


def failures(host: Host, cause: str) -> int:
    return host.ask(lambda: host.frontend.counters.failures[cause])


class TestFloods:
    def test_rapid_resets(self, host: Host) -> None:
        before = failures(host, "rapid_reset")
        with Adversary(host) as adversary:
            for _ in range(2000):
                stream_id = adversary.open()
                adversary.h2.reset_stream(stream_id)
            adversary.flush()
            assert is_calm(adversary.closed())
        assert failures(host, "rapid_reset") == before + 1

    def test_ping_frames(self, host: Host) -> None:
        with Adversary(host) as adversary:
            for _ in range(2000):
                adversary.h2.ping(b"01234567")
            adversary.flush()
            assert is_calm(adversary.closed())

    def test_settings_frames(self, host: Host) -> None:
        with Adversary(host) as adversary:
            adversary.raw(b"\0\0\6\4\0\0\0\0\0\0\3\0\0\0\1" * 2000)
            assert is_calm(adversary.closed())

    def test_empty_data_frames(self, host: Host) -> None:
        with Adversary(host) as adversary:
            stream_id = adversary.open()
            for _ in range(2000):
                adversary.h2.send_data(stream_id, b"")
            adversary.flush()
            assert is_calm(adversary.closed())

    def test_continuation_frames(self, host: Host) -> None:
        with Adversary(host) as adversary:
            adversary.raw(b"\0\0\1\1\0\0\0\0\1\x83" + b"\0\0\0\x09\0\0\0\0\1" * 100_000)
            assert is_calm(adversary.closed())

    def test_large_headers(self, host: Host) -> None:
        with Adversary(host) as adversary:
            adversary.open(**{f"x{i}": "y" * 3000 for i in range(20)})
            adversary.flush()
            assert is_calm(adversary.closed())

    def test_priority_frames(self, host: Host) -> None:
        with Adversary(host) as adversary:
            adversary.raw(
                b"".join(
                    b"\0\0\5\2\0" + struct.pack(">I", i) + b"\0\0\0\0\1" for i in range(1, 4001, 2)
                )
            )
            assert is_calm(adversary.closed())

    def test_refuses_more_streams_than_allowed(self, host: Host) -> None:
        with Adversary(host) as adversary:
            adversary.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
            adversary.h2.remote_settings.acknowledge()
            for _ in range(150):
                adversary.open()
            adversary.flush()
            event = adversary.read_until(h2.events.StreamReset)
            assert isinstance(event, h2.events.StreamReset)
            assert event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM


class TestSlowClients:
    def test_a_client_without_a_flow_control_window(self, host: Host) -> None:
        """Responses wait in their streams. Closing the connection drops them."""
        with Adversary(host, initial_window=0) as adversary:
            for _ in range(50):
                adversary.send(adversary.open(), identity(bytes(40_000)))
            host.wait_until(
                lambda: any(
                    c.sender.pending_bytes > 1_000_000 for c in host.frontend._endpoint.connections
                )
            )
        host.wait_until(
            lambda: not any(c.sender.pending_bytes for c in host.frontend._endpoint.connections)
        )

    def test_a_flow_control_window_of_one_byte(self, host: Host) -> None:
        with Adversary(host, initial_window=1) as adversary:
            stream_id = adversary.open()
            adversary.send(stream_id, identity())
            adversary.read_until(h2.events.DataReceived)
            for _ in range(5):
                adversary.h2.increment_flow_control_window(1, stream_id)
            adversary.flush()

    def test_allocates_only_received_bytes_of_an_announced_message(self, host: Host) -> None:
        with Adversary(host) as adversary:
            for _ in range(50):
                adversary.h2.send_data(
                    adversary.open(), struct.pack(">BI", 0, 2**31 - 1) + b"x" * 100
                )
            adversary.flush()
            budget = host.frontend._endpoint.budget
            host.wait_until(lambda: 5000 <= budget.used_bytes <= 5000 + CHUNK_BYTES)
        host.wait_until(lambda: host.frontend._endpoint.budget.used_bytes == 0)

    def test_a_connection_that_ends_within_a_frame(self, host: Host) -> None:
        before = host.ask(lambda: host.frontend.counters.connections_total)
        for cut in (1, 10, 24, 30, 60):
            with Adversary(host) as adversary:
                adversary.open()
                adversary.raw(adversary.h2.data_to_send()[:cut])
        assert host.ask(lambda: host.frontend.counters.connections_total) >= before + 4


class TestInvalidData:
    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"\0" * 100,
            b"PRI * HTTP/2.0\r\n\r\nXXXXX",
        ],
    )
    def test_other_protocols(self, host: Host, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", host.port), timeout=30) as connection:
            connection.sendall(data)
            received = b""
            while part := connection.recv(65536):
                received += part
        if data.startswith(b"GET"):
            assert b"HTTP/1.1 400" in received

    def test_random_frames(self, host: Host) -> None:
        rng = random.Random(7)
        for _ in range(60):
            with Adversary(host) as adversary:
                for _ in range(rng.randrange(30)):
                    payload = rng.randbytes(rng.choice([0, 4, 5, 8, 20, 500]))
                    header = struct.pack(">I", len(payload))[1:] + bytes(
                        (rng.randrange(11), rng.randrange(256))
                    )
                    adversary.raw(header + struct.pack(">I", rng.randrange(12)) + payload)

    def test_random_messages(self, host: Host) -> None:
        rng = random.Random(8)
        good = identity(bytes(64))
        with Adversary(host) as adversary:
            for _ in range(300):
                message = bytearray(good)
                for _ in range(rng.randrange(1, 6)):
                    message[rng.randrange(len(message))] = rng.randrange(256)
                adversary.send(adversary.open(), bytes(message))
                adversary.events.clear()
                adversary.read_until(h2.events.StreamEnded)

    def test_rejects_decreasing_stream_ids(self, host: Host) -> None:
        with Adversary(host) as adversary:
            for stream_id in (5, 3):
                adversary.raw(b"\0\0\5\1\5" + struct.pack(">I", stream_id) + b"\x83\x86\x44\x01/")
            assert adversary.closed() is h2.errors.ErrorCodes.STREAM_CLOSED

    def test_rejects_a_flow_control_window_that_overflows(self, host: Host) -> None:
        with Adversary(host) as adversary:
            adversary.raw(b"\0\0\4\x08\0\0\0\0\0\x7f\xff\xff\xff")
            assert adversary.closed() is h2.errors.ErrorCodes.FLOW_CONTROL_ERROR
