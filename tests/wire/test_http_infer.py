"""POST /infer over a socket: what only HTTP has. What all protocols have in common is in
test_infer.py."""

from __future__ import annotations

import ast
import gzip
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from naiad.errors import Code
from naiad.frontends.http.options import HttpOptions
from tests.wire.http_client import Client, Reply, call, on_uvloop
from tests.wire.http_rig import serving

INFER = "/v2/models/{}/infer"
LENGTH = "Inference-Header-Content-Length"
UNPACKED = (
    "Decompressed data size exceeds the maximum allowed value of {} bytes. "
    "Use --http-max-input-size to increase the limit."
)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2.5]} | fields


async def infer(
    port: int, model: str, document: Any, tail: bytes = b"", headers: dict[str, str] | None = None
) -> Reply:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    more = {LENGTH: str(len(body))} if tail else {}
    return await call(port, "POST", INFER.format(model), body + tail, more | (headers or {}))


@on_uvloop
async def test_json_in_and_out() -> None:
    async with serving() as server:
        reply = await infer(server.port, "id_fp32", {"id": "q", "inputs": [tensor()]})
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
        assert reply.body == (
            b'{"id":"q","model_name":"id_fp32","model_version":"1",'
            b'"outputs":[{"name":"OUT","datatype":"FP32","shape":[2],"data":[1.0,2.5]}]}'
        )


@on_uvloop
async def test_binary_in_and_out() -> None:
    async with serving() as server:
        inputs = [tensor(data=None, parameters={"binary_data_size": 8})]
        del inputs[0]["data"]
        data = struct.pack("<2f", 1, 2)
        document = {
            "inputs": inputs,
            "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
        }
        reply = await infer(server.port, "id_fp32", document, data)
        length = int(reply.headers[LENGTH])
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert reply.body[length:] == data
        assert json.loads(reply.body[:length])["outputs"][0]["parameters"] == {
            "binary_data_size": 8
        }


