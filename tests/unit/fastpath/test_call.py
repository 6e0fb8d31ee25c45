"""A call on the fast path sends what its plan encodes, and leaves everything else to the full
path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, not_found, unavailable
from naiad.fastpath.call import FastCall, serving_model
from naiad.trace.tracing import Tracing
from tests.unit.fastpath.planned import PlannedModel


class Core:
    def __init__(self) -> None:
        self.tracing = Tracing()
        self.served = PlannedModel()
        self.streams: list[ResponseStream] = []
        self.calls: list[str] = []
        self.error: NaiadError | None = None

    def model(self, name: str, version: str = "") -> Any:
        if name != "m":
            raise not_found("no such model")
        return self.served

    def infer(self, request: InferRequest, model: Any = None) -> ResponseStream:
        return self._start("infer")

    def infer_validated(self, request: InferRequest, model: Any) -> ResponseStream:
        return self._start("infer_validated")

    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        return None

    def _start(self, name: str) -> ResponseStream:
        if self.error is not None:
            raise self.error
        self.calls.append(name)
        self.streams.append(ResponseStream())
        return self.streams[-1]


class Plan:
    model_name, model_version, is_retired = "m", "", False

    def __init__(self, model: Any) -> None:
        self.model = model

    def encode(self, response: InferResponse) -> Sequence[Buffer] | None:
        return [b"fast"] if response.id == "known" else None

    def accept(self, model: Any) -> None:
        self.model = model


class Wire:
    """Records what is sent, and is its own responder."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.is_open = True

    def send(self, parts: Sequence[Buffer]) -> bool:
        if self.is_open:
            self.events.append(list(parts))
        return self.is_open

    def fall_back(self, request: InferRequest, model: Any) -> Wire:
        self.events.append("full path")
        return self

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        self.events.append((None if response is None else response.id, is_final))

    def fail(self, error: NaiadError) -> None:
        self.events.append(error.message)


class Bench:
    def __init__(self) -> None:
        self.core = Core()
        self.plan = Plan(self.core.served)
        self.wire = Wire()
        self.call = FastCall(self.core, self.plan, self.wire)

    def start(self) -> None:
        self.call.start(InferRequest("m", []), self.core.served)  # type: ignore[arg-type]

    def respond(self, id: str | None, *, is_final: bool = True) -> None:
        response = None if id is None else InferResponse("m", "1", id, [])
        self.core.streams[-1].put(response, is_final)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_call_may_serve_one_request_after_the_other(bench: Bench) -> None:
    for _ in range(2):
        bench.start()
        bench.respond("known")
    bench.start()
    bench.respond("other")
    bench.start()
    bench.respond("known")
    fast = [b"fast"]
    assert bench.wire.events == [fast, fast, "full path", ("other", True), fast]
    assert bench.core.calls == ["infer_validated"] * 4


def test_a_wire_that_cannot_send_now(bench: Bench) -> None:
    bench.start()
    bench.wire.is_open = False
    bench.respond("known")
    assert bench.wire.events == ["full path", ("known", True)]


def test_a_response_before_the_end_leaves_the_fast_path(bench: Bench) -> None:
    bench.start()
    bench.respond("known", is_final=False)
    bench.respond("known")
    bench.start()
    bench.respond(None)
    assert bench.wire.events == [
        "full path",
        ("known", False),
        ("known", True),
        "full path",
        (None, True),
    ]


def test_a_refused_request_fails_on_the_full_path(bench: Bench) -> None:
    bench.core.error = unavailable("Exceeds maximum queue size")
    bench.start()
    assert bench.wire.events == ["full path", "Exceeds maximum queue size"]


def test_a_cancelled_call_sends_nothing(bench: Bench) -> None:
    bench.start()
    bench.call.cancel()
    assert bench.core.streams[-1].is_cancelled
    bench.respond("other")
    assert bench.wire.events == []


def test_the_first_request_is_validated(bench: Bench) -> None:
    bench.plan.model = None
    for _ in range(2):
        bench.start()
        bench.respond("known")
    assert bench.core.calls == ["infer", "infer_validated"]


def test_the_model_that_serves(bench: Bench) -> None:
    core, plan = bench.core, bench.plan
    assert serving_model(core, plan) is core.served  # type: ignore[comparison-overlap]
    core.tracing.is_on = True
    assert serving_model(core, plan) is None
    core.tracing.is_on = False
    core.served = PlannedModel()
    assert serving_model(core, plan) is None, "another copy of the model serves"
    plan.model = None
    assert serving_model(core, plan) is core.served  # type: ignore[comparison-overlap]
    plan.is_retired = True
    assert serving_model(core, plan) is None
    plan.is_retired, plan.model_name = False, "nobody"
    assert serving_model(core, plan) is None
