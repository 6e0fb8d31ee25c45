"""BLS: blocking, awaited and decoupled calls, their errors, and the callers they report."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest

from naiad.backends.python.call import ResponseIterator
from naiad.backends.python.error import TritonError, TritonModelException
from naiad.backends.python.instance import Instance
from naiad.backends.python.request import InferenceRequest
from naiad.backends.python.response import InferenceResponse
from naiad.backends.python.tensor import Tensor
from naiad.errors import not_found
from naiad.ipc.work import (
    CallRequest,
    WorkError,
    WorkResponse,
    WorkTensor,
)
from tests.unit.backends.fake_runtime import WAIT_S, Events, FakeCall, FakeRuntime
from tests.unit.backends.models import request as work_request


def call(**options: object) -> InferenceRequest:
    inputs = [Tensor("X", np.ones(2, np.float32))]
    return InferenceRequest(
        model_name="other",
        inputs=inputs,
        requested_output_names=["Y"],
        **options,  # type: ignore[arg-type]
    )


def output(value: int) -> WorkResponse:
    return WorkResponse([WorkTensor("Y", "INT32", [1], bytearray(np.int32(value).tobytes()))])


def values(response: InferenceResponse) -> list[int]:
    return [int(tensor.as_numpy()[0]) for tensor in response.output_tensors()]


def stream(*last: tuple[WorkResponse | None, bool]) -> Events:
    return [(output(1), False), (output(2), False), *last]


def test_exec(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: [(output(5), True)]
    options = {
        "request_id": "r",
        "correlation_id": 7,
        "flags": 3,
        "timeout": 9,
        "parameters": {"a": 1},
        "model_version": 2,
    }
    response = call(**options).exec()
    assert (values(response), response.has_error()) == ([5], False)
    (made,) = runtime.called
    assert (made.model_name, made.model_version, made.is_decoupled, made.callers) == (
        "other",
        2,
        False,
        [],
    )
    work = made.request
    assert (work.id, work.correlation_id, work.flags, work.timeout_us, work.parameters) == (
        "r",
        7,
        3,
        9,
        {"a": 1},
    )
    assert work.requested_outputs == ["Y"]
    assert work.inputs == [WorkTensor("X", "FP32", [2], np.ones(2, np.float32).tobytes())]


def test_a_request_can_be_executed_again(instance: Instance, runtime: FakeRuntime) -> None:
    request = call()
    request.exec()
    request.exec()
    assert len(runtime.called) == 2
    assert runtime.called[0].request is not runtime.called[1].request


def test_separate_final_event(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: [(output(5), False), (None, True)]
    assert values(call().exec()) == [5]
    assert runtime.calls[0].events == []


def test_errors_are_returned(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: [
        (WorkResponse(error=WorkError("NOT_FOUND", "no model")), True)
    ]
    error = call().exec().error()
    assert (error.message(), error.code()) == ("no model", TritonError.NOT_FOUND)
    runtime.answer_call = lambda request: [(None, True)]
    assert call().exec().error().message() == "the model ended the request without a response"
    runtime.rejection = not_found("gone")
    assert (call().exec().error().message(), call().exec().error().code()) == (
        "gone",
        TritonError.NOT_FOUND,
    )
    assert [r.error().message() for r in call().exec(decoupled=True)] == ["gone"]


def test_rejects_calls_outside_of_execute(instance: Instance) -> None:
    instance.is_serving = False
    with pytest.raises(
        TritonModelException, match=r"^BLS is only supported during the 'execute' function\.$"
    ):
        call().exec()


async def test_async_exec(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: [(output(5), False), (None, True)]
    first, second = call().async_exec(), call().async_exec()
    assert len(runtime.called) == 2, "both are on their way before either is awaited"
    responses = await asyncio.gather(first, second)
    assert [values(response) for response in responses] == [[5], [5]]  # type: ignore[arg-type]
    runtime.rejection = not_found("gone")
    failed = await call().async_exec()
    assert isinstance(failed, InferenceResponse)
    error = failed.error()
    assert error is not None
    assert error.message() == "gone"


def test_async_exec_needs_a_loop(instance: Instance, runtime: FakeRuntime) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        call().async_exec()
    assert runtime.called == []


async def test_cancelling_the_awaiting_task_cancels_the_call(
    instance: Instance, runtime: FakeRuntime
) -> None:
    started = asyncio.Event()

    class Endless:
        cancelled = False

        async def anext(self) -> tuple[WorkResponse | None, bool]:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        def cancel(self) -> None:
            Endless.cancelled = True

    runtime.call = lambda request: Endless()  # type: ignore[method-assign, assignment, return-value]
    task = call().async_exec()
    await started.wait()
    assert isinstance(task, asyncio.Task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Endless.cancelled


def test_decoupled(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: stream((None, True))
    responses = call().exec(decoupled=True)
    assert runtime.called[0].is_decoupled
    assert [values(response) for response in responses] == [[1], [2], []], (
        "the final flag is a response without outputs"
    )
    assert [values(response) for response in responses] == [[1], [2], []], (
        "iterating again starts over"
    )
    with pytest.raises(StopIteration, match="Iteration is done for the responses"):
        next(responses)


def test_a_decoupled_call_completes_with_its_first_response(
    instance: Instance, runtime: FakeRuntime
) -> None:
    runtime.answer_call = lambda request: stream((None, True))
    responses = call().exec(decoupled=True)
    assert len(runtime.calls[0].events) == 2, "the first of three has been received"
    assert [values(response) for response in responses] == [[1], [2], []]
    runtime.answer_call = lambda request: [(None, True)]
    responses = call().exec(decoupled=True)
    assert runtime.calls[1].events == [], "the end counts as well"
    assert [values(response) for response in responses] == [[]]


async def test_an_awaited_decoupled_call_completes_with_its_first_response(
    instance: Instance, runtime: FakeRuntime
) -> None:
    arrived = asyncio.Event()

    class Slow(FakeCall):
        async def anext(self) -> tuple[WorkResponse | None, bool]:
            await arrived.wait()
            return await super().anext()

    runtime.call = lambda request: Slow(stream((None, True)))  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(call().async_exec(decoupled=True))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "the loop runs while the call waits"
    arrived.set()
    responses = await waiting
    assert isinstance(responses, ResponseIterator)
    assert [values(response) async for response in responses] == [[1], [2], []]


async def test_cancelling_an_awaited_decoupled_call_cancels_it(
    instance: Instance, runtime: FakeRuntime
) -> None:
    class Endless(FakeCall):
        async def anext(self) -> tuple[WorkResponse | None, bool]:
            await asyncio.Event().wait()
            raise AssertionError

    endless = Endless([])
    runtime.call = lambda request: endless  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(call().async_exec(decoupled=True))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert endless.is_cancelled


def test_decoupled_last_response_may_be_final(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: stream((output(3), True))
    assert [values(response) for response in call().exec(decoupled=True)] == [[1], [2], [3]]


async def test_decoupled_async(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: stream((None, True))
    responses = await call().async_exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    assert [values(response) async for response in responses] == [[1], [2], []]


def test_cancels_a_call(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: stream((None, True))
    responses = call().exec(decoupled=True)
    next(responses)
    responses.cancel()
    assert runtime.calls[0].is_cancelled
    list(responses)
    runtime.calls[0].is_cancelled = False
    responses.cancel()
    assert not runtime.calls[0].is_cancelled, "nothing is left to cancel"


def test_dropping_an_iterator_cancels_the_call(instance: Instance, runtime: FakeRuntime) -> None:
    runtime.answer_call = lambda request: stream((None, True))
    responses = call().exec(decoupled=True)
    next(responses)
    del responses
    gc.collect()
    assert runtime.calls[0].cancelled.wait(WAIT_S)


def test_dropping_a_finished_iterator_does_not_cancel(
    instance: Instance, runtime: FakeRuntime
) -> None:
    runtime.answer_call = lambda request: stream((None, True))
    responses = call().exec(decoupled=True)
    list(responses)
    del responses
    gc.collect()
    assert not runtime.calls[0].is_cancelled


def test_callers_are_the_batch_of_this_thread(instance: Instance, runtime: FakeRuntime) -> None:
    seen: list[CallRequest] = runtime.called
    instance.begin([work_request(4), work_request(5)])
    call().exec()
    thread = threading.Thread(target=lambda: call().exec())
    thread.start()
    thread.join()
    instance.end()
    call().exec()
    assert [made.callers for made in seen] == [[4, 5], [], []]
