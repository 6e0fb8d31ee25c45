"""Inference as every protocol offers it: each test runs once per wire.

Where Triton's error texts differ between the protocols, the test lists them by the wire's name.
"""

from __future__ import annotations

import ast
import gc
import struct
import weakref
from typing import Any

import numpy as np
import pytest

from naiad.core.datatype import DATATYPES
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import Code
from tests.wire.wire import Output, Wire, WireReply, open_wire, tensor

WITH_BINARY_DATA = ("http-binary", "grpc", "grpc-stream")
"""Wires whose requests can be received where the model's workers read them."""
BATCH_NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be"
    " prepended to each input shape. If you want to specify the full shape including the batch dim"
    " in your input dims config, try setting max_batch_size to zero. See the model configuration"
    " docs for more info on max_batch_size."
)


def add_sub_inputs(batch: int = 1) -> list[Tensor]:
    return [tensor([[float(i + 1)] * 16] * batch, f"INPUT{i}") for i in range(2)]


def seen(reply: WireReply) -> Any:
    """What reached the `params` model: inputs, parameters, id, sequence id, sequence start,
    sequence end, priority, timeout."""
    return ast.literal_eval(reply.values()[0].decode())


def address(data: Buffer) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


TEXT = tensor([b"x"], datatype="BYTES")


# Responses.


async def test_a_response_has_the_models_outputs(wire: Wire) -> None:
    reply = await wire.infer("add_sub", *add_sub_inputs(), id="7")
    assert reply.failure is None
    assert (reply.model_name, reply.model_version, reply.id) == ("add_sub", "1", "7")
    assert [(each.name, each.datatype, each.shape) for each in reply.outputs] == [
        ("OUTPUT0", "FP32", [1, 16]),
        ("OUTPUT1", "FP32", [1, 16]),
    ]
    assert reply.values("OUTPUT0") == [[3.0] * 16]
    assert reply.values("OUTPUT1") == [[-1.0] * 16]
    assert reply.parameters == {}


@pytest.mark.parametrize("id", ["", "1", 'a"b', "ü", "x" * 200])
async def test_a_response_has_the_id_of_its_request(wire: Wire, id: str) -> None:
    assert (await wire.infer("id_fp32", tensor([1]), id=id)).id == id


async def test_a_version_may_be_named(wire: Wire) -> None:
    assert (await wire.infer("id_fp32", tensor([1.5]), version="1")).values() == [1.5]


@pytest.mark.parametrize("datatype", DATATYPES)
async def test_every_datatype_comes_back_as_it_was_sent(wire: Wire, datatype: str) -> None:
    sent = {
        "BYTES": tensor([b"one", b"", "zwölf".encode()], datatype="BYTES"),
        "BF16": tensor(b"\x80\x3f\x00\x40\x40\x40", datatype="BF16", shape=[3]),
        "BOOL": tensor([True, False, True], datatype="BOOL"),
    }.get(datatype) or tensor([1, 2, 100], datatype=datatype)
    reply = await wire.infer(f"id_{datatype.lower()}", sent)
    if wire.name == "http-json" and datatype in ("FP16", "BF16"):
        assert reply.failure == wire.failure(
            Code.INVALID_ARG, f"receiving {datatype} data via JSON is not supported. "
            "Please use the binary data format for input IN"
        )  # fmt: skip
        return
    (output,) = reply.outputs
    assert (output.name, output.datatype, output.shape) == ("OUT", datatype, [3])
    assert bytes(output.data) == bytes(sent.data)


@pytest.mark.parametrize("wire_name", [*WITH_BINARY_DATA, "in-process"])
async def test_byte_strings_need_not_be_text(wire_name: str) -> None:
    async with open_wire(wire_name) as wire:
        sent = tensor([b"\xff\x00", b"\x80"], datatype="BYTES")
        assert (await wire.infer("id_bytes", sent)).values() == [b"\xff\x00", b"\x80"]


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
async def test_an_empty_tensor(wire: Wire, datatype: str) -> None:
    reply = await wire.infer(f"id_{datatype.lower()}", tensor([], datatype=datatype))
    (output,) = reply.outputs
    assert (output.shape, bytes(output.data)) == ([0], b"")


async def test_a_tensor_of_two_dimensions(wire: Wire) -> None:
    reply = await wire.infer("id_2d", tensor([[1, 2, 3], [4, 5, 6]]))
    assert reply.values() == [[1, 2, 3], [4, 5, 6]]


async def test_a_response_without_outputs(wire: Wire) -> None:
    reply = await wire.infer("silent", tensor([1]), id="q")
    assert (reply.failure, reply.model_name, reply.id, reply.outputs) == (None, "silent", "q", [])


