"""A ModelStreamInfer call of a client, passed on to the replicas of the models that it names.

Each request of the stream goes to a leg: a stream to one replica. The requests of one model share a
leg, so that their order stays; sequences have the leg of the replica that holds them.
In:  request messages. Out: the replicas' responses, as they come.
Rule: a leg that cannot be opened is tried elsewhere. One that breaks off ends the client's stream
      with UNAVAILABLE: the router cannot know which requests were executed.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from naiad.core.tensor import Buffer
from naiad.errors import Code, NaiadError
from naiad.keys.guard import unknown_model
from naiad.pb import grpc_service_pb2 as pb
from naiad.protocol.v2 import lost_request
from naiad.router.grpc_pool import GrpcResponseHead
from naiad.router.grpc_relay import CallBlocks
from naiad.router.lost_sequence import LOST_ID, lost_message, tell_by_grpc
from naiad.router.relay import Relay
from naiad.router.request_fields import grpc_model, grpc_request_id, grpc_sequence, owner_of
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import PREFIX_BYTES, MessageReader
from naiad.transport.grpc.options import INT32_MAX
from naiad.transport.grpc.status import STATUS, Fields, GrpcError, Status, retry_fields
from naiad.transport.http2.limits import MIB

if TYPE_CHECKING:
    from naiad.router.core import ModelRouting, RouterCore
    from naiad.router.grpc_pool import GrpcUpstream
    from naiad.router.replica import Replica
    from naiad.router.sequences import SequenceStep
    from naiad.transport.http2.stream import Stream

_prefix = struct.Struct(">BI").pack
_PAUSE_BYTES = 1 * MIB
"""A client may not send more while a replica has not read this much of its requests."""
_NO_PORT = "the replica has no gRPC port: give it one with grpc=HOST:PORT"


class StreamRelay:
    """The client's side; see MessageStream."""

    def __init__(self, core: RouterCore, call: Call, blocks: CallBlocks, *, has_keys: bool) -> None:
        self.core = core
        self.call = call
        self.blocks = blocks
        self._has_keys = has_keys
        self._legs: dict[tuple[str, str], StreamLeg] = {}
        """The legs for new requests. A key is a model and the id of a sequence, if there is one."""
        self._open: set[StreamLeg] = set()
        """All legs, those included whose sequence has ended."""
        self._is_half_closed = False
        self._is_stopping = False
        self._is_over = False
        call.on_flow = self._on_flow

    @property
    def is_idle(self) -> bool:
        return not self._open

    def on_message(self, message: Buffer) -> None:
        admission = self.call.admission
        try:
            model, version = grpc_model(message, is_exact=self._has_keys)
            sequence = grpc_sequence(message, owner_of(self.call.identity, self.call.header))
        except NaiadError as error:
            # Nobody knows which sequence has lost it: all of the stream end, as at a server.
            if admission is not None:
                admission.end(STATUS[error.code])
            self._finish(STATUS[error.code], error.message)
            return
        try:
            if admission is not None:
                if not admission.identity.may_see(model):
                    raise unknown_model(model)
                admission.note_model(model)
                self.core.reserve_tokens(admission, model, len(message))
                admission.end(Status.OK)
        except NaiadError as error:
            if admission is not None:
                admission.end(STATUS[error.code])
            self._lose(message)
            self.reject(error, message)
            return
        key = (model, "" if sequence is None else sequence.id)
        leg = self._legs.get(key)
        if leg is None:
            leg = StreamLeg(self, key, self.core.routing(model), model, version, sequence)
            leg.push(bytes(message))
            self._legs[key] = leg
            self._open.add(leg)
            leg.begin()
        else:
            if sequence is not None and leg.replica is not None:
                try:
                    self.core.sequences.place(model, sequence, (leg.replica,), lambda _: True)
                except NaiadError as error:
                    self.reject(error, message)
                    return
            leg.push(bytes(message))
        if sequence is not None and sequence.is_end:
            self._legs.pop(key, None)
            leg.half_close()

    def _lose(self, message: Buffer) -> None:
        """The message is refused. A leg keeps its order, so its replica is told there; another one
        would overtake what is on the way."""
        for request in lost_request.in_message(message):
            leg = self._legs.get((request.model_name, str(request.sequence_id)))
            if leg is not None:
                lost = (request.model_name, request.model_version, request.sequence_id)
                leg.push(lost_message(*lost))
                leg.num_lost += 1
                return
        self.call.lose(message)

    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        if error.code is Code.RESOURCE_EXHAUSTED:
            self._lose(message)
            self.reject(error, message)
        else:
            self._finish(STATUS[error.code], error.message, retry_fields(error))

    def on_half_close(self) -> None:
        self._is_half_closed = True
        self._end_legs()

    def on_cancel(self) -> None:
        self._is_over = True
        self.core.counters["cancelled"] += 1
        for leg in list(self._open):
            leg.abandon()
        self._open.clear()

    def on_stop(self) -> None:
        """The replicas finish the requests that they have; the stream ends after the last one."""
        self._is_stopping = True
        self._end_legs()

    def _end_legs(self) -> None:
        for leg in list(self._open):
            leg.half_close()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._open or self._is_over:
            return
        if self._is_half_closed:
            self._finish(Status.OK, "")
        elif self._is_stopping:
            self._finish(Status.UNAVAILABLE, "the server is shutting down")

    def reject(self, error: NaiadError, message: Buffer) -> None:
        """An error of one request, which does not end the stream."""
        response = pb.ModelStreamInferResponse(error_message=error.message)
        response.infer_response.id = grpc_request_id(message)
        data = response.SerializeToString()
        self.call.send([data], len(data))

    def _finish(self, status: int, message: str, fields: Fields = ()) -> None:
        if self._is_over:
            return
        self._is_over = True
        for leg in list(self._open):
            leg.abandon()
        self._open.clear()
        self.call.finish(status, message, fields)

    def _on_flow(self, is_paused: bool) -> None:
        for leg in self._open:
            leg.set_paused(is_paused)

    # Called by legs.

    def on_leg_leaving(self, leg: StreamLeg) -> None:
        """Its replica stops: new requests go elsewhere, and those that it has finish there."""
        if self._legs.get(leg.key) is leg:
            del self._legs[leg.key]
        leg.half_close()

    def on_leg_closed(self, leg: StreamLeg, head: GrpcResponseHead) -> None:
        self._forget(leg)
        if head.grpc_status != 0:
            text = unquote_to_bytes(head.message).decode("utf-8", "replace")
            self._finish(head.grpc_status, text, head.fields)
        else:
            self._finish_if_done()

    def on_leg_failed(self, leg: StreamLeg, error: NaiadError, *, is_broken: bool) -> None:
        """`is_broken`: the replica had got requests. Otherwise it is an error of the requests that
        the leg was for."""
        self._forget(leg)
        if is_broken:
            self.core.counters["broken_streams"] += 1
            self._finish(STATUS[error.code], error.message, retry_fields(error))
        else:
            for message in leg.unsent:
                if grpc_request_id(message) != LOST_ID:
                    self.reject(error, message)
            self._finish_if_done()

    def _forget(self, leg: StreamLeg) -> None:
        self._open.discard(leg)
        if self._legs.get(leg.key) is leg:
            del self._legs[leg.key]


