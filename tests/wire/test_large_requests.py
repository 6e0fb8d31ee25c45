"""Requests and responses that take long to decode or encode: the event loop hands them to a thread,
and everything else is as for small ones. The fixture `loop_never_stalls` watches the loop."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest

from naiad.frontends.http.options import HttpOptions
from naiad.frontends.side_thread import INLINE_COPY_BYTES
from naiad.pb.grpc_service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
    TraceSettingRequest,
)
from tests.fakes.core import FakeCore
from tests.wire.grpc_rig import ClientCall, Rig
from tests.wire.http_client import Client, call
from tests.wire.http_rig import serving

COUNT = 60_000
NUMBERS = [index % 100 for index in range(COUNT)]


def tensor(data: Any, datatype: str = "INT32", **more: Any) -> dict[str, Any]:
    return {"name": "IN", "datatype": datatype, "shape": [COUNT], "data": data, **more}


def body(data: Any, datatype: str = "INT32", **more: Any) -> bytes:
    return json.dumps({"inputs": [tensor(data, datatype)], **more}).encode()


async def infer(port: int, model: str, data: bytes, headers: dict[str, str] | None = None) -> Any:
    return await call(port, "POST", f"/v2/models/{model}/infer", data, headers)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_many_numbers_in_json(encoding: str) -> None:
    async with serving() as server:
        data = body(NUMBERS, id="7")
        assert len(data) > 100_000
        if encoding == "gzip":
            data = gzip.compress(data)
        reply = await infer(server.port, "id_int32", data, {"Content-Encoding": encoding})
        assert reply.status == 200
        assert reply.json()["id"] == "7"
        assert reply.json()["outputs"][0]["data"] == NUMBERS


async def test_many_strings_in_json() -> None:
    async with serving() as server:
        strings = [f"täxt {index}" for index in range(COUNT)]
        reply = await infer(server.port, "id_bytes", body(strings, "BYTES"))
        assert reply.json()["outputs"][0]["data"] == strings


async def test_many_numbers_that_json_cannot_write() -> None:
    """NaN and Infinity are written as Triton writes them, in a large response too."""
    async with serving() as server:
        values = np.zeros(COUNT, np.float32)
        values[[5, 50_000]] = [np.nan, np.inf]
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "IN",
                        "datatype": "FP32",
                        "shape": [COUNT],
                        "parameters": {"binary_data_size": values.nbytes},
                    }
                ]
            }
        ).encode()
        reply = await infer(
            server.port,
            "id_fp32",
            head + values.tobytes(),
            {"Inference-Header-Content-Length": str(len(head))},
        )
        assert reply.body.count(b"NaN") == reply.body.count(b"Infinity") == 1
        data = reply.json()["outputs"][0]["data"]
        assert len(data) == COUNT
        assert np.isnan(data[5])
        assert data[50_000] == float("inf")


async def test_a_large_request_with_a_fault() -> None:
    async with serving() as server:
        reply = await infer(server.port, "id_int32", body([*NUMBERS[1:], "x"]))
        assert reply.status == 500
        assert (
            reply.error()
            == "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
        )
        reply = await infer(server.port, "id_int32", body([*NUMBERS, 1]))
        assert (reply.status, reply.error()) == (
            400,
            "Unable to parse 'data': Shape does not match true shape of 'data' field: "
            f"expected {COUNT} values for input 'IN', got {COUNT + 1}",
        )


async def test_the_order_of_checks_is_that_of_small_requests() -> None:
    """A body that takes long to decode has a fault of its own in each case; the model and the
    header length come before it, inputs that the model does not have before strings."""
    length = "Inference-Header-Content-Length"
    async with serving() as server:
        data = body([*NUMBERS, 1])
        for encoding in ("identity", "gzip"):
            sent = gzip.compress(data) if encoding == "gzip" else data
            headers = {"Content-Encoding": encoding, length: "x"}
            reply = await infer(server.port, "nope", sent, headers)
            assert reply.error() == "Request for unknown model: 'nope' is not found"
            reply = await infer(server.port, "id_int32", sent, headers)
            assert reply.error() == f"Unable to parse {length}, got: x"
        strings = {**tensor(["a"] * (COUNT - 1), "BYTES"), "name": "OTHER"}
        reply = await infer(server.port, "id_bytes", json.dumps({"inputs": [strings]}).encode())
        assert reply.error() == "unexpected inference input 'OTHER' for model 'id_bytes'"
        reply = await infer(server.port, "id_bytes", body(["a"] * (COUNT - 1), "BYTES"))
        assert f"expected {COUNT} string elements" in reply.error()


async def test_what_is_not_tensor_data_is_bounded() -> None:
    async with serving(HttpOptions(max_json_size=100_000)) as server:
        data = body(NUMBERS, parameters={"a": "x" * 100_000})
        reply = await infer(server.port, "id_int32", data)
        assert reply.status == 400
        assert "more than 100000 bytes outside of tensor data" in reply.error()
        assert "--http-max-json-size" in reply.error()
        for path in ("/v1/completions", "/v2/models/gen/generate"):
            reply = await call(server.port, "POST", path, b'{"a":"' + b"x" * 100_000 + b'"}')
            assert reply.status == 400
            assert "--http-max-json-size" in reply.error()


async def test_control_bodies_are_small() -> None:
    async with serving() as server:
        for path in ("/v2/logging", "/v2/trace/setting"):
            reply = await call(server.port, "POST", path, b" " * 20_000)
            assert reply.status == 400
            assert reply.error() == (
                "request JSON size of 20000 bytes exceeds the maximum allowed input size of 16384 "
                "bytes. No option increases this limit."
            )


@pytest.mark.parametrize(
    ("document", "status", "text"),
    [
        (b'{"ready":' + b"[" + b"[1]," * 120_000 + b"[1]]}", 400, "Invalid value for 'ready'"),
        (b'{"ready":"' + b"x" * 100_000 + b'"}', 400, "Invalid value for 'ready'"),
        (b" " * 3_000_000 + b'{"ready":true}', 200, ""),
        (b'{"others":[' + b"1," * 900_000 + b'1],"ready":false}', 200, ""),
        (b'{"ready":true' + b" " * 20_000, 500, "failed to parse the request JSON buffer"),
    ],
)
async def test_the_index_reads_bodies_as_large_as_triton_does(
    document: bytes, status: int, text: str
) -> None:
    async with serving() as server:
        reply = await call(server.port, "POST", "/v2/repository/index", document)
        assert reply.status == status
        assert text in (reply.error() if text else "")


async def test_unload_reads_large_bodies_too() -> None:
    async with serving() as server:
        body = b'{"x":[' + b"1," * 20_000 + b'1],"parameters":{"unload_dependents":true}}'
        path = "/v2/repository/models/add_sub/unload"
        assert (await call(server.port, "POST", path, body)).status == 200


async def test_blanks_between_tokens_do_not_count() -> None:
    """63 MB of padding around a small request, as Triton serves it."""
    text = json.dumps(small := {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]})
    for padding in (b" ", b"\n", b"\t"):
        around = padding * (5 << 20)
        document = b'{"inputs":[%b%b],%b"id":"7"}%b' % (around, text.encode(), around, around)
        async with serving() as server:
            reply = await call(
                server.port,
                "POST",
                "/v2/models/id_int32/infer",
                gzip.compress(document, 1),
                headers={"Content-Encoding": "gzip"},
            )
            assert reply.status == 200, reply.error()
            assert reply.json()["outputs"][0]["data"] == small["data"]
            assert reply.json()["id"] == "7"


async def test_blanks_inside_a_string_count() -> None:
    async with serving() as server:
        document = b'{"inputs":[],"id":"%b"}' % (b" " * (5 << 20))
        reply = await call(server.port, "POST", "/v2/models/id_int32/infer", document)
        assert "outside of tensor data" in reply.error()


async def test_a_body_above_both_limits_names_both() -> None:
    async with serving(HttpOptions(max_json_size=1000, max_input_size=2000)) as server:
        for num_bytes, option in (
            (1500, "--http-max-json-size"),
            (2500, "--http-max-json-size and --http-max-input-size"),
        ):
            document = b'{"a":"' + b"x" * (num_bytes - 8) + b'"}'
            reply = await call(server.port, "POST", "/v2/models/gen/generate", document)
            assert reply.error() == (
                f"request JSON size of {num_bytes} bytes exceeds the maximum allowed input size of "
                f"1000 bytes. Use {option} to increase the limit."
            )


async def test_responses_keep_their_order() -> None:
    """A small request that is sent right after a large one waits for its turn."""
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/id_int32/infer", body(NUMBERS, id="large"))
        small = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}
        client.request(
            "POST", "/v2/models/id_int32/infer", json.dumps({**small, "id": "small"}).encode()
        )
        assert (await client.read()).json()["id"] == "large"
        assert (await client.read()).json()["id"] == "small"
        await client.close()


async def test_a_client_that_leaves_a_large_request_reaches_no_model() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/id_int32/infer", body(NUMBERS))
        await client.writer.drain()
        client.reset()
        reply = await infer(server.port, "id_int32", body(NUMBERS, id="next"))
        assert reply.status == 200
        assert [request.id for request in server.core.requests][-1] == "next"


async def test_large_flat_bodies() -> None:
    async with serving() as server:
        text = "word " * 5000
        reply = await call(
            server.port, "POST", "/v2/models/gen/generate", {"text_input": text, "temp": 0.5}
        )
        assert reply.status == 200
        assert server.core.requests[-1].inputs[0].as_numpy().tolist() == [[text.encode()]]


async def test_large_strings_are_counted() -> None:
    data = struct.pack("<I", 1) + b"x"
    head = {
        "name": "IN",
        "datatype": "BYTES",
        "shape": [COUNT - 1],
        "parameters": {"binary_data_size": 5 * COUNT},
    }
    text = json.dumps({"inputs": [head]}).encode()
    async with serving() as server:
        reply = await infer(
            server.port,
            "id_bytes",
            text + data * COUNT,
            {"Inference-Header-Content-Length": str(len(text))},
        )
        assert reply.status == 400
        assert reply.error() == (
            f"[request id: <id_unknown>] unexpected number of string elements {COUNT} for "
            f"inference input 'IN' for model 'id_bytes', expecting {COUNT - 1}"
        )


LARGE = np.arange(INLINE_COPY_BYTES // 4 + 1, dtype=np.float32)


def is_in_shared_memory(core: FakeCore) -> bool:
    """The only request has its data where the workers read it: nothing copies it on the loop."""
    data, buffer = core.requests[0].inputs[0].data, core.buffers[-1]
    return np.shares_memory(np.frombuffer(data, np.uint8), np.frombuffer(buffer, np.uint8))


async def test_a_large_decompressed_tensor_is_moved_by_the_thread() -> None:
    async with serving() as server:
        server.core.models_with_buffers.add("id_fp32")
        parameters = {"binary_data_size": LARGE.nbytes}
        tensor = {"name": "IN", "datatype": "FP32", "shape": [LARGE.size], "parameters": parameters}
        outputs = [{"name": "OUT", "parameters": {"binary_data": True}}]
        head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        data = gzip.compress(head + LARGE.tobytes(), 1)
        headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
        reply = await infer(server.port, "id_fp32", data, headers)
        assert reply.status == 200, reply.body
        assert reply.body.endswith(LARGE.tobytes())
        assert is_in_shared_memory(server.core)


# gRPC.


@pytest.mark.parametrize("path", ["ModelInfer", "ModelStreamInfer"])
async def test_a_large_decompressed_message_is_moved_by_the_thread(path: str) -> None:
    rig = Rig()
    rig.core.models_with_buffers.add("id_fp32")
    message = ModelInferRequest(model_name="id_fp32")
    message.inputs.add(name="IN", datatype="FP32", shape=[LARGE.size])
    message.raw_input_contents.append(LARGE.tobytes())
    try:
        call = rig.open(path, {"grpc-encoding": "gzip"})
        rig.send(call, gzip.compress(message.SerializeToString(), 1), end=True, flag=1)
        await finish(rig, call)
        assert call.status == 0, call.message
        assert is_in_shared_memory(rig.core)
    finally:
        await rig.close()


def request(datatype: str = "INT32", request_id: str = "") -> ModelInferRequest:
    message = ModelInferRequest(model_name=f"id_{datatype.lower()}", id=request_id)
    message.inputs.add(name="IN", datatype=datatype, shape=[COUNT])
    return message


async def finish(rig: Rig, call: ClientCall) -> ClientCall:
    """Waits for the end of the call, whenever the side thread has done what it was given."""
    async with asyncio.timeout(30):
        while call.status is None:
            await side_thread_idle(rig)
            await rig.settle()
    return call


async def side_thread_idle(rig: Rig) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    rig.frontend._side_thread.run(lambda: None, done.set_result, done.set_result)
    await done


async def ask(message: bytes, path: str = "ModelInfer") -> ClientCall:
    rig = Rig()
    try:
        return await finish(rig, await rig.unary(path, message))
    finally:
        await rig.close()


async def test_typed_contents() -> None:
    message = request(request_id="7")
    message.inputs[0].contents.int_contents.extend(NUMBERS)
    reply = await ask(message.SerializeToString())
    assert reply.status == 0, reply.message
    response = ModelInferResponse.FromString(reply.messages[0][1])
    assert response.id == "7"
    assert np.frombuffer(response.raw_output_contents[0], np.int32).tolist() == NUMBERS


async def test_many_names() -> None:
    message = request()
    for index in range(20_000):
        message.outputs.add(name=f"out-{index}")
    message.raw_input_contents.append(bytes(4 * COUNT))
    reply = await ask(message.SerializeToString())
    assert reply.status == 3
    assert reply.message == "the request has more than 16384 outputs"


async def test_an_error_names_the_unknown_model_first() -> None:
    message = request()
    message.model_name = "nobody"
    message.inputs[0].contents.fp32_contents.extend([0.5] * COUNT)
    reply = await ask(message.SerializeToString())
    assert "unknown model" in reply.message


async def test_large_strings_of_grpc_are_counted() -> None:
    message = request("BYTES")
    message.raw_input_contents.append(bytes(4 * (COUNT + 1)))
    reply = await ask(message.SerializeToString())
    assert reply.status == 3
    assert f"unexpected number of string elements {COUNT + 1}" in reply.message


async def test_control_messages_are_small() -> None:
    settings = TraceSettingRequest()
    for index in range(10_000):
        settings.settings[str(index)].value.append("x")
    reply = await ask(settings.SerializeToString(), "TraceSetting")
    assert reply.status == 8
    assert reply.message.endswith("vs. 65536)")


async def test_a_stream_keeps_its_order() -> None:
    rig = Rig()
    stream = rig.open("ModelStreamInfer")
    for number in range(6):
        message = request(request_id=str(number))
        if number % 2:
            message.inputs[0].shape[0] = 1
            message.raw_input_contents.append(bytes(4))
        else:
            message.inputs[0].contents.int_contents.extend(NUMBERS)
        rig.send(stream, message.SerializeToString())
    rig.half_close(stream)
    await finish(rig, stream)
    responses = [ModelStreamInferResponse.FromString(data) for _, data in stream.messages]
    assert [response.error_message for response in responses] == [""] * 6
    assert [response.infer_response.id for response in responses] == list("012345")
    assert stream.status == 0
    await rig.close()


async def test_classes_of_a_large_output() -> None:
    """Over both methods; the stream keeps its order meanwhile."""
    rig = Rig()
    message = ModelInferRequest(model_name="id_fp32", id="large")
    message.inputs.add(name="IN", datatype="FP32", shape=[COUNT])
    message.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    message.raw_input_contents.append(np.arange(COUNT, dtype=np.float32).tobytes())
    small = ModelInferRequest(model_name="id_fp32", id="small")
    small.inputs.add(name="IN", datatype="FP32", shape=[1])
    small.raw_input_contents.append(bytes(4))
    reply = await finish(rig, await rig.unary("ModelInfer", message.SerializeToString()))
    stream = rig.open("ModelStreamInfer")
    rig.send(stream, message.SerializeToString())
    rig.send(stream, small.SerializeToString())
    rig.half_close(stream)
    await finish(rig, stream)
    first, second = (ModelStreamInferResponse.FromString(data) for _, data in stream.messages)
    assert (first.infer_response.id, second.infer_response.id) == ("large", "small")
    for response in (ModelInferResponse.FromString(reply.messages[0][1]), first.infer_response):
        (data,) = response.raw_output_contents
        top = [f"{COUNT - 1}.000000:{COUNT - 1}", f"{COUNT - 2}.000000:{COUNT - 2}"]
        assert data == b"".join(struct.pack("<I", len(text)) + text.encode() for text in top)
    await rig.close()