async def test_a_response_has_the_models_parameters(wire: Wire) -> None:
    reply = await wire.infer("with_parameters", tensor([1, 2]))
    assert reply.parameters == {"a": 1, "b": True, "c": "x", "d": 0.5}


async def test_the_final_flag_may_come_after_the_response(wire: Wire) -> None:
    pending = await wire.ask("held", tensor([1]))
    held = await wire.core.next_held()
    held.answer(struct.pack("<f", 2.5), is_final=False)
    assert await pending.is_pending()
    held.stream.close()
    assert (await pending.reply()).values() == [2.5]


async def test_a_model_that_responds_later(wire: Wire) -> None:
    pending = await wire.ask("held", tensor([1]))
    held = await wire.core.next_held()
    assert await pending.is_pending()
    held.answer(struct.pack("<f", 2.5))
    assert (await pending.reply()).values() == [2.5]


# Requested outputs.


async def test_only_the_requested_outputs_come_back(network_wire: Wire) -> None:
    reply = await network_wire.infer("add_sub", *add_sub_inputs(), outputs=["OUTPUT1"])
    assert [each.name for each in reply.outputs] == ["OUTPUT1"]
    assert reply.values("OUTPUT1") == [[-1.0] * 16]
    assert network_wire.core.requests[-1].requested_outputs == ["OUTPUT1"]


async def test_outputs_come_in_the_models_order(wire: Wire) -> None:
    reply = await wire.infer("add_sub", *add_sub_inputs(), outputs=["OUTPUT1", "OUTPUT0"])
    assert [each.name for each in reply.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert wire.core.requests[-1].requested_outputs == ["OUTPUT1", "OUTPUT0"]


@pytest.mark.parametrize(
    ("model", "given", "output", "expected"),
    [
        (
            "id_b",
            tensor([[1, 3, 2, 4]]),
            "OUT",
            ([1, 2], [[b"4.000000:3:fish", b"3.000000:1:dog"]]),
        ),
        (
            "classes",
            tensor([1, 9, 3, 4], "INPUT0"),
            "OUTPUT0",
            ([2], [b"9.000000:1:bee", b"4.000000:3:dog"]),
        ),
    ],
    ids=["with batches", "without batches"],
)
async def test_classification(
    network_wire: Wire,
    model: str,
    given: Tensor,
    output: str,
    expected: tuple[list[int], list[Any]],
) -> None:
    reply = await network_wire.infer(model, given, outputs=[Output(output, classification=2)])
    (found,) = reply.outputs
    assert found.datatype == "BYTES"
    assert (found.shape, reply.values(output)) == expected


async def test_an_output_may_not_be_requested_twice(network_wire: Wire) -> None:
    reply = await network_wire.infer("id_fp32", tensor([1]), outputs=["OUT", "OUT"], id="q")
    assert reply.failure == network_wire.failure(
        Code.INVALID_ARG, "[request id: q] output 'OUT' already exists in request"
    )


async def test_an_unknown_output(wire: Wire) -> None:
    reply = await wire.infer("add_sub", *add_sub_inputs(), outputs=["NOPE"])
    assert reply.failure == wire.failure(
        Code.INVALID_ARG, "unexpected inference output 'NOPE' for model 'add_sub'"
    )


# Models that are not there.


async def test_an_unknown_model(wire: Wire) -> None:
    reply = await wire.infer("nothing", tensor([1]))
    assert reply.failure == wire.failure(
        Code.NOT_FOUND, "Request for unknown model: 'nothing' is not found"
    )


async def test_an_unknown_version(wire: Wire) -> None:
    reply = await wire.infer("id_fp32", tensor([1]), version="2")
    assert reply.failure == wire.failure(
        Code.NOT_FOUND, "Request for unknown model: 'id_fp32' version 2 is not found"
    )


async def test_a_fault_of_the_model_is_told_before_a_fault_of_the_request(
    network_wire: Wire,
) -> None:
    parameters = {"triton_x": True}
    reply = await network_wire.infer("nothing", tensor([1]), parameters=parameters)
    assert reply.failure == network_wire.failure(
        Code.NOT_FOUND, "Request for unknown model: 'nothing' is not found"
    )


# Inputs that do not fit.


async def test_an_unknown_input(wire: Wire) -> None:
    reply = await wire.infer("id_fp32", tensor([1], "NOPE"))
    assert reply.failure == wire.failure(
        Code.INVALID_ARG, "unexpected inference input 'NOPE' for model 'id_fp32'"
    )


@pytest.mark.parametrize(
    ("given", "count", "got", "missing"),
    [([], 0, "", "'INPUT0','INPUT1'"), ([0], 1, "'INPUT0'", "'INPUT1'")],
)
async def test_a_missing_input(
    wire: Wire, given: list[int], count: int, got: str, missing: str
) -> None:
    inputs = add_sub_inputs()
    reply = await wire.infer("add_sub", *(inputs[number] for number in given))
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        f"[request id: <id_unknown>] expected 2 inputs but got {count} inputs for model 'add_sub'."
        f" Got input(s) [{got}], but missing required input(s) [{missing}]."
        " Please provide all required input(s).",
    )


