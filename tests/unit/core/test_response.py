from __future__ import annotations

import asyncio

import pytest

from naiad.core.response import InferResponse, ResponseStream
from naiad.errors import Code, NaiadError, internal


def response(id: str = "") -> InferResponse:
    return InferResponse("m", "1", id, [])


def collect(stream: ResponseStream) -> list[tuple[InferResponse | None, bool]]:
    events: list[tuple[InferResponse | None, bool]] = []
    stream.deliver_to(lambda *event: events.append(event))
    return events


def test_keeps_events_in_order_until_there_is_a_consumer() -> None:
    stream = ResponseStream()
    first, second = response("1"), response("2")
    stream.put(first, False)
    stream.put(second, False)
    events = collect(stream)
    stream.close()
    assert events == [(first, False), (second, False), (None, True)]


def test_delivers_nothing_after_the_final_event() -> None:
    stream = ResponseStream()
    events = collect(stream)
    stream.put(response(), True)
    stream.put(response(), True)
    stream.fail(internal("late"))
    assert len(events) == 1


def test_cancel_reaches_the_last_owner_once() -> None:
    stream = ResponseStream()
    calls: list[tuple[str, int]] = []
    stream.on_cancel(lambda who: calls.append((who, 0)), "queue")
    stream.on_cancel(lambda who, number: calls.append((who, number)), "instance", 7)
    stream.cancel()
    stream.cancel()
    assert calls == [("instance", 7)]


def test_an_owner_registered_after_the_cancellation_is_cancelled_at_once() -> None:
    stream = ResponseStream()
    stream.cancel()
    calls: list[int] = []
    stream.on_cancel(calls.append, 1)
    assert calls == [1]


def test_cancelling_a_closed_stream_does_nothing() -> None:
    stream = ResponseStream()
    calls: list[int] = []
    stream.on_cancel(calls.append, 1)
    stream.close()
    stream.cancel()
    assert calls == []
    assert not stream.is_cancelled


def test_flow_reaches_a_producer_that_registers_late() -> None:
    stream = ResponseStream()
    stream.pause()
    seen: list[bool] = []
    stream.on_flow(seen.append)
    stream.pause()
    stream.pause(False)
    assert seen == [True, False]


async def test_single_returns_the_one_response() -> None:
    stream = ResponseStream()
    only = response()
    stream.put(only, False)
    stream.close()
    assert await stream.single() is only


async def test_single_raises_the_error_of_the_response() -> None:
    stream = ResponseStream()
    stream.fail(NaiadError(Code.UNAVAILABLE, "busy"))
    with pytest.raises(NaiadError, match="busy"):
        await stream.single()


async def test_single_raises_if_there_was_no_response() -> None:
    stream = ResponseStream()
    stream.close()
    with pytest.raises(NaiadError, match="without a response"):
        await stream.single()


async def test_a_cancelled_task_cancels_the_work() -> None:
    stream = ResponseStream()
    waiting = asyncio.create_task(stream.single())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert stream.is_cancelled


async def test_leaving_the_iteration_cancels_the_work() -> None:
    stream = ResponseStream()
    stream.put(response("1"), False)
    iterator = aiter(stream)
    assert (await anext(iterator)).id == "1"
    await iterator.aclose()  # type: ignore[attr-defined]
    assert stream.is_cancelled
