"""POST /v2/models/M/infer: a body in Triton's inference protocol -> the core -> one response.

An InferRoute is built once per distinct request head and holds everything that follows from the
head; `handle` is the hot part of the full path. A request whose like may come again also sets up
the fast path (naiad.fastpath) for the next request of its connection.
Beyond Triton: a flat JSON object that names an input of the model (naiad.protocol.v2.flat), and a
form or a file (naiad.protocol.v2.form), get one flat JSON object in response. It has `request_id`
if the request has that in place of `id`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from naiad.core.memory_budget import SMALL_BYTES
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.tensor import Allocate, Buffer, has_larger, move_data, move_larger
from naiad.errors import Code, NaiadError, internal, invalid_arg, oversize_body, unsupported
from naiad.fastpath.http_connection import HttpFastPath, may_repeat
from naiad.fastpath.http_plan import HttpPlan, RequestLayout
from naiad.fastpath.http_plans import HttpPlans
from naiad.frontends.core import Inference
from naiad.frontends.http.generate import SingleGeneration
from naiad.frontends.http.infer_response import InferResponder
from naiad.frontends.http.response import respond_error
from naiad.frontends.lost_sequence import lose
from naiad.frontends.side_thread import (
    INLINE_COPY_BYTES,
    INLINE_JSON_BYTES,
    INLINE_PLAIN_BYTES,
    INLINE_STRING_BYTES,
    SideThread,
    client_error,
)
from naiad.frontends.submit import submit
from naiad.machine.codec_threads import codec_threads
from naiad.protocol.compression import IDENTITY, SUPPORTED, choose_encoding, decompress
from naiad.protocol.v2 import form, json_codec, lost_request, raw_request
from naiad.protocol.v2.flat import FlatConversion, may_be_flat
from naiad.protocol.v2.flat import parse_large as parse_large_flat
from naiad.protocol.v2.json_checked import MissingInputsError
from naiad.protocol.v2.json_split import parse_large
from naiad.protocol.v2.output_format import OutputFormats
from naiad.protocol.v2.triton_json import parse
from naiad.repository.request_check import check_strings, has_long_strings
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head

if TYPE_CHECKING:
    from naiad.core.identity import Identity
    from naiad.repository.model import Model

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_MAX_INLINE_DECOMPRESS_BYTES = 1024
"""At most a megabyte unpacked."""
_LENGTH_HEADER = "Inference-Header-Content-Length"
_LENGTH_KEY = _LENGTH_HEADER.lower().encode()
_INTEGER = re.compile(rb"[+-]?[0-9]{1,20}")
_ALIGNMENT = 64


class _Decoded(NamedTuple):
    request: InferRequest
    formats: OutputFormats
    plan: HttpPlan | None = None


class _Flat(NamedTuple):
    """A request whose response is flat."""

    request: InferRequest
    identity: dict[str, object] | None = None
    """How the request named its id, if not by `id`."""


class InferRoute:
    __slots__ = (
        "_content_encoding",
        "_content_type",
        "_core",
        "_forward",
        "_forward_error",
        "_header_length",
        "_is_file",
        "_is_page",
        "_layout",
        "_length_error",
        "_max_bytes",
        "_max_json_bytes",
        "_model_name",
        "_model_version",
        "_plan",
        "_plans",
        "_response_encoding",
        "_side_thread",
    )

    def __init__(
        self,
        core: Inference,
        head: Head,
        model_name: str,
        model_version: str,
        max_bytes: int,
        max_json_bytes: int,
        forward: Callable[[Head], dict[str, ParameterValue]] | None,
        plans: HttpPlans | None,
        side_thread: SideThread,
    ) -> None:
        """`plans` is None when the fast paths are switched off."""
        self._max_json_bytes = max_json_bytes
        self._side_thread = side_thread
        self._core = core
        self._model_name = model_name
        self._model_version = model_version
        self._max_bytes = max_bytes
        self._header_length: int | None = None
        self._plans = plans
        self._plan: HttpPlan | None = None
        """The plan of the last request with this head."""
        self._layout: RequestLayout | None = None
        """The layout of whole requests with this head, for `_layout.plan`."""
        self._forward: dict[str, ParameterValue] | None = None
        # Errors of the head are kept until `_infer` reaches the place where Triton checks them.
        self._length_error: NaiadError | None = None
        self._forward_error: NaiadError | None = None
        encoding = head.headers.get(b"content-encoding", b"").decode("latin-1")
        self._content_encoding = encoding or IDENTITY
        self._response_encoding = choose_encoding(head.headers.get(b"accept-encoding", b""))
        self._content_type = head.headers.get(b"content-type", b"")
        # With a length of the JSON, all is Triton's.
        self._is_file: bool | None = (
            False if _LENGTH_KEY in head.headers else form.is_file_type(self._content_type)
        )
        """The body is a form or a file. None if its first byte tells."""
        self._is_page = b"origin" in head.headers or b"sec-fetch-site" in head.headers
        try:
            self._header_length = _header_length(head)
        except NaiadError as error:
            self._length_error = error
        try:
            self._forward = None if forward is None else forward(head)
        except NaiadError as error:
            self._forward_error = error

    @property
    def is_raw(self) -> bool:
        """The whole body is the single input of the model."""
        return self._header_length == 0

    def handle(self, exchange: Exchange) -> None:
        if self._content_encoding != IDENTITY:
            self._decompress(exchange)
        else:
            self._infer(exchange, exchange.body)

    def body_buffer(self, num_bytes: int) -> memoryview | None:
        """Returns memory shared with the workers: binary tensors of the body need no further copy.
        The first tensor is aligned."""
        if self._header_length is None or self._content_encoding != IDENTITY:
            return None
        skipped = -self._header_length % _ALIGNMENT
        memory = self._core.input_buffer(self._model_name, num_bytes + skipped)
        return None if memory is None else memory[skipped:]

    def _infer(self, exchange: Exchange, body: Buffer) -> None:
        try:
            model = self._core.model(self._model_name, self._model_version)
            spec = model.spec
            if self._is_file is not False and self._is_file_body(body):
                self._infer_file(exchange, body, model)
                return
            if spec.is_decoupled:
                self._infer_decoupled(exchange, body, spec)
                return
            decoded = self._decode(body, model)
            if decoded is None:
                self._decode_aside(exchange, body, model)
                return
            self._hold_tensors(exchange, len(body), decoded.request)
            self._add_forwarded(decoded.request)
            if has_long_strings(decoded.request, INLINE_STRING_BYTES) or (
                self._content_encoding != IDENTITY
                and has_larger(decoded.request.inputs, INLINE_COPY_BYTES)
            ):
                self._side_thread.run(
                    partial(self._prepare, decoded.request, spec, self._allocate()),
                    lambda _: self._submit(exchange, decoded, model),
                    partial(self._fail_aside, exchange, spec, body),
                )
            else:
                self._submit(exchange, decoded, model)
        except MissingInputsError as error:
            self._infer_flat(exchange, error, spec)
        except NaiadError as error:
            self._refuse(exchange, error, body)

    def on_lost(self, body: Buffer, identity: Identity | None) -> bool:
        """See Route.on_lost."""
        if self._content_encoding != IDENTITY:
            body = lost_request.uncompressed(body)
        return self._lose(body, identity)

    def _lose(self, body: Buffer, identity: Identity | None) -> bool:
        text = body if self._header_length is None else body[: max(self._header_length, 0)]
        found = lost_request.in_json(text, self._model_name, self._model_version)
        return lose(self._core, found, identity)

    def _refuse(self, exchange: Exchange, error: NaiadError, body: Buffer) -> None:
        """`body` is uncompressed."""
        self._lose(body, exchange.identity)
        respond_error(exchange, error)

    def _allocate(self) -> Allocate:
        """Provides memory that is shared with the workers to the side thread."""
        return partial(
            self._side_thread.ask,
            asyncio.get_running_loop(),
            partial(self._core.input_buffer, self._model_name),
        )

    def _prepare(self, request: InferRequest, spec: ModelSpec, allocate: Allocate) -> None:
        """Runs in the side thread. Raises NaiadError."""
        check_strings(request, spec.name)
        if self._content_encoding != IDENTITY:
            move_larger(request.inputs, INLINE_COPY_BYTES, allocate)

    def _submit(self, exchange: Exchange, decoded: _Decoded, model: Model) -> None:
        request, formats, plan = decoded
        if exchange.is_disconnected:
            lose(self._core, [request], exchange.identity)
            return
        responder = InferResponder(
            exchange, formats, model.spec, self._response_encoding, plan, self._side_thread
        )
        try:
            submit(
                self._core,
                request,
                responder.on_response,
                exchange,
                model=model,
                on_accepted=lambda _stream: self._on_accepted(exchange, plan),
            )
        except NaiadError as error:
            respond_error(exchange, error)

    def _run_flat(self, exchange: Exchange, decoded: _Flat) -> None:
        if exchange.is_disconnected:
            return
        try:
            SingleGeneration(exchange, self._side_thread, identity=decoded.identity).run(
                self._core, decoded.request
            )
        except NaiadError as error:
            respond_error(exchange, error)

    def _hold_tensors(self, exchange: Exchange, num_body_bytes: int, request: InferRequest) -> None:
        """Counts the tensors of a large JSON body, which are copies, and drops the body, because
        nothing needs it any more. Raises NaiadError."""
        if self._header_length is None and num_body_bytes > SMALL_BYTES:
            exchange.hold(sum(len(tensor.data) for tensor in request.inputs))
            exchange.body = b""

    def _add_forwarded(self, request: InferRequest) -> None:
        """Raises NaiadError for a header that must not be forwarded."""
        if self._forward_error is not None:
            raise self._forward_error.copy()
        if self._forward:
            request.parameters = request.parameters | self._forward

    # Requests that take long to decode.

    def _text_bytes(self, body: Buffer) -> int:
        return len(body) if self._header_length is None else self._header_length

    def _decode_aside(self, exchange: Exchange, body: Buffer, model: Model) -> None:
        # Tensors are decoded straight into memory that is shared with the workers.
        self._side_thread.run(
            partial(self._decode_slowly, body, model.spec, self._allocate()),
            partial(self._submit_aside, exchange, len(body), model),
            partial(self._fail_aside, exchange, model.spec, body),
        )

    def _submit_aside(
        self, exchange: Exchange, num_body_bytes: int, model: Model, decoded: _Decoded | _Flat
    ) -> None:
        try:
            self._hold_tensors(exchange, num_body_bytes, decoded.request)
        except NaiadError as error:
            lose(self._core, [decoded.request], exchange.identity)
            respond_error(exchange, error)
        else:
            if isinstance(decoded, _Flat):
                self._run_flat(exchange, decoded)
            else:
                self._submit(exchange, decoded, model)

    def _decode_slowly(self, body: Buffer, spec: ModelSpec, allocate: Allocate) -> _Decoded | _Flat:
        """Runs in the side thread. Raises NaiadError."""
        if self._header_length is None and len(body) > INLINE_JSON_BYTES and may_be_flat(body):
            return self._decode_large_flat(body, spec, allocate)
        if self._text_bytes(body) <= INLINE_JSON_BYTES:
            decoded = json_codec.decode_request(
                body, self._header_length, self._model_name, self._model_version, self._max_bytes
            )
        else:
            decoded = json_codec.decode_large_request(
                body,
                self._header_length,
                self._model_name,
                self._model_version,
                self._max_bytes,
                self._max_json_bytes,
                allocate,
            )
        self._finish_aside(decoded.request, spec, allocate)
        return _Decoded(decoded.request, decoded.formats)

    def _decode_large_flat(self, body: Buffer, spec: ModelSpec, allocate: Allocate) -> _Flat:
        """Runs in the side thread. Raises NaiadError."""
        if len(body) > self._max_bytes:
            raise oversize_body(len(body), self._max_bytes)
        document, large = parse_large_flat(body, spec, self._max_json_bytes, allocate)
        decoded = self._flat_request(
            MissingInputsError(document), spec, FlatConversion(spec, self._max_bytes, large)
        )
        self._finish_aside(decoded.request, spec, allocate)
        return decoded

    def _finish_aside(self, request: InferRequest, spec: ModelSpec, allocate: Allocate) -> None:
        self._add_forwarded(request)
        check_strings(request, spec.name)
        for tensor in request.inputs:
            if isinstance(tensor.data, bytearray):
                move_data(tensor, allocate)

    # Forms and files.

    def _is_file_body(self, body: Buffer) -> bool:
        return self._is_file is True or not form.begins_as_object(body)

    def _infer_file(self, exchange: Exchange, body: Buffer, model: Model) -> None:
        if self._is_page:
            raise NaiadError(Code.PERMISSION_DENIED, "pages must send JSON")
        if len(body) > INLINE_PLAIN_BYTES:
            self._side_thread.run(
                partial(self._decode_file, body, model.spec, self._allocate()),
                partial(self._submit_aside, exchange, len(body), model),
                partial(self._fail_aside, exchange, model.spec, body),
            )
        else:
            self._run_flat(exchange, self._decode_file(body, model.spec, None))

    def _decode_file(self, body: Buffer, spec: ModelSpec, allocate: Allocate | None) -> _Flat:
        """Runs in the side thread, with `allocate`, unless the body is small. Raises NaiadError."""
        request = form.decode_request(
            body, self._content_type, spec, self._model_version, self._max_bytes
        )
        self._add_forwarded(request)
        if allocate is not None:
            move_larger(request.inputs, SMALL_BYTES, allocate)
        return _Flat(request)

    def _fail_aside(
        self, exchange: Exchange, spec: ModelSpec, body: Buffer, error: Exception
    ) -> None:
        if isinstance(error, MissingInputsError) and isinstance(error.document, dict):
            self._infer_flat(exchange, error, spec)
        else:
            fault = client_error(error, "a request could not be decoded")
            self._refuse(exchange, fault, body)

    def _on_accepted(self, exchange: Exchange, plan: HttpPlan | None) -> None:
        """Before the response is delivered: the client may send its next request at once."""
        if (
            plan is not None
            and plan.signature.accepted_by is not None
            and not self._core.tracing.is_on
        ):
            self._set_fast_path(exchange, plan)

    def _set_fast_path(self, exchange: Exchange, plan: HttpPlan) -> None:
        """The next request of the connection may repeat this one, which the model would have
        accepted with any data."""
        layout = self._layout
        if layout is None or layout.plan is not plan:
            if not self._may_repeat(exchange.head):
                return
            layout = self._layout = plan.layout(exchange.head, self._max_bytes)
        if layout is not None:
            exchange.set_fast_path(HttpFastPath(self._core, layout, self._responder))

    def _responder(self, exchange: Exchange, plan: HttpPlan, model: Model) -> InferResponder:
        return InferResponder(exchange, plan.formats, model.spec, IDENTITY, plan, self._side_thread)

    def _may_repeat(self, head: Head) -> bool:
        return (
            not self._forward
            # The head of a compressed request gives the lengths of the compressed bytes.
            and self._content_encoding == self._response_encoding == IDENTITY
            and may_repeat(head)
        )

    def _decode(self, body: Buffer, model: Model) -> _Decoded | None:
        """Returns None for a request that takes long to decode. Raises NaiadError."""
        if self._length_error is not None:
            raise self._length_error.copy()
        length = self._header_length
        if length == 0 or (length is None and not len(body)):
            return _Decoded(
                *raw_request.decode_request(body, model.spec, self._model_version, self._max_bytes)
            )
        if length is not None and not 0 < length <= len(body):
            raise invalid_arg(
                f"inference header size should be in range (0, {len(body)}), got: {length}"
            )
        plans = self._plans
        if self._text_bytes(body) > INLINE_JSON_BYTES:
            return None
        if plans is None:
            decoded = self._decode_fully(body)
            return None if decoded is None else _Decoded(decoded.request, decoded.formats)
        plan = self._plan
        if plan is not None and plan.model is model:
            planned = plan.decode(body, length)
            if planned is not None:
                return _Decoded(planned, plan.formats, plan)
        plan = self._plan = plans.find(model, self._model_version, body, length)
        if plan is not None:
            planned = plan.decode(body, length)
            if planned is not None:
                return _Decoded(planned, plan.formats, plan)
        decoded = self._decode_fully(body)
        if decoded is None:
            return None
        plan = self._plan = plans.learn(model, self._model_version, body, length, decoded)
        return _Decoded(decoded.request, decoded.formats, plan)

    def _decode_fully(self, body: Buffer) -> json_codec.DecodedRequest | None:
        is_small = self._text_bytes(body) <= INLINE_PLAIN_BYTES
        decode = json_codec.decode_request if is_small else json_codec.decode_typed
        return decode(
            body, self._header_length, self._model_name, self._model_version, self._max_bytes
        )

    # Flat bodies.

    def _infer_decoupled(self, exchange: Exchange, body: Buffer, spec: ModelSpec) -> None:
        is_json = self._header_length is None and self._length_error is None and len(body) > 0
        if not is_json:
            raise _no_decoupled()
        if len(body) <= INLINE_PLAIN_BYTES:
            self._infer_document(exchange, parse(body), spec)
            return
        self._side_thread.run(
            partial(self._decode_decoupled, body, spec, self._allocate()),
            partial(self._run_flat, exchange),
            partial(self._fail_aside, exchange, spec, body),
        )

    def _decode_decoupled(self, body: Buffer, spec: ModelSpec, allocate: Allocate) -> _Flat:
        """Runs in the side thread. Raises NaiadError."""
        if may_be_flat(body):
            return self._decode_large_flat(body, spec, allocate)
        document = parse_large(body, self._max_json_bytes)
        if not isinstance(document, dict) or "inputs" in document:
            raise _no_decoupled()
        raise MissingInputsError(document)

    def _infer_document(self, exchange: Exchange, document: object, spec: ModelSpec) -> None:
        if isinstance(document, dict) and "inputs" not in document:
            self._infer_flat(exchange, MissingInputsError(document), spec)
            return
        raise _no_decoupled()

    def _infer_flat(self, exchange: Exchange, error: MissingInputsError, spec: ModelSpec) -> None:
        try:
            decoded = self._flat_request(error, spec, FlatConversion(spec, self._max_bytes))
            self._add_forwarded(decoded.request)
        except NaiadError as fault:
            self._refuse(exchange, fault, exchange.body)
        else:
            self._run_flat(exchange, decoded)

    def _flat_request(
        self, error: MissingInputsError, spec: ModelSpec, conversion: FlatConversion
    ) -> _Flat:
        """Raises NaiadError."""
        document = error.document
        if not isinstance(document, dict):
            raise error
        if not any(key in spec.inputs for key in document):
            raise _no_input(error, document, spec)
        identity: dict[str, object] | None = None
        request_id = None if "request_id" in spec.inputs else document.pop("request_id", None)
        if isinstance(request_id, (str, int)) and "id" not in document:
            document["id"] = str(request_id)
            identity = {"request_id": request_id}
        return _Flat(conversion.request(document, self._model_version), identity)

    # Compressed bodies.

    def _decompress(self, exchange: Exchange) -> None:
        encoding, body = self._content_encoding, exchange.body
        try:
            self._core.model(self._model_name, self._model_version)
        except NaiadError as error:
            respond_error(exchange, error)  # nothing is unpacked for a model that is not there
            return
        if encoding not in SUPPORTED:
            self.on_lost(body, exchange.identity)
            respond_error(
                exchange,
                unsupported("Unsupported compression type"),
                b"Accept-Encoding: gzip, deflate\r\n",
            )
            return
        account = exchange.account
        if account is None:
            return
        job = partial(account.produce, partial(decompress, body, encoding, self._max_bytes))
        if len(body) <= _MAX_INLINE_DECOMPRESS_BYTES:
            try:
                data = job()
            except NaiadError as error:
                self.on_lost(body, exchange.identity)
                respond_error(exchange, error)
            else:
                self._infer(exchange, _body(data))
        else:
            # Unpacking releases the GIL, so other requests are served meanwhile.
            future = asyncio.get_running_loop().run_in_executor(codec_threads(), job)
            future.add_done_callback(lambda done: self._on_decompressed(exchange, body, done))

    def _on_decompressed(
        self, exchange: Exchange, body: Buffer, future: asyncio.Future[memoryview]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None or exchange.is_disconnected:
            self.on_lost(body, exchange.identity)
        if exchange.is_disconnected:
            return
        if error is None:
            self._infer(exchange, _body(future.result()))
        else:
            respond_error(
                exchange,
                error
                if isinstance(error, NaiadError)
                else internal("failed to decompress the request body"),
            )


def _body(data: memoryview) -> Buffer:
    """A decompressed body as the transport would have received it: small ones are bytes."""
    return bytes(data) if len(data) <= SMALL_BYTES else data


def _no_decoupled() -> NaiadError:
    return unsupported("HTTP end point doesn't support models with decoupled transaction policy")


def _no_input(
    error: MissingInputsError, document: dict[str, object], spec: ModelSpec
) -> NaiadError:
    names = ", ".join(f"'{name}'" for name in spec.inputs)
    hint = (
        "; did you mean 'text_input' instead of 'prompt'?"
        if "prompt" in document and "text_input" in spec.inputs
        else ""
    )
    return invalid_arg(
        f"{error.message}. The body has neither 'inputs' nor an input of model '{spec.name}': "
        f"{names}{hint}"
    )


def _header_length(head: Head) -> int | None:
    """Raises NaiadError."""
    text = head.headers.get(_LENGTH_KEY)
    if text is None:
        return None
    if _INTEGER.fullmatch(text) is None:
        raise invalid_arg(f"Unable to parse {_LENGTH_HEADER}, got: {text.decode('latin-1')}")
    value = int(text)
    if not _INT32_MIN <= value <= _INT32_MAX:
        raise invalid_arg(
            f"Unable to parse {_LENGTH_HEADER}, value is out of range "
            f"[ {_INT32_MIN}, {_INT32_MAX} ], got: {value}"
        )
    return value
