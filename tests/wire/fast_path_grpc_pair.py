"""A gRPC server with fast paths next to one without: both get the same bytes, and everything is
compared."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from naiad.fastpath import grpc_connection
from naiad.fastpath.grpc_frames import learn_frames
from naiad.pb.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.hpack import encode_headers
from tests.unit.transport.http2.http2_rig import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    WINDOW,
    frame,
    frames,
    u32,
)
from tests.wire.grpc_rig import SERVICE, Rig, framed

HEAD = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"{SERVICE}ModelInfer".encode()),
    (b":authority", b"test"),
    (b"te", b"trailers"), (b"content-type", b"application/grpc"),
]  # fmt: skip
BLOCK = encode_headers(HEAD)
INITIAL_WINDOW = 4


def count_learning(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gains an entry for each kind of request that is learned from now on."""
    learned: list[int] = []

    def learn(*arguments: Any) -> object:
        learned.append(1)
        return learn_frames(*arguments)

    monkeypatch.setattr(grpc_connection, "learn_frames", learn)
    return learned


class Pair:
    """A server with fast paths and one without."""

    def __init__(self, options: GrpcOptions | None = None, limit_bytes: int = sys.maxsize) -> None:
        options = options or GrpcOptions()
        assert options.fast_paths
        self.fast = Rig(options, limit_bytes=limit_bytes)
        full_options = msgspec.structs.replace(options, fast_paths=False)
        self.full = Rig(full_options, limit_bytes=limit_bytes)
        self.rigs = (self.fast, self.full)
        self.next_id = 1
        self.num_fast = 0
        """Requests that took the fast path."""
        opened = self.fast.protocol.connection.opened

        def count(last_stream_id: int, num_streams: int, data_bytes: int, num_updates: int) -> None:
            self.num_fast += num_streams
            opened(last_stream_id, num_streams, data_bytes, num_updates)

        connection: Any = self.fast.protocol.connection
        connection.opened = count

    def feed(self, data: bytes) -> None:
        """In one read to the server with fast paths, frame by frame to the other."""
        self.fast.feed(data)
        for kind, flags, stream_id, payload in frames(data):
            self.full.feed(frame(kind, flags, stream_id, payload))

    def request(
        self,
        message: ModelInferRequest | bytes,
        *,
        block: bytes = BLOCK,
        update: int = 5,
        connection_update: int = 0,
        flags: int = END_STREAM,
    ) -> bytes:
        """As grpc++ sends it."""
        stream_id, self.next_id = self.next_id, self.next_id + 2
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        return (
            frame(HEADERS, END_HEADERS, stream_id, block)
            + (frame(WINDOW, 0, stream_id, u32(update)) if update else b"")
            + frame(DATA, flags, stream_id, framed(raw))
            + (frame(WINDOW, 0, 0, u32(connection_update)) if connection_update else b"")
        )

    def both(self, act: Callable[[Rig], object]) -> None:
        for rig in self.rigs:
            act(rig)

    async def check(self, *, num_fast: int | None = None) -> bytes:
        """Asserts that both connections are equal. Returns what they wrote since the last check."""
        for _ in range(3):
            await asyncio.sleep(0)
        written = [bytes(rig.transport.written) for rig in self.rigs]
        for rig in self.rigs:
            rig.transport.written.clear()
        assert written[0] == written[1]
        assert _state(self.fast) == _state(self.full)
        if num_fast is not None:
            assert self.num_fast == num_fast
        return written[0]

    async def close(self) -> None:
        for rig in self.rigs:
            await rig.close()


def _state(rig: Rig) -> dict[str, object]:
    connection, sender = rig.protocol.connection, rig.protocol.sender
    return {
        "streams": [
            (stream.id, stream.state, stream.send_window, stream.pending_bytes)
            for stream in connection.streams.values()
        ],
        "ids": (
            connection.last_peer_stream_id,
            connection.goaway_last_stream_id,
            list(sender.reset_ids),
        ),
        "windows": (
            sender.window,
            sender.initial_window,
            connection.incoming.window,
            connection.incoming.unacknowledged_bytes,
        ),
        "sent": (
            sender.activity,
            sender.useful_frames,
            sender.num_finished,
            sender.pending_bytes,
            sender.out_bytes,
        ),
        "tokens": (
            connection._frame_budget.control.tokens,
            connection._frame_budget._resets.tokens,
        ),
        "counters": vars(rig.endpoint.counters),
        "budget": (_used_bytes(rig), rig.endpoint.budget.num_refused),
        "ends": (connection.is_closed, rig.transport.is_closed),
        "statistics": [(s.inference_count, s.success.count) for s in rig.core.statistics()],
        "requests": [
            (
                r.model_name,
                r.model_version,
                r.id,
                r.inputs,
                r.requested_outputs,
                r.parameters,
                r.batch_size,
            )
            for r in rig.core.requests
        ],
        "held": [(held.request.id, held.is_cancelled) for held in rig.core.held],
    }


def add_sub(value: float = 1.0, request_id: str = "", batch: int = 1) -> ModelInferRequest:
    message = ModelInferRequest(model_name="add_sub", id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for i in range(2):
        message.inputs.add(name=f"INPUT{i}", datatype="FP32", shape=[batch, 16])
        message.outputs.add(name=f"OUTPUT{i}")
        message.raw_input_contents.append(np.full(16 * batch, value + i, np.float32).tobytes())
    return message


def one(model: str, data: bytes = b"\0\0\0\0", request_id: str = "") -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[data])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[len(data) // 4])
    return message


def answers(written: bytes) -> dict[int, ModelInferResponse]:
    return {
        stream_id: ModelInferResponse.FromString(data[5:])
        for kind, _, stream_id, data in frames(written)
        if kind == DATA
    }


def with_headers(*fields: tuple[bytes, bytes]) -> bytes:
    return encode_headers([*HEAD, *fields])


def _used_bytes(rig: Rig) -> int:
    rig.protocol.account.settle()
    return rig.endpoint.budget.used_bytes
