"""Answers: a `ResponseStream` of length one is a plain answer, longer is decoupled, closed early is
         cancelled.

The producer (a scheduler or an instance) calls `put`, `close` or `fail`; the consumer (a frontend,
an ensemble, BLS) calls `deliver_to` or awaits `single()`, and may `cancel()`. Everything happens on
the event loop.
Invariant: the consumer sees exactly one event with is_final=True, and nothing after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import msgspec

from naiad.core.request import ParameterValue
from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, internal


class InferResponse(msgspec.Struct, eq=False):
    model_name: str
    model_version: str
    id: str
    outputs: list[Tensor]
    parameters: dict[str, ParameterValue] = {}
    error: NaiadError | None = None
    """When set, `outputs` is empty. A decoupled stream may go on after an error response."""
    times: BatchTimes | None = None
    """Times of the execution that made the response, if there was one. An ensemble adds up those
    of its steps."""


Consumer: TypeAlias = Callable[[InferResponse | None, bool], None]
"""Called with (response, is_final). The response is None only for a final flag that came without
one."""


class ResponseStream:
    __slots__ = (
        "_cancel_arguments",
        "_consumer",
        "_early",
        "_on_cancel",
        "_on_flow",
        "is_cancelled",
        "is_closed",
        "is_paused",
    )

    def __init__(self) -> None:
        self._consumer: Consumer | None = None
        self._early: list[tuple[InferResponse | None, bool]] | None = None
        self._on_cancel: Callable[..., None] | None = None
        self._cancel_arguments: tuple[Any, ...] = ()
        self._on_flow: Callable[[bool], None] | None = None
        self.is_closed = False
        self.is_cancelled = False
        self.is_paused = False

    # The producer's side.

    def put(self, response: InferResponse | None, is_final: bool) -> None:
        """Responses after the final one are dropped: a late answer to a cancelled request is
        normal."""
        if self.is_closed:
            return
        consumer = self._consumer
        if is_final:
            # As _forget_parties does; every response comes here.
            self.is_closed = True
            self._consumer = self._on_cancel = self._on_flow = None
            self._cancel_arguments = ()
        if consumer is not None:
            consumer(response, is_final)
        elif self._early is None:
            self._early = [(response, is_final)]
        else:
            self._early.append((response, is_final))

    def close(self) -> None:
        self.put(None, True)

    def close_unseen(self) -> None:
        """Closes the stream without telling its consumer, who gets the response by other means: an
        ensemble does, whose last step was executed in a batch (naiad.scheduling.ensemble.relay)."""
        self._forget_parties()

    def _forget_parties(self) -> None:
        """Both sides refer to the job and its stream. Without this the tensors of the request would
        wait for the garbage collector."""
        self.is_closed = True
        self._consumer = self._on_cancel = self._on_flow = None
        self._cancel_arguments = ()

    def fail(
        self, error: NaiadError, model_name: str = "", model_version: str = "", id: str = ""
    ) -> None:
        self.put(InferResponse(model_name, model_version, id, [], error=error), True)

    def on_cancel(self, callback: Callable[..., None], *arguments: Any) -> None:
        """The producer's current owner registers how to stop the work; a later owner replaces an
        earlier one."""
        if self.is_cancelled and not self.is_closed:
            callback(*arguments)
        else:
            self._on_cancel = callback
            self._cancel_arguments = arguments

    def on_flow(self, callback: Callable[[bool], None]) -> None:
        """The producer of many responses registers how to hold back (True) and go on (False)."""
        self._on_flow = callback
        if self.is_paused:
            callback(True)

    # The consumer's side.

    def pause(self, is_paused: bool = True) -> None:
        """The consumer cannot keep up (or can again). What is already on its way still comes."""
        if is_paused != self.is_paused and not self.is_closed:
            self.is_paused = is_paused
            if self._on_flow is not None:
                self._on_flow(is_paused)

    def deliver_to(self, consumer: Consumer) -> None:
        if not self.is_closed:
            self._consumer = consumer
        early = self._early
        if early is not None:
            self._early = None
            for response, is_final in early:
                consumer(response, is_final)

    def cancel(self) -> None:
        """The caller went away. The producer still ends the stream; nothing is delivered before it
        does."""
        if self.is_closed or self.is_cancelled:
            return
        self.is_cancelled = True
        callback, self._on_cancel = self._on_cancel, None
        arguments, self._cancel_arguments = self._cancel_arguments, ()
        if callback is not None:
            callback(*arguments)

    async def single(self) -> InferResponse:
        """The one response of a plain model. Raises its error; cancels the work when the awaiting
        task is cancelled."""
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        answer: list[InferResponse] = []

        def take(response: InferResponse | None, is_final: bool) -> None:
            if response is not None:
                answer.append(response)
            if not is_final or future.done():
                return
            if not answer:
                future.set_exception(internal("the model ended the request without a response"))
            elif answer[0].error is not None:
                future.set_exception(answer[0].error)
            else:
                future.set_result(answer[0])

        self.deliver_to(take)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def __aiter__(self) -> AsyncIterator[InferResponse]:
        """All responses in order, error responses included. Leaving the loop early cancels the
        work."""
        queue: asyncio.Queue[tuple[InferResponse | None, bool]] = asyncio.Queue()
        self.deliver_to(lambda response, is_final: queue.put_nowait((response, is_final)))
        try:
            while True:
                response, is_final = await queue.get()
                if response is not None:
                    yield response
                if is_final:
                    return
        finally:
            self.cancel()
