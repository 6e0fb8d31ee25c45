"""Everything that a process needs to send the requests of a run: address, protocol, prepared bytes.

In:  Traffic, which prepare.py builds once and which is also sent to worker processes.
Out: channels and sources for a load.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.perf.channels.address import Address, ClientTlsFiles, tls_context
from naiad.perf.channels.call import ClientChannel, Listener
from naiad.perf.channels.grpc_channel import GrpcChannel
from naiad.perf.channels.grpc_connection import SharedConnection
from naiad.perf.channels.grpc_infer import sequence_message
from naiad.perf.channels.grpc_message import frame
from naiad.perf.channels.grpc_stream_channel import GrpcStreamChannel
from naiad.perf.channels.http_channel import HttpChannel
from naiad.perf.channels.http_head import HeadCache
from naiad.perf.channels.http_infer import sequence_bytes
from naiad.perf.load.request_source import (
    PlainSource,
    SequenceIds,
    SequenceSource,
    SequenceSpan,
    Source,
)

CALLS_PER_CONNECTION = 6
"""Number of gRPC calls that share a connection, as in Triton's C++ client and perf_analyzer."""


class SequenceTraffic(msgspec.Struct, frozen=True):
    parts: list[Any]
    """For each step of all streams, the HTTP bytes before and after the flags, or a gRPC
    message."""
    stream_lengths: list[int]
    base_length: int
    variation_percent: float
    first_id: int = 1
    end_id: int = 0


class Traffic(msgspec.Struct, frozen=True):
    protocol: str
    """One of http, sse (HTTP with server-sent events), grpc, and stream (gRPC ModelStreamInfer)."""
    address: Address
    tls: ClientTlsFiles | None = None
    block: bytes = b""
    """Header block of each gRPC call."""
    encoding: str = ""
    """Compression of gRPC messages."""
    prepared: list[bytes] = []
    sequence: SequenceTraffic | None = None
    is_decoupled: bool = False
    should_keep_body: bool = False
    head_bytes: int = 0
    """Offset in a gRPC message at which the id and the sequence parameters are inserted."""

    @property
    def is_grpc(self) -> bool:
        return self.protocol in ("grpc", "stream")

    def context(self) -> ssl.SSLContext | None:
        return (
            None
            if self.tls is None
            else tls_context(self.tls, ["h2"] if self.is_grpc else ["http/1.1"])
        )


class ChannelMaker:
    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._tls = traffic.context()
        self._heads = HeadCache()
        self._connections: list[SharedConnection] = []
        self._num_channels = 0

    def make(self, listener: Listener) -> ClientChannel:
        traffic = self._traffic
        if not traffic.is_grpc:
            return HttpChannel(
                traffic.address,
                listener,
                tls=self._tls,
                heads=self._heads,
                should_keep_body=traffic.should_keep_body,
                is_event_stream=traffic.protocol == "sse",
            )
        if self._num_channels % CALLS_PER_CONNECTION == 0:
            self._connections.append(SharedConnection(traffic.address, self._tls))
        self._num_channels += 1
        connection = self._connections[-1]
        if traffic.protocol == "grpc":
            return GrpcChannel(
                connection, traffic.block, listener, should_keep_body=traffic.should_keep_body
            )
        return GrpcStreamChannel(
            connection,
            traffic.block,
            listener,
            is_decoupled=traffic.is_decoupled,
            encoding=traffic.encoding,
            head_bytes=traffic.head_bytes,
        )

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def source_maker(traffic: Traffic, share: int = 0, num_shares: int = 1) -> Callable[[], Source]:
    """Returns a function that makes sources. Each worker starts at another item and assigns other
    sequence ids."""
    sequence = traffic.sequence
    if sequence is None:
        first = share * len(traffic.prepared) // num_shares
        plain = PlainSource(traffic.prepared, first)
        return lambda: plain
    first_items = [
        sum(sequence.stream_lengths[:number]) for number in range(len(sequence.stream_lengths))
    ]

    def encode(stream: int, step: int, sequence_id: int, is_start: bool, is_end: bool) -> bytes:
        parts = sequence.parts[first_items[stream] + step]
        if traffic.is_grpc:
            message = sequence_message(parts, traffic.head_bytes, sequence_id, is_start, is_end)
            return message if traffic.protocol == "stream" else frame(message, traffic.encoding)
        return sequence_bytes(parts, sequence_id, is_start, is_end)

    first_id, end_id = sequence.first_id, sequence.end_id
    if end_id:
        width = (end_id - first_id) // num_shares
        first_id, end_id = first_id + share * width, first_id + (share + 1) * width
    else:
        first_id += share << 40
    plan = SequenceSpan(
        sequence.stream_lengths,
        encode,
        SequenceIds(first_id, end_id),
        base_length=sequence.base_length,
        variation_percent=sequence.variation_percent,
        seed=share,
    )
    return lambda: SequenceSource(plan)
