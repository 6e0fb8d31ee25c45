"""ModelInfer: what only gRPC has. What all protocols have in common is in test_infer.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from naiad.pb.grpc_service_pb2 import ModelInferRequest
from tests.wire.grpc_rig import ClientCall, Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.close()


def add_sub(request_id: str = "", batch: int = 1) -> ModelInferRequest:
    message = ModelInferRequest(model_name="add_sub", id=request_id)
    for i in range(2):
        message.inputs.add(name=f"INPUT{i}", datatype="FP32", shape=[batch, 16])
        message.raw_input_contents.append(np.full(16 * batch, i + 1, np.float32).tobytes())
    return message


def one(model: str, request_id: str = "", data: bytes = b"\0\0\0\0") -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[data])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[len(data) // 4])
    return message


async def infer(
    rig: Rig, message: ModelInferRequest, metadata: dict[str, str] | None = None
) -> ClientCall:
    return await rig.unary("ModelInfer", message.SerializeToString(), metadata)


class TestModelInfer:
    async def test_a_deadline_reaches_the_request(self, rig: Rig) -> None:
        await infer(rig, add_sub(), {"grpc-timeout": "2S"})
        assert rig.core.requests[0].deadline_ns == rig.clock.now_ns() + 2_000_000_000
        await infer(rig, add_sub())
        assert rig.core.requests[1].deadline_ns == 0

    async def test_a_message_that_is_no_protobuf(self, rig: Rig) -> None:
        call = await rig.unary("ModelInfer", b"\xff\xff\xff")
        assert (call.status, call.message) == (13, "Unable to parse request")

    async def test_an_empty_message(self, rig: Rig) -> None:
        call = await infer(rig, ModelInferRequest())
        assert (call.status, call.message) == (5, "Request for unknown model: '' is not found")
        assert call.messages == []

    async def test_a_wrong_parameter_is_told_when_the_model_is_known(self, rig: Rig) -> None:
        message = one("identity")
        message.parameters["triton_x"].bool_param = True
        assert (await infer(rig, message)).status == 3

    async def test_a_response_that_cannot_be_encoded(self, rig: Rig) -> None:
        call = await infer(rig, one("held"))
        held = rig.core.held[0]
        held.request.signature = None
        held.request.requested_outputs = 5  # type: ignore[assignment]
        held.answer()
        await rig.settle()
        assert (call.status, call.message) == (13, "the response could not be encoded")
