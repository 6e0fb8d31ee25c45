"""POST /v2/models/M/infer: a body in Triton's inference protocol -> the core -> one answer.

An InferRoute is built once per distinct request head and holds all that the head says; `handle` is
the hot path. Beyond Triton: a flat JSON object that names an input of the model is answered as by
/generate.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue, RequestForm
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, internal, invalid_arg, unsupported
from naiad.frontends.core import Inference
from naiad.frontends.http.generate import SingleGeneration
from naiad.frontends.http.infer_response import InferAnswer
from naiad.frontends.http.repeated import (
    RepeatedForm,
    RepeatedInfer,
    is_small_and_here,
    may_be_repeated,
)
from naiad.frontends.http.repeated_json import RepeatedJsonForm, length_in
from naiad.frontends.http.response import respond_error
from naiad.frontends.submit import submit
from naiad.protocol.compression import IDENTITY, SUPPORTED, choose_encoding, decompress
from naiad.protocol.v2 import generate, json_codec, raw_request
from naiad.protocol.v2.json_checked import MissingInputsError
from naiad.protocol.v2.json_form import JsonForm
from naiad.protocol.v2.json_template import Template, recall, without_id
from naiad.protocol.v2.output_format import OutputForms
from naiad.protocol.v2.triton_json import parse
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head

if TYPE_CHECKING:
    from naiad.repository.model import Model

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_MAX_INLINE_DECOMPRESS_BYTES = 4 * 1024
_LENGTH_HEADER = "Inference-Header-Content-Length"
_INTEGER = re.compile(rb"[+-]?[0-9]{1,20}")
_ALIGNMENT = 64


class InferRoute:
    __slots__ = (
        "_content_encoding",
        "_core",
        "_forward",
        "_head_error",
        "_header_length",
        "_json",
        "_max_bytes",
        "_model_name",
        "_model_version",
        "_repeated",
        "_response_encoding",
        "_template",
    )

    def __init__(
        self,
        core: Inference,
        head: Head,
        model_name: str,
        model_version: str,
        max_bytes: int,
        forward: Callable[[Head], dict[str, ParameterValue]] | None,
    ) -> None:
        self._core = core
        self._model_name = model_name
        self._model_version = model_version
        self._max_bytes = max_bytes
        self._header_length: int | None = None
        self._template: Template | None = None
        """Of the last request with this head: clients repeat themselves."""
        self._json: JsonForm | None = None
        """The same, where all of it was JSON."""
        self._repeated: RepeatedForm | RepeatedJsonForm | None = None
        self._forward: dict[str, ParameterValue] | None = None
        self._head_error: NaiadError | None = None
        self._content_encoding = head.headers.get(b"content-encoding", b"identity").decode(
            "latin-1"
        )
        self._response_encoding = choose_encoding(head.headers.get(b"accept-encoding", b""))
        try:
            self._header_length = _header_length(head)
            self._forward = None if forward is None else forward(head)
        except NaiadError as error:
            self._head_error = error

    def handle(self, exchange: Exchange) -> None:
        if self._content_encoding != IDENTITY:
            self._decompress(exchange)
        else:
            self._infer(exchange, exchange.body)

    def oversize_message(self, num_bytes: int | None, max_bytes: int) -> str:
        if num_bytes is not None and self._header_length == 0:
            return raw_request.oversize_message(num_bytes, max_bytes)
        if num_bytes is not None and self._header_length is None:
            return json_codec.oversize_message(num_bytes, max_bytes)
        size = "" if num_bytes is None else f" of {num_bytes} bytes"
        return (
            f"request size{size} exceeds the maximum allowed input size of {max_bytes} bytes. "
            "Use --http-max-input-size to increase the limit."
        )

    def body_buffer(self, num_bytes: int) -> memoryview | None:
        """Memory shared with the workers: binary tensors of the body need no further copy. The
        first of them is aligned there."""
        if self._header_length is None or self._content_encoding != IDENTITY:
            return None
        skipped = -self._header_length % _ALIGNMENT
        memory = self._core.input_buffer(self._model_name, num_bytes + skipped)
        return None if memory is None else memory[skipped:]

    def _infer(self, exchange: Exchange, body: Buffer) -> None:
        try:
            if self._head_error is not None:
                raise self._head_error
            model = self._core.model(self._model_name, self._model_version)
            spec = model.spec
            if spec.is_decoupled:
                self._infer_decoupled(exchange, body, spec)
                return
            request, forms = self._decode(body, spec)
            if self._forward:
                request.parameters = request.parameters | self._forward
            submit(
                self._core,
                request,
                InferAnswer(exchange, forms, spec, self._response_encoding).take,
                exchange,
                model=model,
                on_accepted=lambda _stream: self._expect_again(exchange, request, model),
            )
        except MissingInputsError as error:
            self._infer_flat(exchange, error, spec)
            return
        except NaiadError as error:
            respond_error(exchange, error)

    def _expect_again(self, exchange: Exchange, request: InferRequest, model: Model) -> None:
        form, repeated = request.form, self._repeated
        # lengths in the head are of the header and the tensors themselves
        if form is None or self._forward or self._content_encoding != IDENTITY:
            return
        if self._core.tracing.is_on:
            return
        if repeated is None or repeated.form is not form or repeated.model is not model:
            if not may_be_repeated(exchange.head, form, self._response_encoding):
                return
            repeated = self._repeated = self._what_repeats(exchange.head, form, model)
        if repeated is not None:
            exchange.expect_again(RepeatedInfer(repeated))

    def _what_repeats(
        self, head: Head, form: RequestForm, model: Model
    ) -> RepeatedForm | RepeatedJsonForm | None:
        asked = self._model_name, self._model_version
        if isinstance(form, JsonForm):
            length = length_in(head)
            return (
                None
                if length is None
                else RepeatedJsonForm(self._core, head, model, asked, form, length, self._max_bytes)
            )
        template = self._template
        if (
            template is None
            or form is not template.form
            or self._header_length is None
            or not is_small_and_here(template)
        ):
            return None
        return RepeatedForm(self._core, head, model, asked, template, self._header_length)

    def _decode(self, body: Buffer, spec: ModelSpec) -> tuple[InferRequest, OutputForms]:
        template = self._template
        length = self._header_length
        if template is not None and length is not None and body.__class__ is bytes:
            request = template.fill_body(body, length, self._model_name, self._model_version)
            if request is not None:
                return request, template.forms
        if length is None:
            if len(body):
                return self._decode_json(body)
        elif length:
            if not 0 < length <= len(body):
                raise invalid_arg(
                    f"inference header size should be in range (0, {len(body)}), got: {length}"
                )
            request, forms = json_codec.decode_request(
                body, length, self._model_name, self._model_version, self._max_bytes
            )
            if request.form is not None:
                self._template = recall(
                    self._model_name, without_id(bytes(memoryview(body)[:length]))[0]
                )
            return request, forms
        return raw_request.decode_request(body, spec, self._model_version, self._max_bytes)

    def _decode_json(self, body: Buffer) -> tuple[InferRequest, OutputForms]:
        if self._json is not None and body.__class__ is bytes:
            request = self._json.fill_body(body, self._model_name, self._model_version)
            if request is not None:
                return request, self._json.forms
        request, forms = json_codec.decode_request(
            body, None, self._model_name, self._model_version, self._max_bytes
        )
        if isinstance(request.form, JsonForm):
            self._json = request.form
        return request, forms

    # A flat body.

    def _infer_decoupled(self, exchange: Exchange, body: Buffer, spec: ModelSpec) -> None:
        document = parse(body) if self._header_length is None and len(body) else None
        if (
            isinstance(document, dict)
            and "inputs" not in document
            and _names_an_input(document, spec)
        ):
            self._infer_flat(exchange, MissingInputsError(document), spec)
            return
        raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")

    def _infer_flat(self, exchange: Exchange, error: MissingInputsError, spec: ModelSpec) -> None:
        document = error.document
        if not isinstance(document, dict) or not _names_an_input(document, spec):
            respond_error(exchange, error)
            return
        try:
            request_id = None if "request_id" in spec.inputs else document.pop("request_id", None)
            if isinstance(request_id, (str, int)):
                document.setdefault("id", str(request_id))
            request = generate.request_from_document(
                document, spec, self._model_version, self._max_bytes
            )
            if self._forward:
                request.parameters.update(self._forward)
            SingleGeneration(exchange).run(self._core, request)
        except NaiadError as fault:
            respond_error(exchange, fault)

    # Compressed bodies.

    def _decompress(self, exchange: Exchange) -> None:
        encoding, body = self._content_encoding, exchange.body
        if encoding not in SUPPORTED:
            respond_error(
                exchange,
                unsupported("Unsupported compression type"),
                b"Accept-Encoding: gzip, deflate\r\n",
            )
        elif len(body) <= _MAX_INLINE_DECOMPRESS_BYTES:
            try:
                data = decompress(body, encoding, self._max_bytes)
            except NaiadError as error:
                respond_error(exchange, error)
            else:
                self._infer(exchange, data)
        else:
            # Unpacking releases the GIL: other requests go on meanwhile.
            future = asyncio.get_running_loop().run_in_executor(
                None, decompress, body, encoding, self._max_bytes
            )
            future.add_done_callback(lambda done: self._on_decompressed(exchange, done))

    def _on_decompressed(self, exchange: Exchange, future: asyncio.Future[bytes]) -> None:
        if future.cancelled() or exchange.is_disconnected:
            return
        error = future.exception()
        if error is None:
            self._infer(exchange, future.result())
        else:
            respond_error(
                exchange,
                error
                if isinstance(error, NaiadError)
                else internal("failed to decompress the request body"),
            )


def _names_an_input(document: dict[str, object], spec: ModelSpec) -> bool:
    return any(key in spec.inputs for key in document)


def _header_length(head: Head) -> int | None:
    """Raises NaiadError."""
    text = head.headers.get(_LENGTH_HEADER.lower().encode())
    if text is None:
        return None
    if _INTEGER.fullmatch(text) is None:
        raise invalid_arg(f"Unable to parse {_LENGTH_HEADER}, got: {text.decode('latin-1')}")
    value = int(text)
    if not _INT32_MIN <= value <= _INT32_MAX:
        raise invalid_arg(
            f"Unable to parse {_LENGTH_HEADER}, value is out of range [ {_INT32_MIN}, {_INT32_MAX} ], got: {value}"
        )
    return value
