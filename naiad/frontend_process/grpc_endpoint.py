"""The gRPC endpoint of a frontend process: it serves ModelInfer and ModelStreamInfer for models
that the server lets frontends serve, and forwards every other call to the server process.

A forwarded call is received, deframed, decompressed, compressed and timed here; the handler runs
there (naiad.frontend_process.forwarded_call).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count

from naiad.core.memory_budget import MemoryBudget
from naiad.errors import NaiadError
from naiad.fastpath.grpc_connection import GrpcFastPath
from naiad.fastpath.grpc_plan import MessagePlans
from naiad.frontend_process.messages import (
    CallCancelled,
    CallCongested,
    CallFinish,
    CallHalfClosed,
    CallIdle,
    CallMessage,
    CallPause,
    CallReply,
    CallSend,
    CallStopped,
    MethodKind,
    OpenCall,
    ToFrontend,
    content_of,
)
from naiad.frontend_process.peer import describe_peer
from naiad.frontend_process.remote_core import ModelTable, RemoteCore, ServingCore
from naiad.frontend_process.remote_guard import RemoteAdmission, has_session
from naiad.frontends.grpc.frontend import MODEL_INFER, MODEL_STREAM_INFER
from naiad.frontends.grpc.infer import ModelInfer, fast_path_responder
from naiad.frontends.grpc.response import fail
from naiad.frontends.grpc.restriction import build_restriction
from naiad.frontends.grpc.stream_infer import ModelStreamInfer, RequestStream
from naiad.frontends.header_forward import HeaderForward
from naiad.frontends.lost_sequence import lose_message
from naiad.frontends.side_thread import SideThread
from naiad.instances.channel import Channel
from naiad.keys.guard import Entrance, Guard, read_text
from naiad.protocol.v2.grpc_codec import decode_small_request, identify
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.endpoint import GrpcEndpoint
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.protocol import GrpcProtocol
from naiad.transport.grpc.status import STATUS, Status, retry_fields


class FrontendGrpc:
    def __init__(
        self,
        core: RemoteCore,
        stream_core: ServingCore,
        models: ModelTable,
        options: GrpcOptions,
        methods: Iterable[MethodKind],
        budget: MemoryBudget,
        channel: Channel[ToFrontend],
        guard: Guard | None,
        *,
        is_namespacing: bool,
    ) -> None:
        """`guard` is None where nobody needs an API key."""
        self._models = models
        self._on_lost = partial(lose_message, core)
        self._is_namespacing = is_namespacing
        self._guard = guard
        self.calls = ForwardedCalls(channel, has_keys=guard is not None)
        self._side_thread = SideThread()
        headers = HeaderForward(
            options.header_forward_pattern, () if guard is None else guard.header_names
        )
        self._plans = MessagePlans(core) if options.fast_paths else None
        decode = decode_small_request if self._plans is None else self._plans.decode
        self._infer = ModelInfer(core, headers, self._side_thread, decode)
        self._stream_infer = ModelStreamInfer(
            stream_core,
            headers,
            options.max_stream_request_bytes,
            lambda: self.endpoint.is_stopping,
            self._side_thread,
            decode,
        )
        self.endpoint = GrpcEndpoint(
            [self._method(kind) for kind in methods],
            options,
            restrict=build_restriction(options.restricted_protocols),
            make_gate=None if guard is None else self._make_gate,
            make_fast_path=(
                self._make_fast_path if self._plans is not None and not headers.is_on else None
            ),
            budget=budget,
        )

    def _method(self, kind: MethodKind) -> Method:
        is_infer, is_stream_infer = kind.path == MODEL_INFER, kind.path == MODEL_STREAM_INFER
        unary = self._model_infer if is_infer else self.calls.forward
        stream = self._model_stream_infer if is_stream_infer else self.calls.open
        return Method(
            kind.path,
            kind.api,
            unary=None if kind.is_stream else unary,
            stream=stream if kind.is_stream else None,
            allocate=self._infer.allocate if is_infer or kind.is_stream else None,
            on_lost=self._on_lost if is_infer or is_stream_infer else None,
            is_compressed=kind.is_compressed,
        )

    def _make_fast_path(self, protocol: GrpcProtocol) -> GrpcFastPath:
        assert self._plans is not None
        return GrpcFastPath(protocol, self._plans, MODEL_INFER, fast_path_responder, fail)

    def _make_gate(self, method: Method, metadata: dict[str, str]) -> Entrance | None:
        """Calls that are always forwarded have no gate here: the server process asks its own
        guard."""
        assert self._guard is not None
        if method.path not in (MODEL_INFER, MODEL_STREAM_INFER) or has_session(
            metadata.get("cookie", "").encode("latin-1")
        ):
            return None
        return self._guard.gate(method.api, read_text(metadata))

    def _model_infer(self, call: Call, message: Buffer) -> None:
        is_open = self._guard is None or call.admission is not None
        request = identify(message) if is_open else None
        if request is not None and self._models.is_served(
            request.model_name, request.model_version
        ):
            self._infer.infer(call, message)
        else:
            _discard_admission(call)
            self.calls.forward(call, message)

    def _model_stream_infer(self, call: Call) -> RequestStream | ForwardedStream:
        """The messages of a stream name its models. Those that are not known here are the server
        process's to refuse, except where a name may mean several."""
        is_open = self._guard is None or call.head.gate is not None
        if is_open and not self._models.is_traced and not self._is_namespacing:
            return self._stream_infer.open(call)
        return self.calls.open(call)

    async def stop(self, grace_s: float) -> None:
        await self.endpoint.stop(grace_s)
        self._side_thread.stop()


