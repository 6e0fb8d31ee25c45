"""ModelStreamInfer: order, final flags, errors, cancellation. The expected
messages are those of a genuine Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from naiad.errors import Code, NaiadError, not_found
from naiad.frontends.core import UndecidedError
from naiad.pb.grpc_service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.repository.model import Model
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.limits import Http2Limits
from tests.wire.grpc_rig import ClientCall, Rig
from tests.wire.test_grpc_infer import add_sub, one


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.close()


def repeat(count: int, request_id: str, *, empty_final: bool = False) -> ModelInferRequest:
    message = ModelInferRequest(
        model_name="repeat",
        id=request_id,
        raw_input_contents=[np.array([count], np.int32).tobytes()],
    )
    message.inputs.add(name="IN", datatype="INT32", shape=[1])
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def responses(call: ClientCall) -> list[ModelStreamInferResponse]:
    return [ModelStreamInferResponse.FromString(message) for _, message in call.messages]


def told(call: ClientCall) -> list[tuple[str, bool | None]]:
    """(id, triton_final_response) of each response; None where it has no such parameter."""
    found = []
    for response in responses(call):
        parameters = response.infer_response.parameters
        found.append(
            (
                response.infer_response.id,
                parameters["triton_final_response"].bool_param if parameters else None,
            )
        )
    return found


async def stream(
    rig: Rig, *messages: ModelInferRequest, metadata: dict[str, str] | None = None, end: bool = True
) -> ClientCall:
    call = rig.open("ModelStreamInfer", metadata)
    for message in messages:
        rig.send(call, message.SerializeToString())
    if end:
        rig.half_close(call)
    await rig.settle()
    return call


class TestOrder:
    async def test_plain_models_respond_in_request_order(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"), add_sub("b"), one("held", "c"))
        assert told(call) == []
        rig.core.held[1].answer()
        await rig.settle()
        assert told(call) == []
        rig.core.held[0].answer()
        await rig.settle()
        assert told(call) == [("a", True), ("b", True), ("c", True)]
        assert call.status == 0

    async def test_decoupled_models_do_not_wait(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"), repeat(2, "r"), add_sub("b"))
        assert told(call) == [("r", False), ("r", False)]
        rig.core.held[0].answer()
        await rig.settle()
        assert told(call) == [("r", False), ("r", False), ("a", True), ("b", True)]
        assert call.status == 0

    async def test_an_error_keeps_its_place(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"), one("nothing", "b"), one("faulty", "c"))
        assert told(call) == []
        rig.core.held[0].answer()
        await rig.settle()
        assert told(call) == [("a", True), ("b", None), ("c", True)]

    async def test_the_stream_stays_open_until_the_client_ends_it(self, rig: Rig) -> None:
        call = await stream(rig, add_sub("a"), end=False)
        assert told(call) == [("a", True)]
        assert call.status is None
        rig.send(call, add_sub("b").SerializeToString())
        await rig.settle()
        assert told(call)[-1] == ("b", True)
        rig.half_close(call)
        await rig.settle()
        assert call.status == 0


class TestFinalFlag:
    async def test_a_final_flag_alone_is_not_sent(self, rig: Rig) -> None:
        call = await stream(rig, repeat(2, "r"), repeat(0, "s"))
        assert told(call) == [("r", False), ("r", False)]
        assert call.status == 0

    async def test_a_final_flag_alone_is_sent_on_request(self, rig: Rig) -> None:
        call = await stream(rig, repeat(1, "r", empty_final=True), repeat(0, "s", empty_final=True))
        assert told(call) == [("r", False), ("r", True), ("s", True)]
        empty = responses(call)[-1].infer_response
        assert (empty.model_name, empty.model_version, len(empty.outputs)) == ("repeat", "", 0)

    async def test_plain_models_send_it_with_their_response(self, rig: Rig) -> None:
        message = add_sub("a")
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        assert told(await stream(rig, message)) == [("a", True)]


class TestErrors:
    async def test_a_request_that_reaches_no_model(self, rig: Rig) -> None:
        call = await stream(rig, one("nothing", "x"), add_sub("y"))
        first, second = responses(call)
        assert first.error_message == "Request for unknown model: 'nothing' is not found"
        assert (first.infer_response.id, first.infer_response.model_name) == ("x", "")
        assert not first.infer_response.parameters
        assert second.error_message == ""
        assert call.status == 0

    async def test_an_error_of_the_model(self, rig: Rig) -> None:
        call = await stream(rig, one("faulty", "x"), add_sub("y"))
        first, second = responses(call)
        assert first.error_message == "the model does not like it"
        assert (
            first.infer_response.id,
            first.infer_response.model_name,
            first.infer_response.model_version,
        ) == ("x", "faulty", "")
        assert second.error_message == ""

    async def test_more_than_one_response(self, rig: Rig) -> None:
        call = await stream(rig, one("double", "x"))
        assert responses(call)[0].error_message == "expected a single response, got 2"

    async def test_triton_grpc_error_ends_the_stream(self, rig: Rig) -> None:
        call = await stream(
            rig,
            one("held", "a"),
            one("faulty", "b"),
            end=False,
            metadata={"triton_grpc_error": "true"},
        )
        assert (call.status, call.message) == (3, "the model does not like it")
        assert rig.core.held[0].is_cancelled

    async def test_triton_grpc_error_ends_the_stream_for_an_unknown_model(self, rig: Rig) -> None:
        call = await stream(
            rig, one("nothing", "x"), add_sub("y"), metadata={"triton_grpc_error": "true"}
        )
        assert told(call) == []
        assert call.status == 5

    async def test_a_wrong_parameter(self, rig: Rig) -> None:
        message = add_sub("x")
        message.parameters["triton_x"].bool_param = True
        call = await stream(rig, message)
        assert responses(call)[0].error_message.startswith("parameter keys starting with 'triton_'")
        assert told(call) == [("x", None)]

    async def test_a_message_that_is_no_protobuf(self, rig: Rig) -> None:
        call = rig.open("ModelStreamInfer")
        rig.send(call, b"\xff\xff")
        await rig.settle()
        assert (call.status, call.message) == (13, "Unable to parse request")

    async def test_a_stream_without_messages(self, rig: Rig) -> None:
        call = await stream(rig)
        assert (call.status, call.messages) == (0, [])


class TestEnds:
    async def test_cancelling_the_call_cancels_everything(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"), one("held", "b"), end=False)
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        assert [held.is_cancelled for held in rig.core.held] == [True, True]

    async def test_losing_the_client_cancels_everything(self, rig: Rig) -> None:
        await stream(rig, one("held", "a"))
        rig.transport.close()
        await asyncio.sleep(0)
        assert rig.core.held[0].is_cancelled

    async def test_a_deadline_cancels_everything(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"), metadata={"grpc-timeout": "1m"})
        while call.status is None:
            await rig.settle()
        assert call.status == 4
        assert rig.core.held[0].is_cancelled

    async def test_a_server_that_stops_finishes_its_requests_and_accepts_no_more(
        self, rig: Rig
    ) -> None:
        call = await stream(rig, one("held", "a"), end=False)
        stopping = asyncio.create_task(rig.endpoint.stop(60))
        await rig.settle()
        rig.send(call, add_sub("b").SerializeToString())
        await rig.settle()
        rig.core.held[0].answer()
        await rig.settle()
        first, second = responses(call)
        assert (first.infer_response.id, first.error_message) == ("a", "")
        assert (
            second.error_message
            == "GRPC server is shutting down and has stopped accepting new requests."
        )
        assert second.infer_response.id == "b"
        await stopping
        assert call.status == 14

    async def test_a_reader_that_does_not_read_is_cancelled(self) -> None:
        rig = Rig(GrpcOptions(http2=Http2Limits(max_stream_buffer_bytes=10_000)))
        call = await stream(rig, one("held", "a"), end=False)
        (server_stream,) = rig.protocol.connection.streams.values()
        server_stream.send_window = 0
        rig.send(call, repeat(1000, "r").SerializeToString())
        await rig.settle()
        assert call.reset_code == ErrorCode.ENHANCE_YOUR_CALM
        assert rig.core.held[0].is_cancelled
        assert rig.protocol.sender.pending_bytes == 0
        await rig.close()


class TestBackPressure:
    async def test_a_slow_reader_holds_back_decoupled_models(self) -> None:
        rig = Rig()
        call = await stream(rig, one("tap", "a"), end=False)
        (server_stream,) = rig.protocol.connection.streams.values()
        server_stream.send_window = 0
        tap = rig.core.held[0]
        for _ in range(10):
            tap.answer(bytes(100_000), is_final=False)
        assert not tap.is_paused
        tap.answer(bytes(100_000), is_final=False)
        assert tap.is_paused
        assert server_stream.is_paused
        rig.send(call, one("tap", "b").SerializeToString())
        await rig.settle()
        assert rig.core.held[1].is_paused
        server_stream.send_window = 700_000
        rig.protocol.sender.ready[server_stream] = None
        rig.protocol.sender.pump()
        rig.protocol.flush()
        await rig.settle()
        assert tap.is_paused
        rig.protocol.sender.open_stream_window(server_stream, 2_000_000)
        rig.protocol.flush()
        await rig.settle()
        assert [held.is_paused for held in rig.core.held] == [False, False]
        assert not server_stream.is_paused
        for held in rig.core.held:
            held.answer()
        rig.half_close(call)
        await rig.settle()
        assert (call.status, len(call.messages)) == (0, 13)
        await rig.close()

    async def test_too_many_requests_in_flight_stop_the_window(self) -> None:
        rig = Rig(
            GrpcOptions(
                max_stream_request_bytes=4 * 12_000, http2=Http2Limits(stream_window_bytes=65_535)
            )
        )
        call = rig.open("ModelStreamInfer")
        payload = b"\0" * 8_000
        for i in range(30):
            rig.send(call, one("held", str(i), payload).SerializeToString())
        await rig.settle()
        (server_stream,) = rig.protocol.connection.streams.values()
        assert server_stream.is_paused
        waiting = len(rig.core.held)
        assert waiting < 16
        num_responses = 0
        while num_responses < 30:
            rig.core.held[num_responses].answer()
            num_responses += 1
            await rig.settle()
        assert [request_id for request_id, _ in told(call)] == [str(i) for i in range(30)]
        rig.half_close(call)
        await rig.settle()
        assert call.status == 0
        await rig.close()


class HeldError(UndecidedError):
    """The test decides."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "another process knows")
        self.then: list[Callable[[NaiadError], None]] = []

    def decide(self, admission: object, then: Callable[[NaiadError], None]) -> None:
        self.then.append(then)