@on_uvloop
async def test_responses_on_one_connection_have_the_ids_of_their_requests() -> None:
    inputs = [
        {"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    ]
    outputs = [{"name": "OUT", "parameters": {"binary_data": True}}]
    async with serving() as server:
        client = await Client.connect(server.port)
        for n, id in enumerate(
            ["1", "2", "30", "4", "50", 'a"b', "ü", "x" * 200, "6", None, "7", None]
        ):
            document = ({} if id is None else {"id": id}) | {"inputs": inputs, "outputs": outputs}
            text, data = (
                json.dumps(document, separators=(",", ":")).encode(),
                struct.pack("<2f", n, 2),
            )
            reply = await client.call(
                "POST", INFER.format("id_fp32"), text + data, {LENGTH: str(len(text))}
            )
            length = int(reply.headers[LENGTH])
            assert (json.loads(reply.body[:length]).get("id"), reply.body[length:]) == (id, data)
        await client.close()


@on_uvloop
async def test_a_raw_binary_body() -> None:
    async with serving() as server:
        data = struct.pack("<2f", 1, 2)
        reply = await call(server.port, "POST", INFER.format("id_fp32"), data, {LENGTH: "0"})
        assert reply.status == 200
        assert reply.body[int(reply.headers[LENGTH]) :] == data
        reply = await call(server.port, "POST", INFER.format("id_fp32"))
        assert reply.json()["outputs"] == [
            {"name": "OUT", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
        ]
        assert LENGTH not in reply.headers


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        ("1_0", "Unable to parse Inference-Header-Content-Length, got: 1_0"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ "
            "-2147483648, 2147483647 ], got: 99999999999",
        ),
        ("-1", "inference header size should be in range (0, 5), got: -1"),
        ("6", "inference header size should be in range (0, 5), got: 6"),
    ],
)
@on_uvloop
async def test_wrong_header_lengths(length: str, message: str) -> None:
    async with serving() as server:
        reply = await call(server.port, "POST", INFER.format("id_fp32"), b"12345", {LENGTH: length})
        assert (reply.status, reply.error()) == (400, message)


@pytest.mark.parametrize(("number", "code"), list(enumerate(Code)))
@on_uvloop
async def test_errors_are_json_and_overload_says_when_to_try_again(number: int, code: Code) -> None:
    async with serving() as server:
        document = {"inputs": [tensor(name="CODE", datatype="INT32", shape=[1], data=[number])]}
        reply = await infer(server.port, "err", document)
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.error() == f"code {code.name}"
        assert reply.headers.get("Retry-After") == ("7" if code is Code.UNAVAILABLE else None)


@pytest.mark.parametrize(
    ("model", "document", "status", "message"),
    [
        ("nope", b"{bad", 404, "Request for unknown model: 'nope' is not found"),
        (
            "id_fp32",
            b"{bad",
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
        (
            "rep",
            b"1",
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
        ("id_fp32", b"[" * 5000, 500, "failed to parse the request JSON buffer: Missing a comma"),
    ],
)
@on_uvloop
async def test_bodies_that_cannot_be_read(
    model: str, document: Any, status: int, message: str
) -> None:
    async with serving() as server:
        reply = await infer(server.port, model, document)
        assert reply.status == status
        assert reply.error().startswith(message)


@on_uvloop
async def test_fp16_outputs_cannot_be_json() -> None:
    async with serving() as server:
        inputs = [
            {"name": "IN", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}}
        ]
        reply = await infer(server.port, "id_fp16", {"inputs": inputs}, b"ab")
        assert (reply.status, reply.error()) == (
            400,
            "sending FP16 data via JSON is not supported. Please use the binary data format for "
            "output OUT",
        )


@on_uvloop
async def test_the_models_parameters_stand_before_the_outputs() -> None:
    async with serving() as server:
        reply = await infer(server.port, "with_parameters", {"inputs": [tensor()]})
        assert list(reply.json()) == ["model_name", "model_version", "parameters", "outputs"]


def seen(reply: Reply) -> Any:
    """What the `params` model was given: inputs, parameters, id, sequence id, start, end, priority,
    timeout."""
    assert reply.status == 200, reply.body
    document = reply.json()
    return ast.literal_eval(
        document["outputs"][0]["data"][0] if "outputs" in document else document["OUT"]
    )


TEXT = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["x"]}


@on_uvloop
async def test_forwarded_headers_keep_the_case_of_their_names() -> None:
    async with serving(HttpOptions(header_forward_pattern="my_.*")) as server:
        headers = {"My_Header": "1", "other": "2", "x-my_thing": "3"}
        reply = await infer(
            server.port, "params", {"inputs": [TEXT], "parameters": {"a": 1}}, headers=headers
        )
        assert seen(reply)[1] == {"a": 1, "My_Header": "1", "x-my_thing": "3"}
        reply = await call(server.port, "POST", "/v2/models/params/generate", {"IN": "x"}, headers)
        assert seen(reply)[1] == {"My_Header": "1", "x-my_thing": "3"}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [(".*", "priority"), ("TRITON", "triton_x"), ("", "my_x"), ("(?-i)MY", "my_x")],
)
@on_uvloop
async def test_headers_that_are_not_forwarded(pattern: str, name: str) -> None:
    async with serving(HttpOptions(header_forward_pattern=pattern)) as server:
        for path, body in (
            (INFER.format("params"), {"inputs": [TEXT]}),
            ("/v2/models/params/generate", {"IN": "x"}),
        ):
            reply = await call(server.port, "POST", path, body, {name: "1"})
            if name == "my_x":
                assert seen(reply)[1] == {}
            else:
                assert (reply.status, reply.error()) == (
                    400,
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
                )


# Beyond Triton: a flat body.


