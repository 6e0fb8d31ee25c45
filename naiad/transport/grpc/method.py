"""What a gRPC endpoint serves: a table from path to method, and what a request's headers decide
before any handler runs.

A `RequestHead` is built once per distinct header block, so everything that depends on headers alone
is decided here: the method, whether it may be called, its timeout and encodings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from naiad.transport.grpc.compression import ENCODINGS
from naiad.transport.grpc.message import Allocate, Buffer
from naiad.transport.grpc.status import Status, http_error, trailers_only, unsupported_encoding
from naiad.transport.grpc.timeout import parse_timeout_ns
from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.hpack import HeaderList
from naiad.transport.http2.limits import Http2StreamError

if TYPE_CHECKING:
    from naiad.core.identity import Identity
    from naiad.errors import NaiadError
    from naiad.keys.guard import Entrance
    from naiad.transport.grpc.call import Call


class MessageStream(Protocol):
    """Handles one call with a stream of requests. No method is called after `on_cancel`, or after
    the call was finished."""

    @property
    def is_idle(self) -> bool:
        """No request is in flight."""
        ...

    def on_message(self, message: Buffer) -> None: ...
    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        """The guard refuses the message; the handler must not use its content."""
        ...

    def on_half_close(self) -> None: ...
    def on_cancel(self) -> None: ...
    def on_stop(self) -> None:
        """The server stops: the call must end as soon as no request is in flight."""
        ...


UnaryHandler: TypeAlias = "Callable[[Call, Buffer], None]"
"""Gets the single request message and ends the call now or later. May raise GrpcError, and may set
`call.on_cancel`."""
OnLost: TypeAlias = "Callable[[RequestHead, Buffer, Identity | None, bool], None]"
StreamHandler: TypeAlias = "Callable[[Call], MessageStream]"


class Method(msgspec.Struct, frozen=True):
    path: str
    api: str
    """The API class (naiad.keys.api_class)."""
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    allocate: Allocate | None = None
    """Provides memory for large requests."""
    on_lost: OnLost | None = None
    """Called with the head of a call, a message that is refused or lost before the handler gets it,
    or its beginning, the owner of the call, and whether the message is compressed."""
    is_compressed: bool = False
    """Responses are compressed when the endpoint is configured so and the client accepts it."""


class RequestHead(msgspec.Struct, frozen=True):
    """A head without a method and without a rejection is not a request."""

    method: Method | None
    rejection: bytes | None = None
    """A complete response, when the headers already decide it."""
    timeout_ns: int = -1
    """-1 when there is no timeout."""
    encoding: str = "identity"
    accepts_gzip: bool = False
    metadata: dict[str, str] = {}
    """Headers that belong neither to HTTP nor to gRPC. The values of equal names are joined, as
    in HTTP/1.1: of two API keys none must count."""
    gate: Entrance | None = None
    """Asked for every call, and for every message of a stream; None when everybody may enter."""


_RESERVED = frozenset((
    b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding",
    b"user-agent", b"content-length",
))  # fmt: skip
_CONNECTION_HEADERS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))

Restrict: TypeAlias = Callable[[Method, dict[str, str]], str | None]
"""(method, metadata) -> the reason why the method may not be called, or None."""
MakeGate: TypeAlias = "Callable[[Method, dict[str, str]], Entrance | None]"


def _malformed(reason: str) -> Http2StreamError:
    return Http2StreamError(ErrorCode.PROTOCOL_ERROR, reason)


def _split(headers: HeaderList) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Splits off the pseudo-headers. Raises Http2StreamError for headers that RFC 9113 calls
    malformed."""
    pseudo: dict[bytes, bytes] = {}
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        if name[:1] == b":":
            if fields or name in pseudo or name not in _PSEUDO:
                raise _malformed(f"pseudo-header {name!r} is unknown, repeated or after a field")
            pseudo[name] = value
        else:
            if name in _CONNECTION_HEADERS or not name or name != name.lower():
                raise _malformed(f"header name {name!r} is not allowed")
            before = fields.get(name)
            if before is not None and name not in _RESERVED:
                value = before + (b"; " if name == b"cookie" else b", ") + value
            fields[name] = value
    return pseudo, fields


def _reject(rejection: bytes) -> RequestHead:
    return RequestHead(None, rejection)


def build_head(
    headers: HeaderList,
    methods: dict[bytes, Method],
    restrict: Restrict | None = None,
    make_gate: MakeGate | None = None,
) -> RequestHead:
    pseudo, fields = _split(headers)
    if not pseudo:
        return RequestHead(None)  # trailers; malformed as the beginning of a request
    path = pseudo.get(b":path")
    if not path or b":method" not in pseudo or b":scheme" not in pseudo:
        raise _malformed("a request needs :method, :scheme and :path")
    content_type = fields.get(b"content-type", b"")
    if content_type != b"application/grpc" and not content_type.startswith(
        (b"application/grpc+proto", b"application/grpc;")
    ):
        return _reject(
            http_error(415, "this port speaks gRPC, content-type must be application/grpc")
        )
    if pseudo[b":method"] != b"POST":
        return _reject(http_error(405, "gRPC calls are POST requests"))
    method = methods.get(path)
    if method is None:
        return _reject(
            trailers_only(Status.UNIMPLEMENTED, f"unknown method {path.decode('latin-1')}")
        )
    return _describe(method, fields, restrict, make_gate)


def _describe(
    method: Method,
    fields: dict[bytes, bytes],
    restrict: Restrict | None,
    make_gate: MakeGate | None,
) -> RequestHead:
    metadata = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in fields.items()
        if name not in _RESERVED
    }
    timeout_ns = -1
    if b"grpc-timeout" in fields:
        try:
            timeout_ns = parse_timeout_ns(fields[b"grpc-timeout"])
        except ValueError as error:
            return _reject(trailers_only(Status.INTERNAL, str(error)))
    encoding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in ENCODINGS:
        return _reject(unsupported_encoding(f"grpc-encoding '{encoding}' is not supported"))
    refusal = restrict(method, metadata) if restrict is not None else None
    if refusal is not None:
        return _reject(trailers_only(Status.UNAVAILABLE, refusal))
    accepted = fields.get(b"grpc-accept-encoding", b"").replace(b" ", b"").split(b",")
    gate = None if make_gate is None else make_gate(method, metadata)
    return RequestHead(method, None, timeout_ns, encoding, b"gzip" in accepted, metadata, gate)
