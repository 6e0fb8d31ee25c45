"""The single response to an inference request over HTTP: InferResponse -> JSON and binary data,
compressed when the client asks for it.

In:  responses from the request's stream. Out: one HTTP response on the exchange. A plan, where the
     request has one, encodes responses that repeat an earlier one and learns from the others.
"""

from __future__ import annotations

import asyncio
from functools import partial

from naiad.core.model_spec import ModelSpec
from naiad.core.response import InferResponse
from naiad.errors import NaiadError, internal
from naiad.fastpath.http_plan import HttpPlan
from naiad.frontends.http.response import respond_error
from naiad.frontends.side_thread import INLINE_VALUE_BYTES, SideThread, client_error
from naiad.machine.codec_threads import codec_threads
from naiad.protocol.compression import IDENTITY, compress
from naiad.protocol.v2 import json_codec
from naiad.protocol.v2.output_format import OutputFormats
from naiad.transport.http1.exchange import Exchange

_MAX_INLINE_COMPRESS_BYTES = 64 * 1024


class InferResponder:
    """Waits for the single response to a request and sends it."""

    __slots__ = (
        "_encoding",
        "_exchange",
        "_formats",
        "_plan",
        "_response",
        "_side_thread",
        "_spec",
    )

    def __init__(
        self,
        exchange: Exchange,
        formats: OutputFormats,
        spec: ModelSpec,
        encoding: str,
        plan: HttpPlan | None,
        side_thread: SideThread,
    ) -> None:
        self._side_thread = side_thread
        self._exchange = exchange
        self._formats = formats
        self._spec = spec
        self._encoding = encoding
        self._plan = plan if encoding == IDENTITY else None
        self._response: InferResponse | None = None

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        if response is None:
            response = self._response
        if not is_final:
            self._response = response
            return
        plan = self._plan
        if response is not None and plan is not None:
            parts = plan.encode(response)
            if parts is not None and self._exchange.respond_rendered(parts):
                return
        if response is None:
            self.fail(internal("the model ended the request without a response"))
            return
        if response.error is not None:
            # Not raised: an error that was raised holds the frames it passed, and with them the
            # request's memory until the garbage collector runs.
            self.fail(response.error)
            return
        if json_codec.is_large_response(response, self._formats, INLINE_VALUE_BYTES):
            self._side_thread.run(
                partial(json_codec.encode_large_response, response, self._formats, self._spec),
                self._send,
                self._on_error,
            )
            return
        try:
            encoded = json_codec.encode_response(response, self._formats, self._spec)
        except Exception as error:  # a worker may send data that is not of its shape
            self._on_error(error)
            return
        if plan is not None:
            plan.learn(response, encoded)
        self._send(encoded)

    def _send(self, encoded: json_codec.EncodedResponse) -> None:
        if self._encoding == IDENTITY:
            self._exchange.respond_parts(200, encoded.headers, encoded.parts, encoded.size)
        else:
            self._compress(encoded)

    def fail(self, error: NaiadError) -> None:
        respond_error(self._exchange, error)

    def _on_error(self, error: Exception) -> None:
        self.fail(client_error(error, "a response could not be encoded"))

    def _compress(self, encoded: json_codec.EncodedResponse) -> None:
        headers = b"%bContent-Encoding: %b\r\n" % (encoded.headers, self._encoding.encode())
        if encoded.size <= _MAX_INLINE_COMPRESS_BYTES:
            self._exchange.respond(200, headers, compress(encoded.parts, self._encoding))
            return
        future = asyncio.get_running_loop().run_in_executor(
            codec_threads(), compress, encoded.parts, self._encoding
        )
        future.add_done_callback(lambda done: self._on_compressed(headers, done))

    def _on_compressed(self, headers: bytes, future: asyncio.Future[bytes]) -> None:
        if future.cancelled():
            return
        if future.exception() is None:
            self._exchange.respond(200, headers, future.result())
        else:
            self.fail(internal("failed to compress the response"))