@on_uvloop
async def test_a_flat_body_gets_the_response_of_generate() -> None:
    async with serving() as server:
        flat = {"text_input": "hi", "max_tokens": 3, "temperature": 0.5, "request_id": "r1"}
        reply = await infer(server.port, "gen", flat)
        document = reply.json()
        assert (reply.status, document["request_id"], document["model_name"]) == (200, "r1", "gen")
        inputs, parameters, request_id, *_ = seen(reply)
        assert inputs == {"text_input": [[1, 1], [[b"hi"]]], "max_tokens": [[1, 1], [[3]]]}
        assert (parameters, request_id) == ({"temperature": 0.5}, "r1")
        assert (await infer(server.port, "rep", {"IN": [2]})).json()["OUT"] == 2


@pytest.mark.parametrize("body", [[{"text_input": "hi"}], "text_input", 7, None])
@on_uvloop
async def test_any_other_json_without_inputs_gets_the_error_of_triton(body: Any) -> None:
    async with serving() as server:
        reply = await infer(server.port, "gen", body)
        assert (reply.status, reply.error()) == (
            500,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
        )


@on_uvloop
async def test_a_flat_body_that_cannot_be_converted() -> None:
    async with serving() as server:
        reply = await infer(server.port, "gen", {"text_input": 5})
        assert (reply.status, reply.error()) == (
            500,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        )
        reply = await infer(server.port, "gen", {"max_tokens": 5})
        assert reply.status == 200


# Compression.


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
@pytest.mark.parametrize("count", [2, 5000])
@on_uvloop
async def test_compressed_bodies(encoding: str, pack: Callable[[bytes], bytes], count: int) -> None:
    async with serving() as server:
        values = np.random.default_rng(1).random(count).tolist()
        body = json.dumps(
            {"inputs": [tensor(datatype="FP64", shape=[count], data=values)]}
        ).encode()
        reply = await call(
            server.port, "POST", INFER.format("id_fp64"), pack(body), {"Content-Encoding": encoding}
        )
        assert reply.json()["outputs"][0]["data"] == values


@pytest.mark.parametrize(
    ("encoding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
@pytest.mark.parametrize("count", [2, 50_000])
@on_uvloop
async def test_compressed_responses(
    encoding: str, unpack: Callable[[bytes], bytes], count: int
) -> None:
    async with serving() as server:
        document = {
            "inputs": [tensor(shape=[count], data=[0.5] * count)],
            "parameters": {"binary_data_output": True},
        }
        reply = await infer(server.port, "id_fp32", document, headers={"Accept-Encoding": encoding})
        assert reply.headers["Content-Encoding"] == encoding
        body = unpack(reply.body)
        length = int(reply.headers[LENGTH])
        assert json.loads(body[:length])["outputs"][0]["parameters"] == {
            "binary_data_size": 4 * count
        }
        assert body[length:] == struct.pack("<f", 0.5) * count


@pytest.mark.parametrize("encoding", ["br", "GZIP", "gzip, deflate", "x-gzip"])
@on_uvloop
async def test_unknown_encodings(encoding: str) -> None:
    async with serving() as server:
        reply = await infer(
            server.port, "id_fp32", {"inputs": [tensor()]}, headers={"Content-Encoding": encoding}
        )
        assert (reply.status, reply.error()) == (501, "Unsupported compression type")
        assert reply.headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize("size", [1000, 10_000_000])
@on_uvloop
async def test_a_compressed_body_that_unpacks_beyond_the_limit(size: int) -> None:
    async with serving(HttpOptions(max_input_size=500)) as server:
        reply = await call(
            server.port,
            "POST",
            INFER.format("id_fp32"),
            gzip.compress(bytes(size))[:500],
            {"Content-Encoding": "gzip"},
        )
        assert reply.status == 400
        assert reply.error() == UNPACKED.format(500)


@on_uvloop
async def test_a_larger_one_is_unpacked_in_a_thread() -> None:
    async with serving(HttpOptions(max_input_size=100_000)) as server:
        bomb = gzip.compress(np.random.default_rng(1).bytes(5000) + bytes(10_000_000))
        reply = await call(
            server.port, "POST", INFER.format("id_fp32"), bomb, {"Content-Encoding": "gzip"}
        )
        assert (reply.status, reply.error()) == (400, UNPACKED.format(100_000))


# Limits.


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            {},
            "request JSON size of 2000 bytes exceeds the maximum allowed input size of 1000 bytes.",
        ),
        (
            {LENGTH: "0"},
            "Raw input has a byte_size (2000 bytes) that exceeds the maximum allowed value of "
            "1000 bytes.",
        ),
        (
            {LENGTH: "100"},
            "request JSON size of 2000 bytes exceeds the maximum allowed input size of 1000 bytes.",
        ),
    ],
)
@on_uvloop
async def test_bodies_above_the_limit(headers: dict[str, str], message: str) -> None:
    async with serving(HttpOptions(max_input_size=1000)) as server:
        client = await Client.connect(server.port)
        reply = await client.call("POST", INFER.format("id_fp32"), bytes(2000), headers)
        assert (reply.status, reply.headers["Connection"]) == (400, "close")
        assert reply.error() == f"{message} Use --http-max-input-size to increase the limit."
        assert await client.is_closed_by_server()
        await client.close()


