"""ModelStreamInfer: many requests on one call, many in flight at once.

Responses of models without the decoupled policy keep the order of their requests; decoupled models
respond as their responses come; both may share a stream. Errors are messages, not the end of the
stream, unless the client asked for that with `triton_grpc_error: true`. A client that reads slowly
holds back decoupled models; when even that does not help, its call is cancelled
(naiad.transport.http2.limits).
Rule: when the call ends, everything that was submitted here has its response or is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from naiad import log
from naiad.core.identity import Identity
from naiad.core.memory_budget import FULL_MESSAGE, RETRY_AFTER_S, SMALL_BYTES
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.errors import Code, NaiadError, internal, unavailable
from naiad.frontends.core import Inference, UndecidedError
from naiad.frontends.grpc.infer import (
    Decode,
    Decoded,
    first_fault,
    prepare_aside,
    response_error,
    takes_long,
)
from naiad.frontends.header_forward import HeaderForward
from naiad.frontends.lost_sequence import OpenSequences, lose
from naiad.frontends.side_thread import (
    INLINE_VALUE_BYTES,
    SideThread,
    client_error,
)
from naiad.frontends.submit import submit
from naiad.keys.account import Admission
from naiad.protocol.v2 import grpc_codec
from naiad.protocol.v2.grpc_request import PLAIN, RequestOptions
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.status import STATUS, Status, retry_fields

REQUEST_BYTES = 4096
"""What a request in flight takes besides its tensors."""
FREE_BYTES = 4 << 20
"""Requests themselves count to the memory budget while those of the stream take more than this."""
_GONE = InferRequest("", [])
_SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


class ModelStreamInfer:
    """The method, which gives each call a RequestStream."""

    def __init__(
        self,
        core: Inference,
        headers: HeaderForward,
        max_request_bytes: int,
        is_stopping: Callable[[], bool],
        side_thread: SideThread,
        decode: Decode = grpc_codec.decode_small_request,
    ) -> None:
        self.side_thread = side_thread
        self.decode = decode
        self.core = core
        self.headers = headers
        self.max_request_bytes = max_request_bytes
        self.is_stopping = is_stopping

    def open(self, call: Call) -> RequestStream:
        return RequestStream(self, call)


class RequestStream:
    def __init__(self, method: ModelStreamInfer, call: Call) -> None:
        self._method = method
        self.side_thread = method.side_thread
        self._call = call
        self._closes_on_error = call.head.metadata.get("triton_grpc_error", "").lower() == "true"
        self._in_flight: set[StreamedRequest] = set()
        self._ordered: deque[StreamedRequest] = deque()
        """Requests to models without the decoupled policy; the first one is the next whose response
        is written."""
        self._is_half_closed = False
        self._is_stopping = False
        self.is_cancelled = False
        self._is_decoding = False
        """The side thread has a message that takes long to decode."""
        self._waiting: deque[tuple[Buffer, Admission | None]] = deque()
        """Messages behind that one, with their admissions."""
        self._num_requests = 0
        self._is_paused = False
        self._is_congested = False
        self._request_bytes = 0
        """What the requests in flight take, REQUEST_BYTES for each included."""
        self._sequences = OpenSequences(method.core)
        call.on_flow = self._set_congested
        call.on_broken = self._sequences.break_all

    # Called by the transport.

    def on_message(self, message: Buffer) -> None:
        if self._is_decoding or self._waiting:
            self._waiting.append((message, self._call.admission))
        else:
            self._handle(message, self._call.admission)

    def _handle(self, message: Buffer, admission: Admission | None) -> None:
        try:
            if self._method.is_stopping():
                raise unavailable(_SHUTTING_DOWN)
            decoded = self._method.decode(message)
        except NaiadError as error:
            self._refuse(message, admission, error)
            return
        if decoded is None or takes_long(self._call, decoded[0]):
            self._is_decoding = True
            self._call.pause_requests()
            self._method.side_thread.run(
                prepare_aside(
                    self._call, decoded, message, self._method.side_thread, self._method.core
                ),
                partial(self._on_decoded, admission),
                partial(self._on_refused, message, admission),
            )
            return
        self._accept(decoded, admission)

    def _accept(self, decoded: Decoded, admission: Admission | None) -> None:
        try:
            self._submit(*decoded, admission)
        except NaiadError as error:
            lose(self._method.core, [decoded[0]], None if admission is None else admission.identity)
            self._reject(error, decoded[0].id, admission)

    def _on_decoded(self, admission: Admission | None, decoded: Decoded) -> None:
        if self.is_cancelled:
            _end_admission(admission, Status.CANCELLED)
        else:
            self._accept(decoded, admission)
            self._continue()

    def _on_refused(self, message: Buffer, admission: Admission | None, error: Exception) -> None:
        fault = client_error(error, "a gRPC request could not be decoded")
        if self.is_cancelled:
            _end_admission(admission, Status.CANCELLED)
        else:
            self._refuse(message, admission, fault)
            self._continue()

    def _continue(self) -> None:
        """Handles the messages that arrived while one was decoded."""
        self._is_decoding = False
        while self._waiting and not self._is_decoding and not self.is_cancelled:
            self._handle(*self._waiting.popleft())
        if self._is_decoding or self.is_cancelled:
            return
        if not self._is_paused:
            self._call.resume_requests()
        self._finish_if_done()

    def _refuse(self, message: Buffer, admission: Admission | None, error: NaiadError) -> None:
        self._call.lose(message)
        identity = grpc_codec.identify(message)
        if identity is None:
            self._reject(error, "", admission, ends_stream=True)
            return
        is_leaving = error.code is Code.UNAVAILABLE
        fault = error if is_leaving else first_fault(self._method.core, identity, error)
        self._reject(fault, identity.id, admission)

    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        """A request beyond a limit is an error message of the stream, which may go on; a key that
        is no longer valid ends the stream and its requests."""
        self._call.lose(message)
        identity = grpc_codec.identify(message) if error.code is Code.RESOURCE_EXHAUSTED else None
        if identity is None:
            self._call.abort(STATUS[error.code], error.message, retry_fields(error))
        else:
            self._reject(error, identity.id, None)

    def on_half_close(self) -> None:
        self._is_half_closed = True
        self._finish_if_done()

    def on_stop(self) -> None:
        self._is_stopping = True
        self._finish_if_done()

    @property
    def is_idle(self) -> bool:
        return not (self._in_flight or self._is_decoding or self._waiting)

    def on_cancel(self) -> None:
        self.is_cancelled = True
        for message, admission in self._waiting:
            self._call.lose(message)
            _end_admission(admission, Status.CANCELLED)
        self._waiting.clear()
        for streamed in list(self._in_flight):
            streamed.release_memory()
            streamed.cancel()
        self._in_flight.clear()
        self._ordered.clear()

    # Flow.

    def _set_congested(self, is_congested: bool) -> None:
        """While the client does not keep up, decoupled models hold back and the stream asks for no
        more requests."""
        self._is_congested = is_congested
        for streamed in list(self._in_flight):
            streamed.pause(is_congested)
        self._regulate()

    def _regulate(self) -> None:
        """While a sequence is open, everything is read: the end of one may be what another waits
        for, and a sequence whose requests are not read would look idle. The memory budget bounds
        that."""
        limit = self._method.max_request_bytes
        is_too_much = self._request_bytes > (limit // 2 if self._is_paused else limit)
        if (is_too_much or self._is_congested) and not self._sequences:
            if not self._is_paused:
                self._is_paused = True
                self._call.pause_requests()
        elif self._is_paused:
            self._is_paused = False
            self._call.resume_requests()

    # One request.

    def _submit(
        self, request: InferRequest, options: RequestOptions, admission: Admission | None
    ) -> None:
        core = self._method.core
        model = core.model(request.model_name, request.model_version)
        self._method.headers.apply(request, self._call.head.metadata)
        request.deadline_ns = self._call.deadline_ns
        streamed = StreamedRequest(self, self._call, request, options, model.spec, admission)
        self._sequences.note(request, streamed.identity)
        try:
            streamed.hold_inputs(is_many=self._request_bytes > FREE_BYTES)
            submit(
                core,
                request,
                streamed.on_response,
                streamed,
                model=model,
                on_accepted=partial(self._on_accepted, streamed),
            )
        except NaiadError:
            streamed.release_memory()
            raise

    def _on_accepted(self, streamed: StreamedRequest, stream: ResponseStream) -> None:
        streamed.stream = stream
        self._add(streamed)
        if self._is_congested:
            streamed.pause(True)
        self._regulate()

    def _reject(
        self,
        error: NaiadError,
        request_id: str,
        admission: Admission | None,
        *,
        ends_stream: bool = False,
    ) -> None:
        """A rejection keeps its place among the ordered responses."""
        rejected = StreamedRequest(
            self, self._call, InferRequest("", [], id=request_id), PLAIN, None, admission
        )
        self._add(rejected)
        rejected.decide(error, partial(rejected.reject, ends_stream=ends_stream))

    def _add(self, streamed: StreamedRequest) -> None:
        self._num_requests += 1
        streamed.number = self._num_requests
        self._in_flight.add(streamed)
        self._request_bytes += streamed.request_bytes
        if not streamed.is_decoupled:
            self._ordered.append(streamed)

    def keep_place(self, streamed: StreamedRequest) -> None:
        """A decoupled request that is rejected has a place among the ordered responses, too."""
        place = sum(each.number < streamed.number for each in self._ordered)
        self._ordered.insert(place, streamed)

    def send(self, pieces: list[Buffer], num_bytes: int) -> None:
        self._call.send(pieces, num_bytes)

    def fail(self, error: NaiadError, *, ends_stream: bool = False) -> bool:
        """Ends the stream and returns True when it must end, or when the client asked for a stream
        that ends with its first error."""
        if self._closes_on_error or ends_stream:
            self._call.abort_provoked(STATUS[error.code], error.message, retry_fields(error))
            return True
        return False

    def write_ready(self) -> None:
        """Writes the ordered responses up to the first one that is not there yet."""
        ordered = self._ordered
        while ordered and ordered[0].message is not None:
            streamed = ordered.popleft()
            pieces, num_bytes = streamed.message  # type: ignore[misc]
            self.send(pieces, num_bytes)
            self.end(streamed)

    def is_next(self, streamed: StreamedRequest) -> bool:
        """The response of this ordered request is the next one to be written."""
        return bool(self._ordered) and self._ordered[0] is streamed

    def end(self, streamed: StreamedRequest) -> None:
        streamed.release_memory()
        if streamed in self._in_flight:
            self._in_flight.discard(streamed)
            self._request_bytes -= streamed.request_bytes
        if self._is_paused:
            self._regulate()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self.is_idle:
            return
        if self._is_half_closed:
            self._call.finish(Status.OK)
        elif self._is_stopping:
            self._call.finish(Status.UNAVAILABLE, _SHUTTING_DOWN)


class StreamedRequest:
    """One request of the stream, until its last response is written. It is its own Origin, because
    the call belongs to all of them."""

    __slots__ = (
        "_call",
        "_count",
        "_options",
        "_owner",
        "_request",
        "_response",
        "_spec",
        "admission",
        "held_bytes",
        "is_decoupled",
        "message",
        "number",
        "request_bytes",
        "stream",
    )

    def __init__(
        self,
        owner: RequestStream,
        call: Call,
        request: InferRequest,
        options: RequestOptions,
        spec: ModelSpec | None,
        admission: Admission | None,
    ) -> None:
        """`admission` is None where nobody needs a key."""
        self._owner = owner
        self._call = call
        self._request = request
        self._options = options
        self._spec = spec
        self.admission = admission
        self.number = 0
        """The requests of the stream are numbered in the order of their arrival."""
        self.held_bytes = 0
        """Bytes charged to the connection's account until the last response is written."""
        self.request_bytes = REQUEST_BYTES
        self.is_decoupled = spec is not None and spec.is_decoupled
        self.stream: ResponseStream | None = None
        self.message: grpc_codec.Pieces | None = None
        """The complete response of an ordered request, while it waits for its turn."""
        self._response: InferResponse | None = None
        self._count = 0

    # What `submit` asks of an Origin.

    @property
    def trace_name(self) -> str:
        return self._call.trace_name

    @property
    def receive_start_ns(self) -> int:
        return self._call.receive_start_ns

    @property
    def identity(self) -> Identity | None:
        return None if self.admission is None else self.admission.identity

    def header(self, name: str) -> str:
        return self._call.header(name)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """RequestStream.on_cancel cancels every request of the call."""

    # What the stream asks.

    def cancel(self) -> None:
        _end_admission(self.admission, Status.CANCELLED)
        if self.stream is not None:
            self.stream.cancel()

    def pause(self, is_paused: bool) -> None:
        if self.stream is not None and self.is_decoupled:
            self.stream.pause(is_paused)

    def decide(self, error: NaiadError, then: Callable[[NaiadError], None]) -> None:
        """Calls `then` with the error for the client. In a frontend process, only the server
        process may know it."""
        if isinstance(error, UndecidedError):
            error.decide(self.admission, then)
        elif self.admission is not None and self.admission.is_undecided:
            self.admission.decide(lambda refusal: then(refusal or error))
        else:
            then(error)

    def reject(self, error: NaiadError, *, ends_stream: bool = False) -> None:
        """For a request that never reached a model."""
        _end_admission(self.admission, STATUS[error.code])
        if self._owner.is_cancelled or self._owner.fail(error, ends_stream=ends_stream):
            return
        message = grpc_codec.encode_stream_rejection(error, self._request.id)
        self.message = ([message], len(message))
        self._owner.write_ready()

    def hold_inputs(self, *, is_many: bool) -> None:
        """Counts the tensors of a small message, and the request itself where many are in flight; a
        large message is counted by its memory. Raises NaiadError when the server holds too much
        already."""
        num_bytes = sum(len(tensor.data) for tensor in self._request.inputs)
        self.request_bytes = num_bytes + REQUEST_BYTES
        if num_bytes <= SMALL_BYTES:
            num_bytes += REQUEST_BYTES * is_many
            if not self._call.account.charge(num_bytes):
                raise unavailable(FULL_MESSAGE, RETRY_AFTER_S)
            self.held_bytes = num_bytes

    def release_memory(self) -> None:
        self._call.account.release(self.held_bytes)
        self.held_bytes = 0

    def _hold_message(self) -> None:
        """Counts a response that waits for earlier ones. Where there is no room for it, an error
        takes its place."""
        assert self.message is not None
        num_bytes = self.message[1]
        if self._owner.is_next(self):
            return
        if self._call.account.charge(num_bytes):
            self.held_bytes += num_bytes
        else:
            error = unavailable(FULL_MESSAGE, RETRY_AFTER_S)
            message = grpc_codec.encode_stream_rejection(error, self._request.id)
            self.message = ([message], len(message))

    # Responses.

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None and response.error is not None and response.error.is_refusal:
            if self.is_decoupled:
                self._owner.keep_place(self)
            self.reject(response.error)
            self._release()
        elif self.is_decoupled:
            self._on_decoupled(response, is_final)
        else:
            self._on_single(response, is_final)

    def _on_single(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._count += 1
            self._response = response
        if not is_final:
            return
        error = response_error(self._response, self._count)
        _end_admission(self.admission, Status.OK if error is None else STATUS[error.code])
        if (
            error is None
            and self._response is not None
            and grpc_codec.is_slow_response(self._response, self._options, INLINE_VALUE_BYTES)
        ):
            self._owner.side_thread.run(
                partial(self._encode, self._response, is_final=True),
                self._end_single,
                lambda error: self._end_single(
                    self._message(
                        None, client_error(error, "a response could not be encoded"), is_final=True
                    )
                ),
            )
            return
        self._end_single(self._message(self._response, error, is_final=True))

    def _end_single(self, message: grpc_codec.Pieces | None) -> None:
        if not self._owner.is_cancelled:
            self.message = message
            if message is not None:
                self._hold_message()
        self._release()
        if self.message is not None:
            self._owner.write_ready()

    def _on_decoupled(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            message = self._message(response, response.error, is_final=is_final)
            if message is not None:
                self._owner.send(*message)
        elif is_final and self._options.wants_empty_final:
            empty = grpc_codec.encode_empty_final(self._request)
            self._owner.send([empty], len(empty))
        if is_final:
            _end_admission(self.admission, Status.OK)
            self._release()
            self._owner.end(self)

    def _message(
        self, response: InferResponse | None, error: NaiadError | None, *, is_final: bool
    ) -> grpc_codec.Pieces | None:
        """The message to send; None when the error has ended the stream."""
        if error is None and response is not None:
            try:
                return self._encode(response, is_final=is_final)
            except NaiadError as fault:
                error = NaiadError(fault.code, fault.message)
        error = error or internal("received an unexpected null response")
        if self._owner.fail(error):
            return None
        message = grpc_codec.encode_stream_error(error, self._request, is_final=is_final)
        return [message], len(message)

    def _release(self) -> None:
        """Breaks the reference cycle of request, stream and this object: with it, tensors would
        stay in memory until the garbage collector runs."""
        self.stream = None
        self._response = None
        self._request = _GONE

    def _encode(self, response: InferResponse, *, is_final: bool) -> grpc_codec.Pieces:
        assert self._spec is not None
        try:
            pieces = grpc_codec.encode_response(response, self._request, self._options, self._spec)
        except NaiadError:
            raise
        except Exception as error:
            log.error(
                f"gRPC: response of model '{self._request.model_name}' could not be encoded: "
                f"{error!r}"
            )
            raise internal("the response could not be encoded") from None
        return grpc_codec.encode_stream_response(pieces, is_final=is_final)


def _end_admission(admission: Admission | None, status: Status) -> None:
    if admission is not None:
        admission.end(status)