class StreamLeg(Relay):
    """The stream to one replica."""

    is_grpc = True
    __slots__ = (
        "_client",
        "_is_half_closed",
        "_is_started",
        "_queue",
        "_reader",
        "key",
        "num_lost",
        "stream",
        "upstream",
    )

    def __init__(
        self,
        client: StreamRelay,
        key: tuple[str, str],
        routing: ModelRouting,
        model: str,
        version: str,
        sequence: SequenceStep | None,
    ) -> None:
        super().__init__(client.core, routing, model, version, sequence)
        self._client = client
        self.key = key
        self._queue: deque[bytes] = deque()
        """Requests that wait for the stream, kept until the first response in case the leg must be
        opened elsewhere."""
        self.num_lost = 0
        """Requests of `lost_message` whose responses nobody waits for."""
        self._is_half_closed = False
        self._is_started = False
        self._reader = MessageReader(INT32_MAX, client.call.account)
        self.stream: Stream | None = None
        self.upstream: GrpcUpstream | None = None

    @property
    def path(self) -> str:
        return self._client.call.method.path

    @property
    def body(self) -> Buffer:
        return self._queue[0] if self._queue else b""

    def header(self, name: str) -> str:
        return self._client.call.header(name)

    @property
    def is_idempotent(self) -> bool:
        # Only a leg without any response may be opened again, and only with one request.
        return super().is_idempotent and not self.is_responding and len(self._queue) == 1

    @property
    def unsent(self) -> list[bytes]:
        """Requests that no replica has got."""
        return list(self._queue)

    def push(self, message: bytes) -> None:
        if not self.is_responding:
            self._queue.append(message)
        if self._is_started:
            self._write(message)

    def half_close(self) -> None:
        if self._is_half_closed:
            return
        self._is_half_closed = True
        if self._is_started and self.upstream is not None and self.stream is not None:
            self.upstream.write(self.stream, (), 0, is_last=True)

    def abandon(self) -> None:
        if self._queue:
            self.lose()
        self.is_over = True
        self.cancel_wait()
        replica = self.replica
        self.note_end()
        self._reader.release()
        if replica is not None:
            self.leave(replica)

    def tell_lost(self, sequence: SequenceStep, replica: Replica) -> None:
        client = self._client
        head = client.call.head
        tell_by_grpc(client.blocks, head, self.model, self.version, sequence, replica)

    def leave(self, replica: Replica) -> None:
        if replica.grpc_pool is not None:
            replica.grpc_pool.cancel(self)

    def set_paused(self, is_paused: bool) -> None:
        if self.upstream is not None and self.stream is not None:
            if is_paused:
                self.upstream.pause(self.stream)
            else:
                self.upstream.resume(self.stream)

    def send(self, replica: Replica) -> None:
        pool = replica.grpc_pool
        if pool is None:
            self.on_failure(_NO_PORT, is_unsent=True, is_reused=True)
            return
        self._is_started = False
        self.stream = self.upstream = None
        address = pool.address
        head = self._client.call.head
        pool.start(self._client.blocks.block(head, address.authority, is_tls=address.is_tls), self)

    def respond_error(self, error: NaiadError) -> None:
        self._client.on_leg_failed(self, error, is_broken=self._is_started)

    # See CallOwner.

    def on_started(self) -> None:
        self._is_started = True
        for message in list(self._queue):
            self._write(message)
        if self._is_half_closed and self.upstream is not None and self.stream is not None:
            self.upstream.write(self.stream, (), 0, is_last=True)

    def _write(self, message: bytes) -> None:
        stream = self.stream
        if self.upstream is None or stream is None:
            return
        self.upstream.write(
            stream, (_prefix(0, len(message)), message), len(message) + PREFIX_BYTES, is_last=False
        )
        if stream.pending_bytes > _PAUSE_BYTES and stream.on_drained is None:
            self._client.call.pause_requests()
            stream.on_drained = self._client.call.resume_requests

    def on_data(self, data: bytes | memoryview) -> None:
        if not self.is_responding:
            self.note_response(is_error=False)
            self._queue.clear()
        call = self._client.call
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:
                    raise GrpcError(
                        Status.INTERNAL, "the replica sent a message that the router cannot pass on"
                    )
                if self.num_lost and LOST_ID.encode() in bytes(message):
                    self.num_lost -= 1
                    continue
                call.send([message], len(message))
        except GrpcError as error:
            self._client.on_leg_closed(
                self, GrpcResponseHead(b"200", error.status, error.message.encode(), ())
            )

    def on_leaving(self) -> None:
        if self.replica is not None:
            self.core.fleet.check_soon(self.replica)
        if self.sequence is None:  # a sequence ends where it is
            self._client.on_leg_leaving(self)

    def on_closed(self, head: GrpcResponseHead) -> None:
        if not self.is_responding:
            if head.is_refusal:
                self.note_refusal(head.retry_after_s)
            if head.is_not_admitted and len(self._queue) <= 1 and self.should_pass_on():
                return
            self.note_response(is_error=False, is_refusal=head.is_refusal)
        self._reader.release()
        self.note_end()
        self._client.on_leg_closed(self, head)

    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        self.stream = self.upstream = None
        if not self.is_responding:
            self.on_failure(reason, is_unsent=is_unsent, is_reused=is_reused)
            return
        replica = self.replica
        self._reader.release()
        self.note_end()
        name = "" if replica is None else replica.name
        if replica is not None:
            self.fail_replica(replica, "lost")
        error = NaiadError(Code.UNAVAILABLE, f"replica '{name}': {reason}")
        self._client.on_leg_failed(self, error, is_broken=True)
