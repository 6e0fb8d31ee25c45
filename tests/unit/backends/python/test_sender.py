"""Response senders: every rule and its error message. A dropped sender still ends its request."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.backends.python.error import TritonError, TritonModelException
from naiad.backends.python.instance import Instance
from naiad.backends.python.request import received_request
from naiad.backends.python.response import InferenceResponse
from naiad.backends.python.sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL as FINAL
from naiad.backends.python.sender import InferenceResponseSender
from naiad.backends.python.tensor import Tensor
from naiad.ipc.work import WorkError
from tests.unit.backends.fake_runtime import FakeRuntime
from tests.unit.backends.models import request as work_request

CLOSED = r"^Unable to send response\. Response sender has been closed\.$"


def response(value: float = 1) -> InferenceResponse:
    return InferenceResponse(
        [Tensor("Y", np.full(1, value, np.float32)), Tensor("OTHER", np.zeros(1))]
    )


@pytest.fixture
def single(instance: Instance) -> Iterator[InferenceResponseSender]:
    sender = InferenceResponseSender(instance, 1, {"Y"})
    yield sender
    sender._close()


@pytest.fixture
def decoupled(instance: Instance) -> Iterator[InferenceResponseSender]:
    instance.is_decoupled = True
    sender = InferenceResponseSender(instance, 1, {"Y"})
    yield sender
    sender._close()


def sent(runtime: FakeRuntime) -> list[tuple[list[str] | None, bool]]:
    return [
        (None if response is None else [t.name for t in response.outputs], is_final)
        for response, is_final in runtime.responses[1]
    ]


def test_decoupled_stream(decoupled: InferenceResponseSender, runtime: FakeRuntime) -> None:
    decoupled.send(response())
    decoupled.send(InferenceResponse(error=TritonError("odd")))
    decoupled.send(response())
    decoupled.send(flags=FINAL)
    assert sent(runtime) == [(["Y"], False), ([], False), (["Y"], False), (None, True)]
    error = runtime.responses[1][1][0]
    assert error is not None
    assert error.error == WorkError("INTERNAL", "odd")
    for arguments in ((response(), 0), (response(), FINAL), (None, FINAL)):
        with pytest.raises(TritonModelException, match=CLOSED):
            decoupled.send(*arguments)


def test_decoupled_last_response_with_the_flag(
    decoupled: InferenceResponseSender, runtime: FakeRuntime
) -> None:
    decoupled.send(response(), FINAL)
    assert sent(runtime) == [(["Y"], True)]


def test_decoupled_without_any_response(
    decoupled: InferenceResponseSender, runtime: FakeRuntime
) -> None:
    decoupled.send(flags=FINAL)
    assert sent(runtime) == [(None, True)]


@pytest.mark.parametrize("ends_with_flag", [True, False])
def test_single_response_ends_the_request_at_once(
    single: InferenceResponseSender, runtime: FakeRuntime, ends_with_flag: bool
) -> None:
    if ends_with_flag:
        single.send(response(), FINAL)
    else:
        single.send(response())
        single.send(flags=FINAL)
    assert sent(runtime) == [(["Y"], True)]
    with pytest.raises(TritonModelException, match=CLOSED):
        single.send(flags=FINAL)
    expected = (
        r"^Unable to send response\. Non-decoupled model cannot send more than one response\.$"
    )
    with pytest.raises(TritonModelException, match=expected):
        single.send(response())


def test_rejects_invalid_sends(single: InferenceResponseSender, runtime: FakeRuntime) -> None:
    for arguments, message in (
        (
            (None, FINAL),
            "Unable to send response. Non-decoupled model cannot send complete final before "
            "sending a response.",
        ),
        (
            (None, 0),
            "Inference Response object must be provided when the response flags is set to zero.",
        ),
        ((response(), 2), "Unable to send response. Unsupported flag provided."),
    ):
        with pytest.raises(TritonModelException) as caught:
            single.send(*arguments)
        assert str(caught.value) == message
    with pytest.raises(TypeError, match=r"send\(\): incompatible function arguments"):
        single.send(5)  # type: ignore[arg-type]
    assert runtime.responses == {}


def test_an_output_that_cannot_be_encoded_leaves_the_sender_usable(
    single: InferenceResponseSender, runtime: FakeRuntime
) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(RuntimeError, match="no text"):
        single.send(InferenceResponse([Tensor("Y", np.array([Unprintable()], dtype=np.object_))]))
    single.send(response())
    assert sent(runtime) == [(["Y"], True)]


def test_dropping_a_sender_without_a_response_is_an_error(
    instance: Instance, runtime: FakeRuntime
) -> None:
    sender = InferenceResponseSender(instance, 1, {"Y"})
    del sender
    gc.collect()
    ((response, is_final),) = runtime.ended(1)
    assert is_final
    assert response is not None
    message = (
        "Failed to process the request(s) for model 'm_0', message: the request ended without a "
        "response"
    )
    assert response.error == WorkError("INTERNAL", message)
    assert "response sender of a request was dropped" in runtime.logged[0][1]


def test_dropping_a_sender_after_a_response_closes_the_stream(
    instance: Instance, runtime: FakeRuntime
) -> None:
    instance.is_decoupled = True
    sender = InferenceResponseSender(instance, 1, {"Y"})
    sender.send(response())
    del sender
    gc.collect()
    assert [is_final for _, is_final in runtime.ended(1)] == [False, True]
    assert runtime.responses[1][-1] == (None, True)
    assert runtime.logged[0][0] == "WARNING"


def test_dropping_a_sender_after_cancellation_is_not_reported(
    instance: Instance, runtime: FakeRuntime
) -> None:
    runtime.cancelled.add(1)
    sender = InferenceResponseSender(instance, 1, {"Y"})
    del sender
    gc.collect()
    assert runtime.ended(1) == [(None, True)]
    assert runtime.logged == []


def test_sender_belongs_to_its_request(instance: Instance, runtime: FakeRuntime) -> None:
    request = received_request(work_request(1), instance)
    sender = request.get_response_sender()
    assert sender is request.get_response_sender()
    del request
    gc.collect()
    sender.send(response())
    assert sent(runtime) == [(["Y"], True)]


def test_threads_that_ask_at_the_same_time_get_the_same_sender(
    instance: Instance, runtime: FakeRuntime
) -> None:
    """A second sender would be dropped, which ends the request: the model's own thread asks while
    the backend does, after `execute`."""
    instance.is_decoupled = True
    num_threads, num_rounds = 4, 500
    requests = [received_request(work_request(handle), instance) for handle in range(num_rounds)]
    senders: list[set[int]] = [set() for _ in requests]
    barrier = threading.Barrier(num_threads)

    def ask() -> None:
        for request, found in zip(requests, senders, strict=True):
            barrier.wait()
            found.add(id(request.get_response_sender()))

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert not runtime.responses, "a sender was dropped"
    assert all(len(found) == 1 for found in senders)
    for request in requests:
        request.get_response_sender().send(flags=FINAL)