async def test_an_input_too_many(wire: Wire) -> None:
    reply = await wire.infer("id_fp32", tensor([1]), tensor([1], "MORE"))
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        "[request id: <id_unknown>] expected 1 inputs but got 2 inputs for model 'id_fp32'."
        " Got input(s) ['IN','MORE'], but missing required input(s) []."
        " Please provide all required input(s).",
    )


async def test_the_same_input_twice(wire: Wire) -> None:
    first, _ = add_sub_inputs()
    reply = await wire.infer("add_sub", first, first, id="q")
    assert reply.failure == wire.failure(
        Code.INVALID_ARG, "[request id: q] input 'INPUT0' already exists in request"
    )


async def test_an_optional_input_may_be_left_out(wire: Wire) -> None:
    text = tensor([[b"hi"]], "text_input", "BYTES")
    reply = await wire.infer("gen", text)
    assert seen(reply)[0] == {"text_input": [[1, 1], [[b"hi"]]]}


async def test_a_wrong_datatype(wire: Wire) -> None:
    reply = await wire.infer("id_fp32", tensor([1], datatype="INT32"), id="7")
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        "[request id: 7] inference input 'IN' data-type is 'INT32', but model 'id_fp32' expects"
        " 'FP32'",
    )


async def test_a_wrong_shape(wire: Wire) -> None:
    reply = await wire.infer("id_fp32", tensor([[1], [2]]), id="7")
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        "[request id: 7] unexpected shape for input 'IN' for model 'id_fp32'."
        " Expected [-1], got [2,1]. ",
    )


async def test_a_wrong_shape_for_a_model_that_batches(wire: Wire) -> None:
    reply = await wire.infer("id_b", tensor([1, 2, 3, 4]))
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        "[request id: <id_unknown>] unexpected shape for input 'IN' for model 'id_b'."
        f" Expected [-1,4], got [4].{BATCH_NOTE}",
    )


async def test_the_wrong_amount_of_data(wire: Wire) -> None:
    """JSON is compared with the shape when it is read, binary data when the request is checked."""
    reply = await wire.infer("id_fp32", tensor([1, 2], shape=[3]), id="q")
    if wire.name == "http-json":
        expected = wire.failure(
            Code.INVALID_ARG,
            "Failed to parse 'data' field: shape does not match true shape: expected 3 values for"
            " input 'IN', got 2",
        )
    else:
        expected = wire.failure(
            Code.INVALID_ARG,
            "[request id: q] input byte size mismatch for input 'IN' for model 'id_fp32'."
            " Expected 12, got 8",
        )
    assert reply.failure == expected


async def test_the_wrong_number_of_strings(wire: Wire) -> None:
    sent = tensor([b"a", b"b"], datatype="BYTES", shape=[3])
    reply = await wire.infer("id_bytes", sent, id="q")
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        "[request id: q] expected 3 string elements for inference input 'IN' for model 'id_bytes',"
        " got 2",
    )


# Batches.


async def test_a_batch(wire: Wire) -> None:
    reply = await wire.infer("add_sub", *add_sub_inputs(batch=3))
    assert reply.values("OUTPUT0") == [[3.0] * 16] * 3
    assert wire.core.requests[-1].batch_size == 3


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (65, "inference request batch-size must be <= 64 for 'add_sub'"),
        (0, "inference request batch-size must be >= 1 for 'add_sub'"),
    ],
)
async def test_a_batch_size_that_the_model_does_not_take(
    wire: Wire, batch: int, message: str
) -> None:
    inputs = [Tensor(f"INPUT{i}", "FP32", [batch, 16], bytes(batch * 16 * 4)) for i in range(2)]
    reply = await wire.infer("add_sub", *inputs, id="q")
    assert reply.failure == wire.failure(Code.INVALID_ARG, f"[request id: q] {message}")


async def test_inputs_of_different_batch_sizes(wire: Wire) -> None:
    first, second = add_sub_inputs(batch=2)[0], add_sub_inputs(batch=3)[1]
    reply = await wire.infer("add_sub", first, second, id="q")
    assert reply.failure == wire.failure(
        Code.INVALID_ARG,
        "[request id: q] input 'INPUT1' batch size does not match other inputs for 'add_sub'",
    )


