"""What `submit` does for every endpoint: responses, traces, cancellation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import tensor_from_numpy
from naiad.core.trace import TIMESTAMPS, RemoteParent, TraceGroup
from naiad.errors import NaiadError
from naiad.frontends.submit import submit
from naiad.keys.account import Admission
from naiad.trace.recent_traces import RecentTraces
from tests.fakes import FakeCore


class FakeOrigin:
    """A client that goes away when the test says so."""

    def __init__(self, trace_name: str = "HTTP", receive_start_ns: int = 0, **headers: str) -> None:
        self.trace_name = trace_name
        self.receive_start_ns = receive_start_ns
        self.headers = headers
        self.disconnect: Callable[[], None] | None = None
        self.admission: Admission | None = None

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self.disconnect = callback


class SampleAll:
    """Tracing that samples every request and keeps what is delivered."""

    def __init__(self, *, is_otel: bool = False) -> None:
        self.is_on = True
        self.is_otel = is_otel
        self.parents: list[RemoteParent | None] = []
        self.delivered: list[TraceGroup] = []
        self.recent = RecentTraces()

    def sample(self, model_name: str, parent: RemoteParent | None) -> TraceGroup:
        self.parents.append(parent)
        return TraceGroup(iter(range(1, 100)).__next__, TIMESTAMPS, self.delivered.append)


def request(model: str = "id_fp32") -> InferRequest:
    return InferRequest(model, [tensor_from_numpy("IN", np.array([1, 2], np.float32))])


def traced_core(**options: bool) -> tuple[FakeCore, SampleAll]:
    core, tracing = FakeCore(), SampleAll(**options)
    core.tracing = tracing  # type: ignore[assignment]
    return core, tracing


def test_responses_reach_the_consumer_after_on_accepted() -> None:
    events: list[object] = []

    def on_accepted(stream: ResponseStream) -> None:
        events.append("accepted")

    def consume(response: InferResponse | None, is_final: bool) -> None:
        assert response is not None
        events.append((response.model_name, is_final))

    submit(FakeCore(), request(), consume, FakeOrigin(), on_accepted=on_accepted)
    assert events == ["accepted", ("id_fp32", True)]


def test_a_client_that_goes_away_cancels_the_request() -> None:
    core, origin = FakeCore(), FakeOrigin()
    submit(core, request("held"), lambda response, is_final: None, origin)
    assert origin.disconnect is not None
    origin.disconnect()
    assert core.held[0].is_cancelled


def test_a_refused_request_leaves_no_trace_and_nothing_to_cancel() -> None:
    core, tracing = traced_core()
    origin = FakeOrigin()
    accepted: list[ResponseStream] = []
    with pytest.raises(NaiadError, match="is not found"):
        submit(core, request("nothing"), lambda *_: None, origin, on_accepted=accepted.append)
    assert (accepted, origin.disconnect) == ([], None)
    assert [group.is_discarded for group in tracing.delivered] == [True]


@pytest.mark.parametrize(
    ("trace_name", "receive"), [("HTTP", "HTTP_RECV"), ("GRPC", "GRPC_WAITREAD")]
)
def test_a_trace_has_the_times_of_receiving_and_of_every_response(
    trace_name: str, receive: str
) -> None:
    core, tracing = traced_core()
    message = InferRequest("rep", [tensor_from_numpy("IN", np.array([1, 2], np.int32))])
    submit(core, message, lambda *_: None, FakeOrigin(trace_name, receive_start_ns=5))
    (group,) = tracing.delivered
    send = [f"{trace_name}_SEND_START", f"{trace_name}_SEND_END"]
    names = [name for name, _ in group.endpoint_stamps if name != "INFER_RESPONSE_COMPLETE"]
    assert names == [f"{receive}_START", f"{receive}_END", *send * 3]
    assert group.endpoint_stamps[0] == (f"{receive}_START", 5)
    assert [trace.model_name for trace in group.traces] == ["rep"]


def test_the_callers_context_is_read_where_contexts_are_handed_on() -> None:
    traceparent = f"00-{7:032x}-{9:016x}-01"
    for is_otel in (False, True):
        core, tracing = traced_core(is_otel=is_otel)
        submit(core, request(), lambda *_: None, FakeOrigin(traceparent=traceparent))
        (parent,) = tracing.parents
        assert (parent is not None) == is_otel
        assert parent is None or (parent.trace_id, parent.span_id) == (7, 9)