@on_uvloop
async def test_an_oversized_upload_gets_its_response_while_it_is_still_sending() -> None:
    async with serving(HttpOptions(max_input_size=1000)) as server:
        client = await Client.connect(server.port)
        client.request("POST", INFER.format("id_fp32"), bytes(20_000_000))
        reply = await client.read()
        assert reply.status == 400
        await client.close()


@on_uvloop
async def test_a_chunked_body_above_the_limit() -> None:
    async with serving(HttpOptions(max_input_size=1000)) as server:
        client = await Client.connect(server.port)
        client.send(b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send((b"100\r\n" + bytes(256) + b"\r\n") * 5)
        reply = await client.read()
        assert reply.error() == (
            "request JSON size of 1024 bytes exceeds the maximum allowed input size of 1000 bytes. "
            "Use --http-max-input-size to increase the limit."
        )
        await client.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/id_fp32/generate",
        "/v2/models/id_fp32/generate_stream",
        "/v2/repository/index",
        "/v2/repository/models/id_fp32/load",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/nowhere",
        "/v1/chat/completions",
    ],
)
@on_uvloop
async def test_one_text_for_large_bodies_on_every_route(path: str) -> None:
    async with serving(HttpOptions(max_input_size=1000)) as server:
        reply = await call(server.port, "POST", path, bytes(2000))
        assert (reply.status, reply.error()) == (
            400,
            "request JSON size of 2000 bytes exceeds the maximum allowed input size of 1000 bytes. "
            "Use --http-max-input-size to increase the limit.",
        )


@on_uvloop
async def test_a_length_next_to_a_chunked_body() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        body = json.dumps({"inputs": [tensor()]}).encode()
        client.send(
            b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nContent-Length: 7\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        )
        client.request("GET", "/v2/health/live")
        reply = await client.read()
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
        assert reply.json()["outputs"][0]["data"] == [1.0, 2.5]
        assert await client.is_closed_by_server()
        await client.close()


# The order of checks.


@pytest.mark.parametrize(
    "headers",
    [{"Content-Encoding": "gzip"}, {"Content-Encoding": "br"}, {LENGTH: "x"}, {LENGTH: "99"}],
)
@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream"])
@on_uvloop
async def test_the_model_is_looked_up_before_the_body_and_its_headers(
    route: str, headers: dict[str, str]
) -> None:
    async with serving() as server:
        reply = await call(server.port, "POST", f"/v2/models/nope/{route}", b"{", headers)
        assert (reply.status, reply.error()) == (
            404,
            "Request for unknown model: 'nope' is not found",
        )


