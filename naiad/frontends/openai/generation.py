"""One OpenAI request: the calls of the model that it was made into -> one response, or a stream of
server-sent events.

The first event of a stream decides its status; an error after it is an event, and the stream ends.
The request fails when one of its calls fails; a client that goes away cancels every call.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, internal
from naiad.frontends.core import Generation
from naiad.frontends.http.response import EVENT_STREAM, respond_openai_error
from naiad.frontends.submit import submit
from naiad.ipc.generation_call import GenerationEvent, read_event
from naiad.protocol.openai.error import OpenAiError, from_core
from naiad.protocol.openai.response_writer import GenerationWriter, UsageCount
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE


class EventReader(Protocol):
    """Reads what a model responds to the calls of one request."""

    def read(self, index: int, outputs: list[Tensor]) -> GenerationEvent: ...

    def end(self, index: int) -> GenerationEvent | None:
        """What ends a call whose responses do not say that it is over."""
        ...


class LanguageEvents:
    """EventReader of a language model's backends."""

    def read(self, index: int, outputs: list[Tensor]) -> GenerationEvent:
        return read_event(outputs)

    def end(self, index: int) -> GenerationEvent | None:
        return None


class OpenAiGeneration:
    def __init__(
        self,
        core: Generation,
        exchange: Exchange,
        writer: GenerationWriter,
        params: frozenset[str],
        *,
        is_stream: bool,
        events: EventReader | None = None,
    ) -> None:
        self._core = core
        self._exchange = exchange
        self._writer = writer
        self._params = params
        self._is_stream = is_stream
        self._reader = events or LanguageEvents()
        self._streams: list[ResponseStream] = []
        self._num_open = 0
        self._model_name = ""
        self._usage = UsageCount()
        self._has_event = False
        self._is_over = False

    def run(self, requests: list[InferRequest]) -> None:
        self._num_open = len(requests)
        self._model_name = requests[0].model_name
        try:
            for index, request in enumerate(requests):
                if self._is_over:
                    return
                self._start(index, request)
        except NaiadError as error:
            self._fail(self._translated(error))
            return
        if not self._exchange.is_ended:
            self._exchange.on_disconnect(self._cancel)
            if self._is_stream:
                self._exchange.on_flow(self._pause)
                self._exchange.on_stop(lambda error: self._fail(from_core(error, is_leaving=True)))

    def _start(self, index: int, request: InferRequest) -> None:
        submit(
            self._core,
            request,
            partial(self._on_response, index),
            self._exchange,
            on_accepted=self._streams.append,
        )

    def _on_response(self, index: int, response: InferResponse | None, is_final: bool) -> None:
        if self._is_over:
            return
        if response is not None:
            if response.error is not None:
                self._fail(self._translated(response.error))
                return
            try:
                self._take(index, self._reader.read(index, response.outputs))
            except NaiadError as error:
                self._fail(self._translated(error))
                return
        if is_final:
            last = self._reader.end(index) if self._has_event else None
            if last is not None:
                self._take(index, last)
            self._num_open -= 1
            if not self._num_open:
                self._end()

    def _take(self, index: int, event: GenerationEvent) -> None:
        self._count_tokens(index, event)
        data = self._writer.write(index, event)
        self._has_event = True
        if data and self._is_stream:
            self._exchange.start_stream(200, EVENT_STREAM)  # does nothing after the first event
            self._exchange.send_chunk(data)

    def _count_tokens(self, index: int, event: GenerationEvent) -> None:
        """Settles what the request has reserved from its key's limits."""
        admission = self._exchange.admission
        if admission is not None:
            self._usage.add(index, event)
            total = self._usage.total()
            admission.settle(total.prompt_tokens, total.completion_tokens)

    def _end(self) -> None:
        if not self._has_event:
            self._fail(from_core(internal("the model ended the request without a response")))
            return
        self._is_over = True
        body = self._writer.end()
        if not self._is_stream:
            self._exchange.respond(200, JSON_TYPE, body)
            return
        self._exchange.start_stream(200, EVENT_STREAM)
        self._exchange.send_chunk(body)
        self._exchange.end_stream()

    def _fail(self, error: OpenAiError) -> None:
        self._cancel()
        if not self._exchange.is_started:
            respond_openai_error(self._exchange, error)
            return
        self._exchange.send_chunk(self._writer.fail(error))
        self._exchange.end_stream()

    def _translated(self, error: NaiadError) -> OpenAiError:
        """UNAVAILABLE means overload only while the server and the model accept requests."""
        is_leaving = error.is_leaving or self._core.is_leaving(self._model_name)
        return from_core(error, self._params, is_leaving=is_leaving)

    def _cancel(self) -> None:
        self._is_over = True
        for stream in self._streams:
            stream.cancel()

    def _pause(self, is_paused: bool) -> None:
        for stream in self._streams:
            stream.pause(is_paused)
