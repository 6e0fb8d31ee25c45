"""The one answer of an inference request over HTTP: a response of the core -> JSON and binary data,
compressed where the client wants it.

In:  responses, from the request's stream. Out: the exchange is answered, once. An answer that
     repeats the last one of its form but for the data is put together from bytes that have been
     rendered before.
"""

from __future__ import annotations

import asyncio

from naiad.core.model_spec import ModelSpec
from naiad.core.response import InferResponse
from naiad.errors import NaiadError, internal
from naiad.frontends.http.response import respond_error
from naiad.protocol.compression import IDENTITY, compress
from naiad.protocol.v2 import json_codec
from naiad.protocol.v2.output_format import AnswerHead, OutputForms
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import render_head

_MAX_INLINE_COMPRESS_BYTES = 64 * 1024
_MAX_AGAIN_BYTES = 64 * 1024
"""Larger answers are written without a copy."""


class InferAnswer:
    """Waits for the one response of a request."""

    __slots__ = ("_encoding", "_exchange", "_forms", "_response", "_spec")

    def __init__(
        self, exchange: Exchange, forms: OutputForms, spec: ModelSpec, encoding: str
    ) -> None:
        self._exchange = exchange
        self._forms = forms
        self._spec = spec
        self._encoding = encoding
        self._response: InferResponse | None = None

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        if response is None:
            response = self._response
        if not is_final:
            self._response = response
            return
        if response is not None and response.error is None:
            last = self._forms.answers.get(len(response.id))
            if last is not None and self._answer_again(response, last):
                return
        if response is None:
            respond_error(
                self._exchange, internal("the model ended the request without a response")
            )
            return
        if response.error is not None:
            # Not raised: an error that was raised holds the frames it passed, and with them the
            # request's memory until the garbage collector runs.
            respond_error(self._exchange, response.error)
            return
        try:
            encoded = json_codec.encode_response(response, self._forms, self._spec)
        except NaiadError as error:
            respond_error(self._exchange, error)
            return
        if self._encoding == IDENTITY:
            self._exchange.respond_parts(200, encoded.headers, encoded.parts, encoded.size)
        else:
            self._compress(encoded)

    def _answer_again(self, response: InferResponse, last: AnswerHead) -> bool:
        if (
            self._encoding != IDENTITY
            or last.size > _MAX_AGAIN_BYTES
            or not json_codec.is_repeated(response, last)
        ):
            return False
        if not last.start:
            last.start = render_head(200, last.headers, last.size) + (
                b'{"id":"' if last.id_bytes else last.text
            )
        data = [tensor.data for tensor in response.outputs]
        if last.id_bytes:
            data = [response.id.encode(), last.text, *data]
        return self._exchange.respond_again(last.start, data)

    def _compress(self, encoded: json_codec.EncodedResponse) -> None:
        headers = b"%bContent-Encoding: %b\r\n" % (encoded.headers, self._encoding.encode())
        if encoded.size <= _MAX_INLINE_COMPRESS_BYTES:
            self._exchange.respond(200, headers, compress(encoded.parts, self._encoding))
            return
        future = asyncio.get_running_loop().run_in_executor(
            None, compress, encoded.parts, self._encoding
        )
        future.add_done_callback(lambda done: self._on_compressed(headers, done))

    def _on_compressed(self, headers: bytes, future: asyncio.Future[bytes]) -> None:
        if future.cancelled():
            return
        if future.exception() is None:
            self._exchange.respond(200, headers, future.result())
        else:
            respond_error(self._exchange, internal("failed to compress the response"))