@pytest.mark.parametrize(
    ("body", "length", "message"),
    [
        (b"not gzip", "x", "failed to decompress the request body: it is not valid gzip data"),
        (gzip.compress(b"{"), "x", f"Unable to parse {LENGTH}, got: x"),
        (gzip.compress(b"{"), "9", "inference header size should be in range (0, 1), got: 9"),
    ],
)
@on_uvloop
async def test_a_body_is_unpacked_before_the_length_of_its_header_is_read(
    body: bytes, length: str, message: str
) -> None:
    async with serving() as server:
        headers = {LENGTH: length, "Content-Encoding": "gzip"}
        reply = await call(server.port, "POST", INFER.format("id_fp32"), body, headers)
        assert (reply.status, reply.error()) == (400, message)


@on_uvloop
async def test_an_empty_content_encoding_is_none() -> None:
    async with serving() as server:
        reply = await infer(
            server.port, "id_fp32", {"inputs": [tensor()]}, headers={"Content-Encoding": ""}
        )
        assert reply.status == 200


@pytest.mark.parametrize("number", [b"1" * 400, b"1" * 5000, b"1e999"])
@on_uvloop
async def test_a_number_that_is_too_large_is_the_clients_error(number: bytes) -> None:
    document = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[%b]}]}' % number
    async with serving() as server:
        reply = await infer(server.port, "id_fp32", document)
        assert reply.status == 400
        assert "Number too big to be stored in double." in reply.error()


@on_uvloop
async def test_other_fields_than_data_may_be_nested_in_any_way() -> None:
    deep = b"[" * 250_000 + b"true" + b"]" * 250_000
    async with serving() as server:
        small = b"[" * 5_000 + b"true" + b"]" * 5_000
        reply = await call(server.port, "POST", "/v2/repository/index", b'{"ready":%b}' % small)
        assert (reply.status, reply.error()) == (
            400,
            "Invalid value for 'ready': expected a boolean",
        )
        reply = await infer(server.port, "id_fp32", b'{"inputs":[],"id":%b}' % deep)
        assert (reply.status, reply.error()) == (
            500,
            "Unable to parse 'id': attempt to access JSON non-string as string",
        )
        document = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":%b}]}' % deep
        reply = await infer(server.port, "id_fp32", document)
        assert (reply.status, reply.error()) == (
            400,
            "JSON nesting depth exceeds maximum allowed limit (100)",
        )


@on_uvloop
async def test_responses_to_pipelined_requests_keep_their_order() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        held = json.dumps({"inputs": [tensor()], "id": "slow"}).encode()
        quick = json.dumps({"inputs": [tensor()], "id": "quick"}).encode()
        client.request("POST", INFER.format("held"), held)
        client.request("POST", INFER.format("id_fp32"), quick)
        (await server.core.next_held()).stream.put(None, True)
        assert (await client.read()).status == 500
        assert (await client.read()).json()["id"] == "quick"
        await client.close()


@on_uvloop
async def test_a_body_of_three_hundred_megabytes() -> None:
    size = 300_000_000
    async with serving(HttpOptions(max_input_size=size + 1000)) as server:
        document = {
            "inputs": [
                {
                    "name": "IN",
                    "datatype": "UINT8",
                    "shape": [size],
                    "parameters": {"binary_data_size": size},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
        header = json.dumps(document).encode()
        client = await Client.connect(server.port)
        client.send(
            f"POST {INFER.format('id_uint8')} HTTP/1.1\r\n"
            f"{LENGTH}: {len(header)}\r\nContent-Length: {len(header) + size}\r\n\r\n".encode()
        )
        client.send(header)
        block = bytes(range(250)) * 4000
        for _ in range(size // len(block)):
            client.send(block)
            await client.writer.drain()
        reply = await client.read_head()
        await client.reader.readexactly(int(reply.headers[LENGTH]))
        for _ in range(size // len(block)):
            assert await client.reader.readexactly(len(block)) == block
        await client.close()
