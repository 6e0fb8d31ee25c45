"""What a gRPC connection knows of the fast path: requests that repeat an earlier one skip frames,
events and headers (naiad.fastpath.grpc_connection).

Rule: the result of a consumed request is what the full path would have produced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from naiad.transport.grpc.message import Message
from naiad.transport.grpc.status import Fields, Status

if TYPE_CHECKING:
    from naiad.transport.grpc.protocol import GrpcProtocol


class FastPath(Protocol):
    def consume(self, view: memoryview, num_bytes: int) -> int:
        """Called with each read, `view[:num_bytes]`. Returns the number of bytes at its beginning
        that were consumed; the rest is the full path's."""
        ...


MakeFastPath: TypeAlias = "Callable[[GrpcProtocol], FastPath]"


class Reader(Protocol):
    """Collects the bytes of messages: MessageReader, or the fast path's reader of a large
    request."""

    start_ns: int

    @property
    def is_empty(self) -> bool: ...
    @property
    def received_bytes(self) -> int: ...
    def feed(self, chunk: bytes | memoryview) -> list[Message]: ...
    def sink(self) -> memoryview | None: ...
    def filled(self, num_bytes: int) -> list[Message]: ...
    def release(self) -> None: ...


class StreamOwner(Protocol):
    """The receiver of a stream's bytes and end: a Call, or a request on the fast path."""

    @property
    def reader(self) -> Reader | None: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def is_message_due(self) -> bool:
        """The one message of the call has not begun to arrive."""
        ...

    @property
    def is_idle(self) -> bool:
        """A stream of requests of which none is in flight."""
        ...

    def stop(self) -> None:
        """The server stops: the call ends unless it waits for a response or a message."""
        ...

    def receive(self, messages: list[Message], end_stream: bool) -> None: ...
    def cancel(self) -> None: ...
    def abort(self, status: Status, message: str, fields: Fields = ()) -> None: ...
