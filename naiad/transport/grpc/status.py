"""How a gRPC call ends: status codes, and the header blocks that carry them.

Blocks are constants where their content is constant; only a status with a message is built per
call.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Sequence
from typing import Final, TypeAlias

from naiad.core.memory_budget import FULL_MESSAGE, RETRY_AFTER_S
from naiad.errors import Code, NaiadError
from naiad.transport.http2.hpack import encode_headers


class Status(enum.IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STATUS: dict[Code, Status] = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
    Code.UNAUTHENTICATED: Status.UNAUTHENTICATED,
    Code.PERMISSION_DENIED: Status.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED: Status.RESOURCE_EXHAUSTED,
}


Fields: TypeAlias = Sequence[tuple[bytes, bytes]]


class GrpcError(Exception):
    """Ends the call in which it is raised."""

    def __init__(self, status: Status, message: str, fields: Fields = ()) -> None:
        """`fields` are further trailers."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.fields = fields


def memory_full() -> GrpcError:
    """The error of a call for which the memory budget has no room."""
    error = NaiadError(Code.RESOURCE_EXHAUSTED, FULL_MESSAGE, RETRY_AFTER_S)
    return GrpcError(Status.RESOURCE_EXHAUSTED, FULL_MESSAGE, retry_fields(error))


_STATUS_200: Final = (b":status", b"200")
_CONTENT_TYPE: Final = (b"content-type", b"application/grpc")
_ACCEPT_ENCODING: Final = (b"grpc-accept-encoding", b"identity, deflate, gzip")

RESPONSE_HEADERS: Final = encode_headers([_STATUS_200, _CONTENT_TYPE])
GZIP_RESPONSE_HEADERS: Final = encode_headers(
    [_STATUS_200, _CONTENT_TYPE, (b"grpc-encoding", b"gzip")]
)
OK_TRAILERS: Final = encode_headers([(b"grpc-status", b"0")])

MAX_MESSAGE_BYTES: Final = 4096
"""The limit for a status message: clients refuse trailers above 8 KiB, and percent-encoding may
double the length."""
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}


def percent_encode(message: str) -> bytes:
    raw = message.encode("utf-8", "replace")
    if len(raw) > MAX_MESSAGE_BYTES:
        raw = raw[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore").encode() + b"..."
    if all(byte in _PLAIN for byte in raw):
        return raw
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in raw)


def trailers(status: int, message: str, fields: Fields = ()) -> bytes:
    """`fields` are further trailers."""
    if status == Status.OK and not fields:
        return OK_TRAILERS
    return encode_headers([*_status_fields(status, message), *fields])


def trailers_only(status: int, message: str, fields: Fields = ()) -> bytes:
    """The block of a response that has no message: headers and trailers in one."""
    return encode_headers([_STATUS_200, _CONTENT_TYPE, *_status_fields(status, message), *fields])


def retry_fields(error: NaiadError) -> Fields:
    """The trailers that tell a client when to try again: for gRPC's own retries, and as RetryInfo
    for programs that read the details of a status."""
    if error.retry_after_s is None:
        return ()
    return (
        (b"retry-after", b"%d" % error.retry_after_s),
        (b"grpc-retry-pushback-ms", b"%d" % (error.retry_after_s * 1000)),
        (b"grpc-status-details-bin", _retry_info(error, error.retry_after_s)),
    )


_RETRY_INFO: Final = b"type.googleapis.com/google.rpc.RetryInfo"


def _retry_info(error: NaiadError, retry_after_s: int) -> bytes:
    """A google.rpc.Status with a google.rpc.RetryInfo, in base64 without padding."""
    info = _delimited(1, b"\x08" + _varint(retry_after_s))
    detail = _delimited(1, _RETRY_INFO) + _delimited(2, info)
    message = error.message.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES]
    status = b"\x08" + _varint(STATUS[error.code]) + _delimited(2, message) + _delimited(3, detail)
    return base64.b64encode(status).rstrip(b"=")


def _delimited(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def refusal(error: NaiadError) -> bytes:
    """The whole response to a call that may not be made."""
    return trailers_only(STATUS[error.code], error.message, retry_fields(error))


def unsupported_encoding(message: str) -> bytes:
    return encode_headers(
        [
            _STATUS_200,
            _CONTENT_TYPE,
            _ACCEPT_ENCODING,
            *_status_fields(Status.UNIMPLEMENTED, message),
        ]
    )


def http_error(http_status: int, message: str) -> bytes:
    """The response to a request that is not gRPC."""
    return encode_headers(
        [(b":status", b"%d" % http_status), *_status_fields(Status.UNKNOWN, message)]
    )


def _status_fields(status: int, message: str) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        fields.append((b"grpc-message", percent_encode(message)))
    return fields