# Parameters.


async def test_parameters_reach_the_model(wire: Wire) -> None:
    parameters = {"number": -3, "switch": True, "text": "ü", "real": 0.5}
    reply = await wire.infer("params", TEXT, parameters=parameters, id="q")
    inputs, given, id, *_ = seen(reply)
    assert (inputs, given, id) == ({"IN": [[1], [b"x"]]}, parameters, "q")


async def test_priority_and_timeout_are_no_parameters_of_the_model(wire: Wire) -> None:
    reply = await wire.infer("params", TEXT, parameters={"priority": 3, "timeout": 5000, "a": 1})
    _, given, _, _, _, _, priority, timeout_us = seen(reply)
    assert (given, priority, timeout_us) == ({"a": 1}, 3, 5000)


@pytest.mark.parametrize("sequence_id", [42, 2**63 - 1, "a sequence"])
async def test_sequences_have_numbers_or_names(wire: Wire, sequence_id: int | str) -> None:
    reply = await wire.infer(
        "params",
        TEXT,
        parameters={"sequence_id": sequence_id, "sequence_start": True, "sequence_end": False},
    )
    assert seen(reply)[3:6] == (sequence_id, True, False)


async def test_a_sequence_name_may_not_be_long(network_wire: Wire) -> None:
    reply = await network_wire.infer("params", TEXT, parameters={"sequence_id": "x" * 129})
    assert reply.failure == network_wire.failure(
        Code.UNSUPPORTED, "string correlation ID cannot be longer than 128 characters"
    )


async def test_reserved_parameters(network_wire: Wire) -> None:
    reply = await network_wire.infer("params", TEXT, parameters={"triton_x": True})
    expected = "parameter keys starting with 'triton_' are reserved for Triton usage" + (
        " and should not be specified."
        if network_wire.name.startswith("http")
        else ". Only the following keys starting with 'triton_' are allowed:"
        " triton_enable_empty_final_response"
    )
    assert reply.failure == network_wire.failure(Code.INVALID_ARG, expected)


# Headers that become parameters.


async def test_matching_headers_become_parameters(network_wire_name: str) -> None:
    async with open_wire(network_wire_name, header_forward_pattern="^x-user|TRACE") as wire:
        headers = {"x-user": "me", "my-trace": "7", "other": "no"}
        reply = await wire.infer("params", TEXT, parameters={"a": 1}, headers=headers)
        assert seen(reply)[1] == {"a": 1, "x-user": "me", "my-trace": "7"}


@pytest.mark.parametrize("pattern", ["", "(?-i)TRACE", "^trace"])
async def test_headers_that_do_not_match_are_no_parameters(
    network_wire_name: str, pattern: str
) -> None:
    async with open_wire(network_wire_name, header_forward_pattern=pattern) as wire:
        reply = await wire.infer("params", TEXT, headers={"my-trace": "7"})
        assert seen(reply)[1] == {}


@pytest.mark.parametrize("name", ["triton_x", "priority"])
async def test_reserved_headers_are_refused(network_wire_name: str, name: str) -> None:
    pattern = f"^{name}$"
    async with open_wire(network_wire_name, header_forward_pattern=pattern) as wire:
        reply = await wire.infer("params", TEXT, headers={name: "7"})
        assert reply.failure == wire.failure(
            Code.INVALID_ARG,
            f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
        )


# Errors of the model and of the server.


@pytest.mark.parametrize(("number", "code"), list(enumerate(Code)))
async def test_every_code_has_its_status(wire: Wire, number: int, code: Code) -> None:
    reply = await wire.infer("err", tensor([number], "CODE", "INT32"))
    assert reply.failure == wire.failure(code, f"code {code.name}")


async def test_an_error_of_the_model(wire: Wire) -> None:
    reply = await wire.infer("faulty", tensor([1]))
    assert reply.failure == wire.failure(Code.INVALID_ARG, "the model does not like it")


async def test_a_request_that_the_queue_refuses(wire: Wire) -> None:
    reply = await wire.infer("id_fp32", tensor([1]), parameters={"refuse": True})
    assert reply.failure == wire.failure(Code.UNAVAILABLE, "Exceeds maximum queue size")


async def test_a_server_that_exits_takes_no_requests(wire: Wire) -> None:
    wire.core.is_exiting = True
    reply = await wire.infer("id_fp32", tensor([1]))
    assert reply.failure == wire.failure(Code.UNAVAILABLE, "Server exiting")