def refusal(message: str = "refused") -> NaiadError:
    error = not_found(message)
    error.is_refusal = True
    return error


class TestFrontendProcess:
    """What only happens where the core is in another process."""

    @pytest.fixture
    def undecided(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> HeldError:
        """Models whose name begins with "absent" are known elsewhere."""
        error, find = HeldError(), rig.core.model

        def model(name: str, version: str = "") -> Model:
            if name.startswith("absent"):
                raise error
            return find(name, version)

        monkeypatch.setattr(rig.core, "model", model)
        return error

    async def test_a_rejection_waits_for_the_decision_and_keeps_its_place(
        self, rig: Rig, undecided: HeldError
    ) -> None:
        call = await stream(rig, add_sub("a"), one("absent", "b"), add_sub("c"))
        assert told(call) == [("a", True)]
        undecided.then[0](not_found("who is that?"))
        await rig.settle()
        assert told(call) == [("a", True), ("b", None), ("c", True)]
        assert responses(call)[1].error_message == "who is that?"
        assert call.status == 0

    async def test_an_invalid_message_for_an_absent_model_waits_too(
        self, rig: Rig, undecided: HeldError
    ) -> None:
        message = one("absent", "a")
        message.raw_input_contents.append(b"more")
        call = await stream(rig, message)
        undecided.then[0](not_found("who is that?"))
        await rig.settle()
        assert [response.error_message for response in responses(call)] == ["who is that?"]

    async def test_a_decision_after_the_end_is_ignored(
        self, rig: Rig, undecided: HeldError
    ) -> None:
        call = await stream(rig, one("absent", "a"), end=False)
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        undecided.then[0](not_found("who is that?"))
        await rig.settle()
        assert told(call) == []

    async def test_a_late_refusal_looks_like_an_early_one(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"))
        rig.core.held[0].stream.fail(refusal())
        await rig.settle()
        (response,) = responses(call)
        assert response.error_message == "refused"
        assert response.infer_response == ModelInferResponse(id="a")
        assert call.status == 0

    async def test_a_late_refusal_of_a_decoupled_request_keeps_its_place(self, rig: Rig) -> None:
        call = await stream(rig, one("held", "a"), one("held_stream", "b"), one("held", "c"))
        first, decoupled, last = rig.core.held
        decoupled.stream.fail(refusal())
        last.answer()
        await rig.settle()
        assert told(call) == []
        first.answer()
        await rig.settle()
        assert told(call) == [("a", True), ("b", None), ("c", True)]
        assert call.status == 0

    async def test_a_late_refusal_ends_a_stream_that_ends_with_its_first_error(
        self, rig: Rig
    ) -> None:
        call = await stream(rig, one("held"), metadata={"triton_grpc_error": "true"}, end=False)
        rig.core.held[0].stream.fail(refusal())
        await rig.settle()
        assert (call.status, call.message) == (5, "refused")
