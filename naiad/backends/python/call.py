"""Business logic scripting (BLS): a model calls another model.

It waits for the response, awaits it, or iterates over several. An error of the other model is a
response with an error; it is not raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator

from naiad.backends.backend import Call
from naiad.backends.python.error import ErrorCode, TritonError, TritonModelException
from naiad.backends.python.instance import current, from_finalizer
from naiad.backends.python.response import InferenceResponse, decode_response
from naiad.errors import NaiadError
from naiad.ipc.work import CallRequest, WorkRequest, WorkResponse


class ResponseIterator:
    """Iterates over the responses of a decoupled call as they arrive.

    The last response may have no outputs; it stands for the final flag. As in Triton, a second
    iteration starts from the beginning, so the iterator keeps all responses. An iterator that is
    dropped early cancels the call.
    """

    __slots__ = ("_call", "_is_over", "_position", "_responses")

    def __init__(self, call: Call | None, responses: list[InferenceResponse] | None = None) -> None:
        self._call = call
        self._responses = responses or []
        self._position = 0
        self._is_over = call is None

    def __iter__(self) -> Iterator[InferenceResponse]:
        self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._position == len(self._responses):
            if self._is_over or self._call is None:
                raise StopIteration("Iteration is done for the responses.")
            self._add(*self._call.next())
        return self._step()

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        self._position = 0
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._position == len(self._responses):
            if self._is_over or self._call is None:
                raise StopAsyncIteration("Iteration is done for the responses.")
            self._add(*await self._call.anext())
        return self._step()

    def cancel(self) -> None:
        if self._call is not None and not self._is_over:
            self._call.cancel()

    def _add(self, response: WorkResponse | None, is_final: bool) -> None:
        self._is_over = is_final
        self._responses.append(
            InferenceResponse() if response is None else decode_response(response)
        )

    def _step(self) -> InferenceResponse:
        self._position += 1
        return self._responses[self._position - 1]

    def __del__(self) -> None:
        if not self._is_over and self._call is not None:
            from_finalizer(self._call.cancel)


def execute_call(
    model_name: str, model_version: int, request: WorkRequest, is_decoupled: bool
) -> InferenceResponse | ResponseIterator:
    """Waits for the response. If the call is decoupled, waits for the first of its responses and
    returns an iterator."""
    try:
        call = _start(model_name, model_version, request, is_decoupled, not is_decoupled)
        response, is_final = call.next()
        if is_decoupled:
            return _begun(call, response, is_final)
        while not is_final:
            later, is_final = call.next()
            response = response or later
    except NaiadError as error:
        return _failed(error, is_decoupled)
    return _single(response)


def await_call(
    model_name: str, model_version: int, request: WorkRequest, is_decoupled: bool
) -> Awaitable[InferenceResponse | ResponseIterator]:
    """Starts the call now and returns a task of the running loop.

    Cancelling the task cancels the call.
    """
    loop = asyncio.get_running_loop()
    try:
        call = _start(model_name, model_version, request, is_decoupled, False)
    except NaiadError as error:
        done: asyncio.Future[InferenceResponse | ResponseIterator] = loop.create_future()
        done.set_result(_failed(error, is_decoupled))
        return done
    return loop.create_task(_await(call, is_decoupled))


async def _await(call: Call, is_decoupled: bool) -> InferenceResponse | ResponseIterator:
    try:
        response, is_final = await call.anext()
        if is_decoupled:
            return _begun(call, response, is_final)
        while not is_final:
            later, is_final = await call.anext()
            response = response or later
    except NaiadError as error:
        return _failed(error, is_decoupled)
    except asyncio.CancelledError:
        call.cancel()
        raise
    return _single(response)


def _begun(call: Call, response: WorkResponse | None, is_final: bool) -> ResponseIterator:
    iterator = ResponseIterator(call)
    iterator._add(response, is_final)
    return iterator


def _start(
    model_name: str,
    model_version: int,
    request: WorkRequest,
    is_decoupled: bool,
    is_waited_for: bool,
) -> Call:
    instance = current()
    if not instance.is_serving:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    is_repeatable = is_waited_for and instance.is_executing()
    return instance.runtime.call(
        CallRequest(
            model_name, model_version, request, is_decoupled, instance.callers(), is_repeatable
        )
    )


def _single(response: WorkResponse | None) -> InferenceResponse:
    if response is None:
        return InferenceResponse(
            error=TritonError("the model ended the request without a response")
        )
    return decode_response(response)


def _failed(error: NaiadError, is_decoupled: bool) -> InferenceResponse | ResponseIterator:
    code = ErrorCode.__members__.get(error.code.name, ErrorCode.INTERNAL)
    response = InferenceResponse(error=TritonError(error.message, code))
    return ResponseIterator(None, [response]) if is_decoupled else response
