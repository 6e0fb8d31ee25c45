"""One frontend process as the server process sees it: its requests, its forwarded calls, and how it
does.

In:  messages of the frontend. Out: requests for the core, calls for the gRPC handlers; responses
     back to the frontend.
Rule: all state that clients can observe is in this process. When the frontend dies, its requests
      are cancelled as if their clients had disconnected.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

from naiad import log
from naiad.core.bundle import Bundle
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import Consumer, InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, unavailable
from naiad.frontend_process.entrances import Entrances
from naiad.frontend_process.forwarded_call import ClientConnection, ForwardedCall
from naiad.frontend_process.messages import (
    GRPC,
    HTTP,
    Abandon,
    Alive,
    AnnounceStop,
    AskAlive,
    AskModel,
    BadOutputs,
    BundleResponse,
    CallCancelled,
    CallCongested,
    Caller,
    CallFinish,
    CallHalfClosed,
    CallMessage,
    CallReply,
    CallSend,
    CallStopped,
    Connections,
    Counted,
    Current,
    Ended,
    Enter,
    FromFrontend,
    JobEntrance,
    KeysCurrent,
    KeyState,
    Leave,
    OpenCall,
    Peer,
    Rates,
    ReceivedBundle,
    ReceivedInfer,
    ReceivedRequest,
    RefusalAudited,
    RefusalCounted,
    RemoteResponse,
    Respond,
    SequenceLost,
    StopAnnounced,
    StreamFlow,
    UnknownTokenKey,
    content_of,
)
from naiad.frontend_process.outbox import Outbox
from naiad.frontend_process.peer import RemotePeer
from naiad.frontend_process.remote_core import not_ready
from naiad.frontend_process.served_models import Served, ServedModels
from naiad.frontends.lost_sequence import OpenSequences
from naiad.frontends.submit import start_trace, traced
from naiad.inference import InferenceCore
from naiad.instances.channel import Channel
from naiad.instances.responses import decode_tensors
from naiad.ipc.framing import NOT_DECODED, BrokenLinkError, LostDescriptorError
from naiad.ipc.messages import Message
from naiad.ipc.work import WorkError
from naiad.keys.account import Admission, LimitError, MeteredAdmission, RateFields
from naiad.keys.guard import Guard
from naiad.repository.repository import RETRY_AFTER_S
from naiad.shm.arena import INLINE_MAX_BYTES, Arena
from naiad.transport.grpc.method import MakeGate, Method
from naiad.transport.grpc.status import STATUS, Status, retry_fields

MAX_UNSENT_BYTES = 4 << 20
"""A frontend that leaves more than this unread holds back the streams that it forwards."""
MAX_UNSENT_RESPONSE_BYTES = 256 << 10
"""The same for responses. It is small, because what waits may all belong to one client that does
not read, and becomes larger when it is encoded."""
UNSENT_POLL_S = 0.01
_OK = 200
_CLIENT, _FRONTEND = "client", "frontend"
"""Who does not keep up with a stream."""


class FrontendSession:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        place: int,
        core: InferenceCore,
        models: ServedModels,
        methods: dict[bytes, Method],
        arena: Arena,
        on_leave: Callable[[socket.socket, Leave], None],
        on_alive: Callable[[FrontendSession], None],
        on_current: Callable[[FrontendSession], None],
        on_close: Callable[[FrontendSession, str], None],
        make_gate: MakeGate | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`make_gate` and `guard` are None where nobody needs an API key."""
        self.place = place
        self.pid = 0
        """0 until the launcher has forked the process."""
        self.is_serving = False
        """The process has started, and responds."""
        self.generation = 0
        """The state of the models that the frontend acts on."""
        self.key_generation = 0
        """The state of the API keys that the frontend acts on."""
        self.on_unknown_key: Callable[[], None] | None = None
        """Called when a signed token names an unknown key."""
        self.counted = Counted({}, 0.0, 0.0, 0)
        self._num_sent = {HTTP: 0, GRPC: 0}
        self._connections = Connections({HTTP: 0, GRPC: 0}, {HTTP: 0, GRPC: 0})
        self._loop = loop
        self._announced: asyncio.Future[None] | None = None
        self._core = core
        self._models = models
        self._methods = methods
        self._make_gate = make_gate
        self._entrances = None if guard is None else Entrances(guard)
        self._rates: list[tuple[int, RateFields]] = []
        """What the next responses say about the limits of their keys."""
        self._on_leave = on_leave
        self._on_alive = on_alive
        self._on_current = on_current
        self._on_closed = on_close
        self._streams: dict[int, ResponseStream] = {}
        self._bundles: dict[int, Bundle] = {}
        """Handle -> the bundle, for requests that are still part of one."""
        self._sequences = OpenSequences(core)
        self._slow: set[int] = set()
        """The handles of requests whose clients do not keep up."""
        self._is_congested = False
        """The frontend does not keep up, so all streams are held back."""
        self._responses: Outbox[RemoteResponse | BundleResponse] = Outbox(
            loop, self._send_responses
        )
        self._calls: dict[int, ForwardedCall] = {}
        self._clients: dict[int, ClientConnection] = {}
        self._progressed: set[ForwardedCall] = set()
        self._held_back: set[ForwardedCall] = set()
        self.asked_ns = 0
        """When the frontend was asked whether it is alive; 0 if it has responded."""
        self.is_slow = False
        """It has not responded for a while, and gets no more connections."""
        self.busy = 0.0
        """The part of the time in which it had work, when it last responded."""
        self.is_hot = False
        """It has much more work than another one, which gets connections first."""
        self._num_asked = 0
        self._channel: Channel[FromFrontend] = Channel(
            loop,
            sock,
            msgspec.msgpack.Decoder(FromFrontend),
            arena,
            self._on_message,
            self._on_channel_closed,
            "frontend",
        )
        self._channel.link.keep_encoded(msgspec.msgpack.Decoder(FromFrontend))
        self._channel.link.tolerate_lost_descriptors()

    # The process.

    def num_connections(self, endpoint: str) -> int:
        """Those that it has, and those that are on the way to it."""
        report = self._connections
        on_the_way = self._num_sent[endpoint] - report.num_accepted[endpoint]
        return report.num_open[endpoint] + on_the_way

    @property
    def num_requests(self) -> int:
        return len(self._streams) + len(self._bundles)

    def ask_alive(self, now_ns: int) -> None:
        if not self.asked_ns:
            self.asked_ns = now_ns
            self._num_asked += 1
            self._channel.send(AskAlive(self._num_asked))

    def forgive(self, late_ns: int) -> None:
        """This process itself has not run for so long."""
        if self.asked_ns:
            self.asked_ns += late_ns

    def drain(self) -> None:
        """Handles everything that the frontend has sent, now."""
        self._channel.drain()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        self._channel.send(message, None if descriptor is None else [descriptor])

    def announce_stop(self, limit_s: float) -> asyncio.Future[None]:
        """The future is done when the frontend's clients know."""
        self._announced = self._loop.create_future()
        self.send(AnnounceStop(limit_s))
        return self._announced

    def send_connection(self, endpoint: str, message: Message, descriptor: int) -> None:
        self._num_sent[endpoint] += 1
        self._channel.send(message, [descriptor])

    def send_keys(self, generation: int, document: bytes, key_set: bytes) -> None:
        """Raises NaiadError without memory for a large file."""
        message = KeyState(generation, content_of(document), content_of(key_set))
        self._channel.link.place(message.document)
        self._channel.link.place(message.key_set)
        self._channel.send(message)

    def drop_slots(self, ids: list[int]) -> None:
        self._channel.link.drop_slots(ids)

    def close(self, reason: str) -> None:
        self._channel.close(reason)

    def _on_channel_closed(self, reason: str) -> None:
        self.is_serving = False
        for bundle in set(self._bundles.values()):
            bundle.divide()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.cancel()
        self._sequences.break_all()
        for call in list(self._calls.values()):
            call.cancel()
        if self._entrances is not None:
            self._entrances.close()
        self._on_closed(self, reason)

    def _on_message(self, message: FromFrontend) -> None:
        match message:
            case ReceivedInfer():
                self._infer_all(message.requests)
                for bundle in message.bundles:
                    self._infer_bundle(bundle)
            case AskModel():
                self._refuse_unknown(message)
            case Abandon():
                for handle in message.handles:
                    if (cancelled := self._bundles.get(handle)) is not None:
                        cancelled.divide()
                    if (stream := self._streams.get(handle)) is not None:
                        stream.cancel()
            case SequenceLost():
                self._lose_sequence(message)
            case Leave():
                try:
                    sock = socket.socket(fileno=self._channel.link.pop_fd())
                except LostDescriptorError:
                    log.error("no descriptors are left: a connection was lost")
                else:
                    self._on_leave(sock, message)
            case BadOutputs():
                self._models.look_into(message.model_name, message.model_version)
            case StreamFlow():
                self._set_flow(message)
            case OpenCall():
                self._open_call(message)
            case CallMessage():
                self._on_call_message(message)
            case CallHalfClosed() | CallCancelled() | CallStopped() | CallCongested():
                if (call := self._calls.get(message.call)) is not None:
                    self._on_call_event(call, message)
            case Connections():
                self._connections = message
            case Counted():
                self.counted = message
            case Alive():
                self.asked_ns = 0
                self.busy = message.busy
                if not self.is_serving:
                    self.is_serving = True
                    self._on_alive(self)
            case StopAnnounced():
                if self._announced is not None and not self._announced.done():
                    self._announced.set_result(None)
            case Current():
                self.generation = message.generation
                self._on_current(self)
            case _:
                self._on_key_message(message)

    def _on_key_message(self, message: FromFrontend) -> None:
        """Raises BrokenLinkError."""
        entrances = self._entrances
        if entrances is None:
            return
        match message:
            case Caller():
                entrances.on_caller(message)
            case Enter():
                reply = entrances.on_enter(message)
                if reply is not None:
                    self._channel.send(reply)
            case Ended():
                entrances.on_ended(message)
            case RefusalCounted():
                entrances.on_refusal_counted(message)
            case RefusalAudited():
                entrances.on_refusal_audited(message)
            case UnknownTokenKey():
                if self.on_unknown_key is not None:
                    self.on_unknown_key()
            case KeysCurrent():
                entrances.forget_callers()
                self.key_generation = message.generation
                self._on_current(self)
            case _:
                pass

    # Requests.

    def _infer_all(self, items: list[ReceivedRequest]) -> None:
        """Raises BrokenLinkError. No model changes meanwhile, so plain requests for the same copy
        share one lookup."""
        last_copy, served = 0, None
        is_tracing = self._core.tracing.is_on
        for item in items:
            if is_tracing or item.details is not None:
                self._infer(item, None)
            else:
                if item.copy != last_copy:
                    last_copy, served = item.copy, self._models.current(item)
                self._infer(item, served)

    def _infer(self, item: ReceivedRequest, served: Served | None) -> None:
        """`served` is the copy that has validated the request and still serves. None: look it up,
        or validate again. Raises BrokenLinkError."""
        handle, name = item.handle, self._models.name_of(item)
        consumer: Consumer = partial(self._respond, handle, name)
        core, named = self._core, self._note_sequence(name, item)
        try:
            if served is None and item.copy and not core.tracing.is_on:
                served = self._models.current(item)
            request = self._request(item, name, served)
            if item.details is not None and item.details.entrance is not None:
                consumer = self._enter(handle, request, item.details.entrance, consumer)
            if served is not None:
                stream = core.infer_checked(request, served.model, item.start_ns)
            elif core.tracing.is_on:
                stream, consumer = self._infer_traced(request, item, consumer)
            else:
                stream = core.infer(request)
        except NaiadError as error:
            if named is not None:
                core.break_sequence(named)
            error.is_refusal = True
            consumer(InferResponse(name, "", item.id, [], error=error), True)
            return
        self._streams[handle] = stream
        if self._is_congested:
            stream.pause()
        stream.deliver_to(consumer)

    def _lose_sequence(self, message: SequenceLost) -> None:
        """Raises BrokenLinkError."""
        request = InferRequest(
            message.model_name, [], message.model_version, sequence_id=message.sequence_id
        )
        if message.caller and self._entrances is not None:
            request.identity = self._entrances.caller(message.caller)
        self._core.break_sequence(request)

    def _note_sequence(self, name: str, item: ReceivedRequest) -> InferRequest | None:
        """What names the sequence of a request; None if it has none. Raises BrokenLinkError."""
        details = item.details
        if details is None or not details.sequence_id:
            return None
        named = InferRequest(
            name,
            [],
            details.model_version,
            sequence_id=details.sequence_id,
            sequence_end=details.sequence_end,
        )
        if details.entrance is not None and self._entrances is not None:
            named.identity = self._entrances.caller(details.entrance.caller)
        self._sequences.note(named, named.identity)
        return named

    def _refuse_unknown(self, item: AskModel) -> None:
        """Raises BrokenLinkError. The model may have been loaded meanwhile: then the frontend is
        about to hear of it, and the client may try again."""
        name = item.model_name
        consumer: Consumer = partial(self._respond, item.handle, name)
        try:
            if item.entrance is not None:
                request = InferRequest(name, [])
                consumer = self._enter(item.handle, request, item.entrance, consumer)
            self._core.model(name, item.model_version)
            raise unavailable(not_ready(name), RETRY_AFTER_S)
        except NaiadError as error:
            error.is_refusal = True
            consumer(InferResponse(name, "", "", [], error=error), True)

    def _infer_bundle(self, item: ReceivedBundle) -> None:
        """Raises BrokenLinkError."""
        core, details = self._core, item.details
        try:
            served = None if core.tracing.is_on else self._models.current(item)
        except NaiadError:
            served = None
        scheduler = None if served is None else served.bundle_scheduler
        if served is None or scheduler is None or core.is_exiting or len(item.handles) == 1:
            self._infer_all(item.requests())
            return
        request = InferRequest(self._models.name_of(item), [])
        if details is not None:
            request.model_version = details.model_version
            request.requested_outputs = details.requested_outputs
        bundle = Bundle(
            self, request, item.handles, item.start_ns, item.ids, item.inputs, item.batch_size
        )
        self._bundles.update(dict.fromkeys(bundle.handles, bundle))
        if not scheduler.enqueue_bundle(bundle):
            for handle in item.handles:
                del self._bundles[handle]
            self._infer_all(item.requests())

    # What bundles report (naiad.core.bundle.BundleSource).

    def on_split(self, part: Bundle) -> None:
        self._bundles.update(dict.fromkeys(part.handles, part))

    def on_divided(self, bundle: Bundle, jobs: list[Job]) -> None:
        for handle, job in zip(bundle.handles, jobs, strict=True):
            del self._bundles[handle]
            self._streams[handle] = job.stream
            job.stream.deliver_to(partial(self._respond, handle, bundle.request.model_name))

    def on_responses(
        self, bundle: Bundle, model_name: str, model_version: str, outputs: list[msgspec.Raw]
    ) -> None:
        handles = bundle.handles
        for handle in handles:
            del self._bundles[handle]
        if not self._channel.is_closed:
            self._responses.add(
                BundleResponse(handles, model_name, model_version, cast(Any, outputs))
            )

    # Requests by themselves.

    def _enter(
        self, handle: int, request: InferRequest, entrance: JobEntrance, consumer: Consumer
    ) -> Consumer:
        """Raises NaiadError for a key that has reached a limit, and BrokenLinkError."""
        assert self._entrances is not None
        try:
            admission = self._entrances.enter(entrance)
        except LimitError as error:
            self._rates.append((handle, error.fields))
            raise
        request.identity = admission.identity
        if not isinstance(admission, MeteredAdmission):
            return consumer
        has_rates = False

        def consume(response: InferResponse | None, is_final: bool) -> None:
            nonlocal has_rates
            if not has_rates:
                has_rates = True
                if admission.identity.limits.has_any:
                    self._rates.append((handle, admission.rate_fields()))
            if is_final and not entrance.number:
                admission.end(_OK)
            consumer(response, is_final)

        return consume

    def _request(self, item: ReceivedRequest, name: str, served: Served | None) -> InferRequest:
        """Raises BrokenLinkError."""
        details = item.details
        if served is not None and served.is_opaque and item.is_inline:
            inputs: list[Tensor] = []
            encoded: msgspec.Raw | None = item.inputs
        else:
            encoded = None
            try:
                inputs = decode_tensors(item.inputs)
            except NOT_DECODED as error:
                raise BrokenLinkError(str(error)) from error
            if not item.is_inline:
                self._channel.link.resolve(inputs)
        if details is None:
            request = InferRequest(name, inputs, "", item.id)
        else:
            request = InferRequest(
                name,
                inputs,
                details.model_version,
                item.id,
                details.requested_outputs,
                details.parameters,
                details.sequence_id,
                details.sequence_start,
                details.sequence_end,
                details.priority,
                details.timeout_us,
                details.deadline_ns,
                None,
                details.regions,
            )
        request.batch_size = item.batch_size
        request.encoded_inputs = encoded
        if served is not None and served.is_decoupled:
            request.accepts_encoded = True
        return request

    def _infer_traced(
        self, request: InferRequest, item: ReceivedRequest, consumer: Consumer
    ) -> tuple[ResponseStream, Consumer]:
        """For requests that were on their way when tracing was switched on: afterwards this process
        serves connections itself. Raises NaiadError."""
        origin = _TracedOrigin("GRPC" if item.is_grpc else "HTTP", item.start_ns)
        group = start_trace(self._core.tracing, request, origin)
        if group is None:
            return self._core.infer(request), consumer
        request.trace = group.new_trace()
        try:
            stream = self._core.infer(request)
        except NaiadError:
            group.discard()
            raise
        return stream, traced(group, consumer, origin.trace_name)

    def _respond(
        self, handle: int, name: str, response: InferResponse | None, is_final: bool
    ) -> None:
        error = None if response is None else response.error
        if is_final:
            self._streams.pop(handle, None)
            if self._slow:
                self._slow.discard(handle)
        if self._channel.is_closed:
            return
        if response is None:
            self._responses.add(RemoteResponse(handle, is_final, False))
            return
        outputs, is_inline = response.outputs, True
        # The outputs of a request that came encoded are encoded, too.
        for tensor in outputs if outputs.__class__ is list else ():
            if len(tensor.data) > INLINE_MAX_BYTES:
                outputs = list(outputs)
                is_inline = False
                try:
                    self._channel.link.place(outputs)
                except NaiadError as no_memory:
                    outputs, error = [], no_memory
                break
        self._responses.add(
            RemoteResponse(
                handle,
                is_final,
                True,
                response.model_name,
                response.model_version,
                outputs,
                response.parameters,
                None if error is None else self._work_error(name, error),
                is_inline,
            )
        )

    def _work_error(self, model_name: str, error: NaiadError) -> WorkError:
        is_leaving = error.code is Code.UNAVAILABLE and self._core.is_leaving(model_name)
        return WorkError(
            error.code.name, error.message, error.retry_after_s, is_leaving, error.is_refusal
        )

    def _send_responses(self, responses: list[RemoteResponse | BundleResponse]) -> None:
        if self._rates:
            rates, self._rates = self._rates, []
            self._channel.send(Rates(rates))
        singles: list[RemoteResponse] = []
        bundles: list[BundleResponse] = []
        for item in responses:
            if type(item) is BundleResponse:
                bundles.append(item)
            else:
                singles.append(item)
        self._channel.send(Respond(singles, bundles))
        if self._channel.unsent_bytes > MAX_UNSENT_RESPONSE_BYTES and not self._is_congested:
            self._is_congested = True
            for stream in list(self._streams.values()):
                stream.pause()
            self._loop.call_later(UNSENT_POLL_S, self._end_congestion)

    # Streams.

    def _set_flow(self, message: StreamFlow) -> None:
        stream = self._streams.get(message.handle)
        if stream is None:
            return
        if message.is_paused:
            self._slow.add(message.handle)
        else:
            self._slow.discard(message.handle)
        stream.pause(message.is_paused or self._is_congested)

    def _end_congestion(self) -> None:
        """The frontend has read what it was sent, or most of it: streams go on, except those whose
        clients do not keep up."""
        if self._channel.is_closed:
            return
        if self._channel.unsent_bytes > MAX_UNSENT_RESPONSE_BYTES // 2:
            self._loop.call_later(UNSENT_POLL_S, self._end_congestion)
            return
        self._is_congested = False
        for handle, stream in list(self._streams.items()):
            stream.pause(handle in self._slow)

    # Calls.

    def _open_call(self, message: OpenCall) -> None:
        client = self._clients.get(message.connection)
        if client is None:
            client = ClientConnection(message.connection, self._core.budget.open_account())
            self._clients[message.connection] = client
        client.num_calls += 1
        method = self._methods[message.path.encode()]
        gate = admission = peer = None
        if self._make_gate is not None:
            peer = RemotePeer(message.peer or Peer())
            gate = self._make_gate(method, message.metadata)
            if gate is not None:
                entrance = gate.enter(peer) if method.stream is None else gate.check(peer)
                if isinstance(entrance, NaiadError):
                    self._forget_client(client)
                    fields = list(retry_fields(entrance))
                    status = STATUS[entrance.code]
                    self.send(CallFinish(message.call, status, entrance.message, fields))
                    return
                admission = entrance
        self._calls[message.call] = ForwardedCall(
            self, client, method, message, gate, admission, peer
        )

    def _on_call_message(self, message: CallMessage) -> None:
        call = self._calls.get(message.call)
        try:
            self._channel.link.resolve(message.content)
        except NaiadError as error:
            if call is not None:
                call.abort(Status.UNAVAILABLE, error.message)
            return
        if call is not None:
            call.was_idle = False
            call.on_message(message.content[0].data)
            self.note_progress(call)

    def _on_call_event(
        self,
        call: ForwardedCall,
        message: CallHalfClosed | CallCancelled | CallStopped | CallCongested,
    ) -> None:
        match message:
            case CallHalfClosed():
                call.on_half_close()
            case CallCancelled():
                call.cancel()
            case CallStopped():
                call.stop()
            case CallCongested():
                call.set_congested(_CLIENT, message.is_congested)

    # What calls ask for (naiad.frontend_process.forwarded_call.Frontend).

    def send_content(self, message: CallReply | CallSend) -> None:
        try:
            self._channel.link.place(message.content)
        except NaiadError as error:
            call = self._calls.get(message.call)
            if call is not None:
                call.abort(Status.UNAVAILABLE, error.message)
            return
        self._channel.send(message)
        call = self._calls.get(message.call)
        if call is not None and self._channel.unsent_bytes > MAX_UNSENT_BYTES:
            if not self._held_back:
                self._loop.call_later(UNSENT_POLL_S, self._continue_streams)
            self._held_back.add(call)
            call.set_congested(_FRONTEND, True)

    def _continue_streams(self) -> None:
        if self._channel.unsent_bytes > MAX_UNSENT_BYTES // 2 and not self._channel.is_closed:
            self._loop.call_later(UNSENT_POLL_S, self._continue_streams)
            return
        calls, self._held_back = self._held_back, set()
        for call in calls:
            call.set_congested(_FRONTEND, False)

    def on_call_ended(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            self._progressed.discard(call)
            self._forget_client(call.client)

    def _forget_client(self, client: ClientConnection) -> None:
        """One of the client's calls has ended."""
        client.num_calls -= 1
        if not client.num_calls:
            self._clients.pop(client.number, None)

    def note_progress(self, call: ForwardedCall) -> None:
        if call.handler is None:
            return
        if not self._progressed:
            self._loop.call_soon(self._report_idle)
        self._progressed.add(call)

    def _report_idle(self) -> None:
        calls, self._progressed = self._progressed, set()
        for call in calls:
            call.report_idle()


class _TracedOrigin:
    """Where a traced request came from, as far as this process knows."""

    admission: Admission | None = None

    def __init__(self, trace_name: str, receive_start_ns: int) -> None:
        self.trace_name = trace_name
        self.receive_start_ns = receive_start_ns

    def header(self, name: str) -> str:
        return ""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """The frontend reports that by `Abandon`."""