async def test_a_server_that_exits_lets_sequences_end(wire: Wire) -> None:
    wire.core.is_exiting = True
    reply = await wire.infer("params", TEXT, parameters={"sequence_id": 42, "sequence_end": True})
    assert seen(reply)[3:6] == (42, False, True)


async def test_a_model_that_ends_without_a_response(wire: Wire) -> None:
    pending = await wire.ask("held", tensor([1]))
    (await wire.core.next_held()).stream.close()
    expected = (
        "received an unexpected null response"
        if wire.name.startswith("grpc")
        else "the model ended the request without a response"
    )
    assert (await pending.reply()).failure == wire.failure(Code.INTERNAL, expected)


async def test_a_model_that_responds_twice(wire: Wire) -> None:
    """HTTP and callers in the process see one of the responses; gRPC refuses both."""
    reply = await wire.infer("double", tensor([1]))
    if wire.name.startswith("grpc"):
        assert reply.failure == wire.failure(Code.INTERNAL, "expected a single response, got 2")
    else:
        assert (reply.failure, reply.model_name) == (None, "double")


@pytest.mark.parametrize("wire_name", ["http-json", "http-binary", "grpc"])
async def test_a_decoupled_model_needs_a_grpc_stream(wire_name: str) -> None:
    expected = (
        "ModelInfer RPC doesn't support models with decoupled transaction policy"
        if wire_name == "grpc"
        else "HTTP end point doesn't support models with decoupled transaction policy"
    )
    async with open_wire(wire_name) as wire:
        reply = await wire.infer("repeat", tensor([1], datatype="INT32"))
        assert reply.failure == wire.failure(Code.UNSUPPORTED, expected)


# Clients that go away.


async def test_a_client_that_goes_away_cancels_its_request(wire: Wire) -> None:
    pending = await wire.ask("held", tensor([1]))
    held = await wire.core.next_held()
    assert not held.is_cancelled
    await pending.cancel()
    assert held.is_cancelled


async def test_a_late_response_to_a_cancelled_request_is_dropped(wire: Wire) -> None:
    pending = await wire.ask("held", tensor([1]))
    held = await wire.core.next_held()
    await pending.cancel()
    held.answer()
    assert (await wire.infer("id_fp32", tensor([1.5]))).values() == [1.5]


# Memory.


@pytest.mark.parametrize("wire_name", WITH_BINARY_DATA)
async def test_a_large_request_is_received_in_the_models_memory(wire_name: str) -> None:
    async with open_wire(wire_name) as wire:
        wire.core.models_with_buffers.add("id_fp32")
        sent = tensor(np.arange(1_000_000, dtype=np.float32))
        reply = await wire.infer("id_fp32", sent)
        assert bytes(reply.outputs[0].data) == sent.data
        (buffer,) = wire.core.buffers
        received = wire.core.requests[0].inputs[0].data
        assert isinstance(received, memoryview)
        assert received.obj is buffer.obj
        # a model's memory begins at a page; the fake's begins anywhere, which gRPC makes up for
        start = address(buffer) if wire_name == "http-binary" else 0
        assert (address(received) - start) % 64 == 0
        del buffer, received


@pytest.mark.parametrize("wire_name", WITH_BINARY_DATA)
async def test_a_large_request_to_a_model_without_memory_of_its_own(wire_name: str) -> None:
    async with open_wire(wire_name) as wire:
        sent = tensor(np.arange(1_000_000, dtype=np.float32))
        reply = await wire.infer("id_fp32", sent)
        assert bytes(reply.outputs[0].data) == sent.data
        assert wire.core.buffers == []
        if wire_name != "http-binary":
            assert address(wire.core.requests[0].inputs[0].data) % 64 == 0


@pytest.mark.parametrize("model", ["identity", "faulty"])
@pytest.mark.parametrize("wire_name", WITH_BINARY_DATA)
async def test_a_models_memory_is_given_back_at_once(wire_name: str, model: str) -> None:
    """Reference counts alone free it: shared memory must not wait for the garbage collector."""
    memory: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def input_buffer(model_name: str, num_bytes: int) -> memoryview:
        array = np.empty(num_bytes, np.uint8)
        memory.append(weakref.ref(array))
        return array.data

    async with open_wire(wire_name) as wire:
        wire.core.input_buffer = input_buffer  # type: ignore[method-assign]
        wire.core.keeps_requests = False
        sent = tensor(np.zeros(250_000, np.float32), "INPUT0")
        gc.disable()
        try:
            reply = await wire.infer(model, sent)
            assert (reply.failure is None) == (model == "identity")
            assert [array() is None for array in memory] == [True]
        finally:
            gc.enable()