def _discard_admission(call: Call) -> None:
    """The server process handles the message, and asks its own guard."""
    if isinstance(call.admission, RemoteAdmission):
        call.admission.discard()
    call.admission = None


class _Forwarded:
    __slots__ = ("call", "connection", "is_idle", "number")

    def __init__(self, number: int, call: Call, connection: int) -> None:
        self.number = number
        self.call = call
        self.connection = connection
        self.is_idle = True


class ForwardedCalls:
    """The calls of this process that the server process handles."""

    def __init__(self, channel: Channel[ToFrontend], *, has_keys: bool) -> None:
        self._channel = channel
        self._has_keys = has_keys
        self._numbers = count(1)
        self._calls: dict[int, _Forwarded] = {}
        self._connections: dict[object, list[int]] = {}
        """A client's connection -> [its number, its open calls]."""

    # From clients.

    def forward(self, call: Call, message: Buffer) -> None:
        """Forwards a unary call."""
        forwarded = self._begin(call)
        self._send_message(forwarded, message)
        call.on_cancel = partial(self._cancel, forwarded)
        call.on_stop = partial(self._stop, forwarded)

    def open(self, call: Call) -> ForwardedStream:
        """Forwards a call with a stream of requests."""
        return ForwardedStream(self, self._begin(call))

    def _begin(self, call: Call) -> _Forwarded:
        entry = self._connections.setdefault(call.connection, [0, 0])
        if not entry[1]:
            entry[0] = next(self._numbers)
        entry[1] += 1
        forwarded = _Forwarded(next(self._numbers), call, entry[0])
        self._calls[forwarded.number] = forwarded
        call.on_flow = partial(self._set_congested, forwarded)
        self._channel.send(
            OpenCall(
                forwarded.number,
                forwarded.connection,
                call.method.path,
                call.head.metadata,
                call.deadline_ns,
                call.receive_start_ns,
                describe_peer(call.peer) if self._has_keys else None,
            )
        )
        return forwarded

    def _send_message(self, forwarded: _Forwarded, message: Buffer) -> None:
        content = content_of(message)
        try:
            self._channel.link.place(content)
        except NaiadError as error:
            self._cancel(forwarded)
            fail(forwarded.call, error)
            return
        self._channel.send(CallMessage(forwarded.number, content))

    def on_message(self, forwarded: _Forwarded, message: Buffer) -> None:
        forwarded.is_idle = False
        self._send_message(forwarded, message)

    def on_half_close(self, forwarded: _Forwarded) -> None:
        self._channel.send(CallHalfClosed(forwarded.number))

    def _set_congested(self, forwarded: _Forwarded, is_congested: bool) -> None:
        self._channel.send(CallCongested(forwarded.number, is_congested))

    def _stop(self, forwarded: _Forwarded) -> None:
        self._channel.send(CallStopped(forwarded.number))

    def _cancel(self, forwarded: _Forwarded) -> None:
        if self._forget(forwarded.number) is not None:
            self._channel.send(CallCancelled(forwarded.number))

    def _forget(self, number: int) -> _Forwarded | None:
        forwarded = self._calls.pop(number, None)
        if forwarded is not None:
            connection = forwarded.call.connection
            entry = self._connections[connection]
            entry[1] -= 1
            if not entry[1]:
                del self._connections[connection]
        return forwarded

    def cancel_ended(self) -> None:
        """Tells the server of calls that the transport has ended without cancelling them, such as a
        request that ends inside a message."""
        for forwarded in [each for each in self._calls.values() if each.call.is_done]:
            self._cancel(forwarded)

    # From the server process. A call that has ended here ignores what was on its way.

    def on_reply(self, message: CallReply) -> None:
        forwarded = self._forget(message.call)
        try:
            self._channel.link.resolve(message.content)
        except NaiadError as error:
            if forwarded is not None:
                forwarded.call.abort(Status.UNAVAILABLE, error.message)
            return
        if forwarded is not None:
            data = message.content[0].data
            if message.fields:
                forwarded.call.send([data], len(data))
                forwarded.call.finish(Status.OK, fields=message.fields)
            else:
                forwarded.call.reply([data], len(data))

    def on_send(self, message: CallSend) -> None:
        forwarded = self._calls.get(message.call)
        try:
            self._channel.link.resolve(message.content)
        except NaiadError as error:
            if forwarded is not None:
                forwarded.call.abort(Status.UNAVAILABLE, error.message)
            return
        if forwarded is not None:
            data = message.content[0].data
            forwarded.call.send([data], len(data))

    def on_finish(self, message: CallFinish) -> None:
        forwarded = self._forget(message.call)
        if forwarded is not None:
            forwarded.call.finish(message.status, message.message, message.fields)

    def on_pause(self, message: CallPause) -> None:
        forwarded = self._calls.get(message.call)
        if forwarded is None or forwarded.call.is_done:
            return
        if message.is_paused:
            forwarded.call.pause_requests()
        else:
            forwarded.call.resume_requests()

    def on_idle(self, message: CallIdle) -> None:
        forwarded = self._calls.get(message.call)
        if forwarded is not None:
            forwarded.is_idle = message.is_idle


class ForwardedStream:
    """The handler of a call with a stream of requests (naiad.transport.grpc.method.MessageStream).

    The server process asks its guard for every message. A message that the guard of this process
    refuses, because its key is no longer valid, ends the stream as it would there.
    """

    def __init__(self, calls: ForwardedCalls, forwarded: _Forwarded) -> None:
        self._calls = calls
        self._forwarded = forwarded

    @property
    def is_idle(self) -> bool:
        return self._forwarded.is_idle

    def on_message(self, message: Buffer) -> None:
        _discard_admission(self._forwarded.call)
        self._calls.on_message(self._forwarded, message)

    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        self._forwarded.call.abort(STATUS[error.code], error.message, retry_fields(error))

    def on_half_close(self) -> None:
        self._calls.on_half_close(self._forwarded)

    def on_cancel(self) -> None:
        self._calls._cancel(self._forwarded)

    def on_stop(self) -> None:
        self._calls._stop(self._forwarded)
