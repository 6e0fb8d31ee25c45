"""One request to POST /v1/embeddings: batches of texts -> one list of vectors.

The request fails when one of its batches fails.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.errors import NaiadError, internal
from naiad.frontends.core import Generation
from naiad.frontends.http.response import respond_json, respond_openai_error
from naiad.frontends.submit import submit
from naiad.protocol.openai.embedding import EmbeddingSpec, encode_response, read_count, read_rows
from naiad.protocol.openai.error import from_core
from naiad.transport.http1.exchange import Exchange


class EmbeddingRun:
    def __init__(
        self, core: Generation, exchange: Exchange, embedding: EmbeddingSpec, *, is_base64: bool
    ) -> None:
        self._core = core
        self._exchange = exchange
        self._embedding = embedding
        self._is_base64 = is_base64
        self._streams: list[ResponseStream] = []
        self._rows: list[np.ndarray[Any, Any] | None] = []
        self._num_tokens = 0
        self._model_name = ""

    def run(self, requests: list[InferRequest]) -> None:
        self._rows = [None] * len(requests)
        self._model_name = requests[0].model_name
        try:
            for index, request in enumerate(requests):
                num_texts = request.inputs[0].shape[0] if request.inputs[0].shape else 1
                submit(
                    self._core,
                    request,
                    partial(self._on_response, index, num_texts),
                    self._exchange,
                    on_accepted=self._streams.append,
                )
        except NaiadError as error:
            self._fail(error)
        else:
            self._exchange.on_disconnect(self._cancel)

    def _on_response(
        self, index: int, num_texts: int, response: InferResponse | None, is_final: bool
    ) -> None:
        if self._exchange.is_ended:
            return
        if response is not None and response.error is not None:
            self._fail(response.error)
            return
        try:
            if response is None:
                raise internal("the model ended the request without a response")
            found = next(
                (
                    tensor
                    for tensor in response.outputs
                    if tensor.name == self._embedding.output.name
                ),
                None,
            )
            if found is None:
                raise internal(
                    f"the model's response has no output '{self._embedding.output.name}'"
                )
            self._rows[index] = read_rows(found, num_texts)
            self._num_tokens += read_count(response.outputs, self._embedding)
        except NaiadError as error:
            self._fail(error)
            return
        if self._exchange.admission is not None:
            self._exchange.admission.settle(self._num_tokens, 0)
        rows = [part for part in self._rows if part is not None]
        if len(rows) == len(self._rows):
            respond_json(
                self._exchange,
                encode_response(
                    rows, self._num_tokens, self._model_name, is_base64=self._is_base64
                ),
            )

    def _fail(self, error: NaiadError) -> None:
        is_leaving = error.is_leaving or self._core.is_leaving(self._model_name)
        respond_openai_error(self._exchange, from_core(error, is_leaving=is_leaving))
        self._cancel()

    def _cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()
