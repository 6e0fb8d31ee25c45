"""POST /v2/models/M/generate and /generate_stream: a flat JSON object -> the core -> one flat
object, or one event per response.

The status of a stream is decided by its first response; errors after it are events of the stream.
A client that goes away cancels the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg
from naiad.frontends.core import Inference
from naiad.frontends.http.load_report import FORMAT_HEADER, Gauges, load_report
from naiad.frontends.http.response import (
    EVENT_STREAM,
    STATUS,
    error_headers,
    respond_error,
    respond_json,
)
from naiad.frontends.side_thread import (
    INLINE_PLAIN_BYTES,
    INLINE_VALUE_BYTES,
    SideThread,
    client_error,
)
from naiad.frontends.submit import submit
from naiad.protocol.v2 import generate
from naiad.protocol.v2.json_codec import encode_error
from naiad.protocol.v2.json_split import check_size
from naiad.repository.request_check import check_strings
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import JSON_TYPE

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class GenerateRoute:
    def __init__(
        self,
        core: Inference,
        head: Head,
        model_name: str,
        model_version: str,
        max_bytes: int,
        forward: Callable[[Head], dict[str, ParameterValue]] | None,
        gauges: Gauges | None,
        side_thread: SideThread,
        *,
        is_stream: bool,
    ) -> None:
        self._side_thread = side_thread
        self._core = core
        self._head = head
        self._model_name = model_name
        self._model_version = model_version
        self._max_bytes = max_bytes
        self._forward = forward
        self._gauges = gauges
        self._is_stream = is_stream

    def handle(self, exchange: Exchange) -> None:
        report = self._report if FORMAT_HEADER in self._head.headers else None
        generation = (
            StreamedGeneration(exchange, report)
            if self._is_stream
            else SingleGeneration(exchange, self._side_thread, report)
        )
        try:
            spec = self._core.model(self._model_name, self._model_version).spec
            self._check_encoding()
            if len(exchange.body) > INLINE_PLAIN_BYTES:
                self._side_thread.run(
                    partial(self._decode_slowly, exchange.body, spec),
                    partial(self._generate, exchange, generation),
                    lambda error: respond_error(
                        exchange, client_error(error, "a request could not be decoded")
                    ),
                )
                return
            request = self._decode(exchange.body, spec)
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            self._generate(exchange, generation, request)

    def _generate(
        self,
        exchange: Exchange,
        generation: SingleGeneration | StreamedGeneration,
        request: InferRequest,
    ) -> None:
        if exchange.is_disconnected:
            return
        try:
            generation.run(self._core, request)
        except NaiadError as error:
            respond_error(exchange, error)

    def _report(self) -> bytes:
        """The load report of the moment at which the response begins."""
        asked = self._head.headers[FORMAT_HEADER].decode("latin-1")
        return b"" if self._gauges is None else load_report(asked, self._gauges, self._model_name)

    def _decode(self, body: Buffer, spec: ModelSpec) -> InferRequest:
        """Raises NaiadError."""
        request = generate.decode_request(body, spec, self._model_version, self._max_bytes)
        if self._forward is not None:
            request.parameters.update(self._forward(self._head))
        return request

    def _decode_slowly(self, body: Buffer, spec: ModelSpec) -> InferRequest:
        """Runs in the side thread. Raises NaiadError."""
        check_size(body, len(body))
        request = self._decode(body, spec)
        check_strings(request, spec.name)
        return request

    def _check_encoding(self) -> None:
        if self._head.headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise invalid_arg("Unsupported content-encoding, only 'identity' is supported.")


class SingleGeneration:
    """One request whose model must respond exactly once; a final flag without a response does not
    count."""

    def __init__(
        self,
        exchange: Exchange,
        side_thread: SideThread,
        report: Callable[[], bytes] | None = None,
        identity: Mapping[str, object] | None = None,
    ) -> None:
        """`identity` is how the request named its id, if not by `id`."""
        self._exchange = exchange
        self._side_thread = side_thread
        self._report = report
        self._identity = identity
        self._stream: ResponseStream | None = None
        self._response: InferResponse | None = None

    def run(self, core: Inference, request: InferRequest) -> None:
        """Raises NaiadError when the request is refused."""
        submit(core, request, self._on_response, self._exchange, on_accepted=self._on_accepted)

    def _on_accepted(self, stream: ResponseStream) -> None:
        self._stream = stream

    def _on_response(self, response: InferResponse | None, is_final: bool) -> None:
        exchange = self._exchange
        if exchange.is_ended:
            return
        if response is not None:
            if self._response is not None:
                self._fail(invalid_arg(_NOT_ONE))
                if self._stream is not None and not is_final:
                    self._stream.cancel()
                return
            self._response = response
        if is_final:
            self._respond(self._response)

    def _respond(self, response: InferResponse | None) -> None:
        if response is None:
            self._fail(invalid_arg(_NOT_ONE))
            return
        if response.error is not None:
            # Not raised: an error that was raised holds the frames it passed, and with them the
            # request's memory until the garbage collector runs.
            self._fail(response.error)
            return
        if generate.is_large_response(response, INLINE_VALUE_BYTES):
            self._side_thread.run(
                partial(generate.encode_large_response, response, self._identity),
                self._send_parts,
                lambda error: self._fail(client_error(error, "a response could not be encoded")),
            )
            return
        try:
            body = generate.encode_response(response, self._identity)
        except NaiadError as error:
            self._fail(error)
        else:
            if self._report is None:
                respond_json(self._exchange, body)
            else:
                self._exchange.respond(200, JSON_TYPE + self._report(), body)

    def _send_parts(self, parts: list[Buffer]) -> None:
        headers = JSON_TYPE if self._report is None else JSON_TYPE + self._report()
        self._exchange.respond_parts(200, headers, parts, sum(map(len, parts)))

    def _fail(self, error: NaiadError) -> None:
        respond_error(self._exchange, error, b"" if self._report is None else self._report())


class StreamedGeneration:
    """One request whose responses are server-sent events."""

    def __init__(self, exchange: Exchange, report: Callable[[], bytes] | None) -> None:
        self._exchange = exchange
        self._report = report
        """None when the client wants no load report, and after the head has been sent."""

    def run(self, core: Inference, request: InferRequest) -> None:
        """Raises NaiadError when the request is refused."""
        stream = submit(core, request, self._on_response, self._exchange)
        if not self._exchange.is_ended:
            self._exchange.on_flow(stream.pause)
            self._exchange.on_stop(self._stop)

    def _stop(self, error: NaiadError) -> None:
        self._exchange.send_chunk(generate.encode_event(encode_error(error)))
        self._exchange.end_stream()

    def _on_response(self, response: InferResponse | None, is_final: bool) -> None:
        exchange = self._exchange
        if response is not None:
            self._send(response)
        if is_final:
            # does nothing when a response has started the stream
            exchange.start_stream(200, EVENT_STREAM + self._report_once())
            exchange.end_stream()

    def _send(self, response: InferResponse) -> None:
        status, headers = 200, EVENT_STREAM
        error = response.error
        if error is None:
            try:
                data = generate.encode_response(response)
            except NaiadError as fault:
                error = NaiadError(fault.code, fault.message)
        if error is not None:
            status, headers = STATUS[error.code], error_headers(error, EVENT_STREAM)
            data = encode_error(error)
        if self._report is not None:
            headers += self._report_once()
        self._exchange.start_stream(status, headers)
        self._exchange.send_chunk(generate.encode_event(data))

    def _report_once(self) -> bytes:
        report, self._report = self._report, None
        return b"" if report is None else report()
