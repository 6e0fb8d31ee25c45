"""Plans of gRPC messages: shared by connections, taught by the full path, dropped with their
model."""

from __future__ import annotations

import numpy as np
import pytest

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import not_found
from naiad.fastpath.grpc_plan import MessagePlan, MessagePlans
from naiad.fastpath.plan_cache import LARGE_BYTES
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.protocol.v2.grpc_request import RequestOptions
from tests.unit.fastpath.planned import PlannedModel


class Core:
    def __init__(self) -> None:
        self.models = {"m": PlannedModel("m")}

    def model(self, name: str, version: str = "") -> PlannedModel:
        if name not in self.models:
            raise not_found("no such model")
        return self.models[name]


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def plans(core: Core) -> MessagePlans:
    return MessagePlans(core)  # type: ignore[arg-type]


def message(value: float = 0, model: str = "m", request_id: str = "") -> bytes:
    request = ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="IN", datatype="FP32", shape=[2])
    request.raw_input_contents.append(np.full(2, value, np.float32).tobytes())
    return request.SerializeToString()


def decoded(plans: MessagePlans) -> tuple[InferRequest, RequestOptions]:
    result = plans.decode(message())
    assert result is not None
    return result


def learn(plans: MessagePlans, data: bytes) -> MessagePlan:
    plan = plans.learn(data, len(data))
    assert plan is not None
    return plan


def response(num_elements: int = 2, **more: object) -> InferResponse:
    output = Tensor("OUT", "FP32", [num_elements], bytes(4 * num_elements))
    return InferResponse("m", "1", "", [output], **more)  # type: ignore[arg-type]


def test_messages_with_one_layout_share_a_plan(plans: MessagePlans) -> None:
    plan = learn(plans, message(1))
    assert learn(plans, message(2)) is plan
    assert learn(plans, message(2, request_id="7")) is not plan
    assert learn(plans, message(2, request_id="7")) is learn(plans, message(3, request_id="8"))


def test_an_unknown_model_has_no_plan(plans: MessagePlans) -> None:
    data = message(model="nobody")
    assert plans.learn(data, len(data)) is None


def test_a_plan_goes_with_its_model(core: Core, plans: MessagePlans) -> None:
    plan = learn(plans, message())
    request, _ = decoded(plans)
    assert request.signature is plan.layout.signature
    plan.layout.signature.accepted_by = object()
    plan.accept(core.models["m"])  # type: ignore[arg-type]
    assert plan.model is core.models["m"]  # type: ignore[comparison-overlap]
    old = core.models["m"]
    core.models["m"] = PlannedModel("m")
    old.stop()
    assert (plan.model, plan.is_retired, len(plans.cache)) == (None, True, 0)
    plan.accept(core.models["m"])  # type: ignore[arg-type]
    assert plan.model is None, "a request of the retired plan was still under way"
    assert learn(plans, message()) is not plan


def test_a_model_that_reads_the_data_is_never_known_to_accept_it(
    core: Core, plans: MessagePlans
) -> None:
    plan = learn(plans, message())
    plan.accept(core.models["m"])  # type: ignore[arg-type]
    assert plan.model is None


def test_responses_are_learned_now_and_then(plans: MessagePlans) -> None:
    """Some models return a new shape every time."""
    plan = learn(plans, message())
    request, _ = decoded(plans)
    assert plan.encode(response()) is None
    plan.learn(response(), request)
    assert plan.encode(response()) == [bytes(8)]
    assert plan.frames is not None
    frames = plan.frames
    for size in range(3, 19):
        plan.learn(response(size), request)
        assert plan.frames is frames
    plan.learn(response(19), request)
    assert plan.frames is not frames
    assert plan.encode(response(19)) == [bytes(76)]
    assert plan.encode(response()) is None


@pytest.mark.parametrize("other", [response(parameters={"a": 1}), InferResponse("m", "1", "", [])])
def test_responses_that_are_not_learned(plans: MessagePlans, other: InferResponse) -> None:
    plan = learn(plans, message())
    request, _ = decoded(plans)
    plan.learn(other, request)
    assert plan.frames is None
    request.requested_outputs = ["OUT"]
    plan.learn(InferResponse("m", "1", "", response().outputs * 2), request)
    assert plan.frames is None, "one of the outputs was not requested"


def large(num_bytes: int) -> bytes:
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="IN", datatype="UINT8", shape=[num_bytes])
    request.raw_input_contents.append(bytes(num_bytes))
    return request.SerializeToString()


def test_large_messages_of_ever_new_shapes_leave_no_plans(plans: MessagePlans) -> None:
    for number in range(50):
        data = large(LARGE_BYTES + number)
        assert plans.learn(data, len(data)) is None
    assert len(plans.cache) == 0
    data = large(LARGE_BYTES)  # the second of its kind
    assert plans.learn(data, len(data)) is plans.learn(data, len(data)) is not None
    assert len(plans.cache) == 1
