"""Encodes the header block of a gRPC request and decodes the headers or trailers of a response."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

import msgspec

from naiad.perf.channels.address import Address
from naiad.transport.grpc.status import Status
from naiad.transport.http2.hpack import HeaderList, encode_headers

SERVICE = "/inference.GRPCInferenceService"


class GrpcHead(msgspec.Struct, frozen=True):
    http_status: bytes
    grpc_status: int
    """-1 if the block has no status."""
    message: str
    encoding: bytes


def make_grpc_head(headers: HeaderList) -> GrpcHead:
    fields = dict(headers)
    status = fields.get(b"grpc-status", b"-1")
    message = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
    number = int(status) if status.removeprefix(b"-").isdigit() else int(Status.UNKNOWN)
    return GrpcHead(
        fields.get(b":status", b""), number, message, fields.get(b"grpc-encoding", b"identity")
    )


def request_block(
    address: Address, method: str, *, encoding: str = "", metadata: Iterable[tuple[str, str]] = ()
) -> bytes:
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https" if address.is_tls else b"http"),
        (b":path", f"{SERVICE}/{method}".encode()),
        (b":authority", address.authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"naiad-perf"),
    ]
    if encoding:
        headers.append((b"grpc-encoding", encoding.encode()))
    for name, value in metadata:
        key = name.strip().lower()
        coded = base64.b64encode(value.encode()) if key.endswith("-bin") else value.encode()
        headers.append((key.encode(), coded))
    return encode_headers(headers)


def status_error(head: GrpcHead) -> str | None:
    """Returns the error that the status stands for, or None for status OK."""
    if head.grpc_status == 0:
        return None
    if head.grpc_status < 0:
        http_status = head.http_status.decode("ascii", "replace") or "missing"
        return f"no gRPC status in the response (HTTP status {http_status})"
    name = (
        Status(head.grpc_status).name if head.grpc_status in set(Status) else str(head.grpc_status)
    )
    return f"{name}: {head.message}" if head.message else name
