"""A request of an ensemble is the same object in one model's queue after the other's."""

from __future__ import annotations

import pytest

from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.errors import NaiadError
from naiad.scheduling.queue import QueuePolicy, RequestQueue
from tests.fakes import FakeClock


@pytest.mark.parametrize("is_delay", [False, True])
@pytest.mark.parametrize("is_same", [False, True])
def test_a_timeout_ends_when_the_request_is_taken(is_delay: bool, is_same: bool) -> None:
    clock = FakeClock()
    removed: list[InferRequest] = []

    def note(request: InferRequest, error: NaiadError) -> None:
        removed.append(request)

    first = RequestQueue(clock, note, QueuePolicy(is_delay=is_delay, default_timeout_us=100))
    second = first if is_same else RequestQueue(clock, note, QueuePolicy(default_timeout_us=1000))
    request = InferRequest("m", [], stream=ResponseStream(), queue_start_ns=clock.now_ns())
    first.push(request)
    clock.advance(60_000)
    assert first.take(1) == [request]
    request.queue_start_ns = clock.now_ns()
    second.push(request)
    clock.advance(60_000)  # past the first time, not past the second
    assert removed == []
    assert len(second) == 1
    assert second.first() is request
    assert len(first) == (1 if is_same else 0)
    clock.advance(1_000_000)
    assert removed == ([] if is_same and is_delay else [request])
