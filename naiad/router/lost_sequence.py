"""A request of a sequence that the router refuses or loses: the sequence ends, here and at the
replica that has it, because the replica would go on without that request.

In:  the step, and how its client reaches the replica. Out: a request that no model accepts; a
     server ends the sequence of a request that it refuses. Nobody waits for the response.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from naiad.core.tensor import Buffer
from naiad.pb import grpc_service_pb2 as pb
from naiad.router.sequences import SequenceStep

if TYPE_CHECKING:
    from naiad.router.core import RouterCore
    from naiad.router.forward_head import ForwardHead
    from naiad.router.grpc_pool import GrpcResponseHead, GrpcUpstream
    from naiad.router.grpc_relay import CallBlocks
    from naiad.router.http_pool import UpstreamConnection
    from naiad.router.http_response import ResponseHead
    from naiad.router.replica import Replica
    from naiad.transport.grpc.method import RequestHead
    from naiad.transport.http2.stream import Stream

LOST_ID = "naiad router: a request of this sequence was lost"
"""The id of such a request, and what it has in place of inputs."""
_prefix = struct.Struct(">BI").pack


def lost_message(model: str, version: str, id: int | str) -> bytes:
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=LOST_ID)
    if isinstance(id, int):
        request.parameters["sequence_id"].int64_param = id if id < 1 << 63 else id - (1 << 64)
    else:
        request.parameters["sequence_id"].string_param = id
    request.inputs.add(name=LOST_ID)
    return request.SerializeToString()


def lose(core: RouterCore, model: str, step: SequenceStep, tell: Callable[[Replica], None]) -> None:
    """`tell` sends the replica that has the sequence a request that it refuses."""
    core.counters["lost_sequences"] += 1
    replica = core.sequences.lose(model, step)
    if replica is not None and core.keeps_sequences(replica):
        tell(replica)


def tell_by_http(
    forward: ForwardHead, encoding: bytes, step: SequenceStep, replica: Replica
) -> None:
    body = msgspec.json.encode({"inputs": LOST_ID, "parameters": {"sequence_id": step.raw_id}})
    if encoding in (b"gzip", b"deflate"):
        body = gzip.compress(body)
    head = forward.render(replica.http_pool.address.authority, len(body))
    replica.http_pool.send((head + body,), _NoResponse())


def tell_by_grpc(
    blocks: CallBlocks,
    head: RequestHead,
    model: str,
    version: str,
    step: SequenceStep,
    replica: Replica,
) -> None:
    pool = replica.grpc_pool
    if pool is not None:
        block = blocks.block(head, pool.address.authority, is_tls=pool.address.is_tls)
        pool.start(block, _NoCallResponse(lost_message(model, version, step.raw_id)))


class _NoResponse:
    """See ResponseOwner."""

    is_head_request = False

    def __init__(self) -> None:
        self.connection: UpstreamConnection | None = None

    def on_whole(self, head: ResponseHead, data: bytes, body_start: int) -> None: ...
    def on_head(self, head: ResponseHead) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None: ...
    def on_malformed(self, reason: str) -> None: ...


class _NoCallResponse:
    """See CallOwner."""

    def __init__(self, message: bytes) -> None:
        self.stream: Stream | None = None
        self.upstream: GrpcUpstream | None = None
        self._message = message

    def on_started(self) -> None:
        assert self.upstream is not None
        assert self.stream is not None
        pieces: tuple[Buffer, ...] = (_prefix(0, len(self._message)), self._message)
        self.upstream.write(self.stream, pieces, 5 + len(self._message), is_last=True)

    def on_data(self, data: bytes | memoryview) -> None: ...
    def on_leaving(self) -> None: ...
    def on_closed(self, head: GrpcResponseHead) -> None: ...
    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None: ...
