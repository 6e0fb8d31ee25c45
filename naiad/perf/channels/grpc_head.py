"""Header blocks of a gRPC client: what a request carries, and what an answer's headers or trailers
mean."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

import msgspec

from naiad.perf.channels.address import Address
from naiad.transport.grpc.status import Status
from naiad.transport.http2.hpack import HeaderList, encode_headers

SERVICE = "/inference.GRPCInferenceService"


class AnswerHead(msgspec.Struct, frozen=True):
    http_status: bytes
    grpc_status: int
    """-1 when the block has none."""
    message: str
    encoding: bytes


def make_answer_head(headers: HeaderList) -> AnswerHead:
    fields = dict(headers)
    status = fields.get(b"grpc-status", b"-1")
    message = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
    number = int(status) if status.removeprefix(b"-").isdigit() else int(Status.UNKNOWN)
    return AnswerHead(
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


def status_words(head: AnswerHead) -> str | None:
    """None when the call went well."""
    if head.grpc_status == 0:
        return None
    if head.grpc_status < 0:
        return f"no gRPC status in the answer (HTTP status {head.http_status.decode('ascii', 'replace') or 'missing'})"
    name = (
        Status(head.grpc_status).name if head.grpc_status in set(Status) else str(head.grpc_status)
    )
    return f"{name}: {head.message}" if head.message else name
