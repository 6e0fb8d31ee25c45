"""What people send to /infer besides Triton's own form: nested lists, forms, files."""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np
import pytest

from tests.wire.http_client import Reply, call, on_uvloop
from tests.wire.http_rig import serving

BOUNDARY = "----abc"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
PNG = {"Content-Type": "image/png"}


def form(*parts: tuple[str, bytes], head: str = "") -> bytes:
    body = b"".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{head}\r\n\r\n'.encode()
        + value
        + b"\r\n"
        for name, value in parts
    )
    return body + f"--{BOUNDARY}--\r\n".encode()


async def send(
    port: int, model: str, body: Any, headers: dict[str, str] | None = None, path: str = "infer"
) -> Reply:
    return await call(port, "POST", f"/v2/models/{model}/{path}", body, headers)


def seen(reply: Reply) -> Any:
    """What the model was given: inputs, parameters, id, ..."""
    assert reply.status == 200, reply.body
    return ast.literal_eval(reply.json()["OUT"])


# Nested lists.


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([["a"], ["b"]], [2, 1]),
        (["a", "b"], [2, 1]),
        ([["a"]], [1, 1]),
        ("a", [1, 1]),
    ],
)
@on_uvloop
async def test_a_batch_may_be_nested(value: Any, shape: list[int]) -> None:
    async with serving() as server:
        inputs = seen(await send(server.port, "gen", {"text_input": value}))[0]
        assert inputs["text_input"][0] == shape


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([["a"], ["b", "c"]], "input 'text_input' has nested lists of different lengths"),
        ([["a", "b"]], "input 'text_input' has shape [1, 2] in the JSON, expected shape [-1, 1]"),
        ([[["a"]]], "input 'text_input' has shape [1, 1, 1] in the JSON, expected shape [-1, 1]"),
        (None, "input 'text_input' has a null where a value is expected"),
        ([["a"], [None]], "input 'text_input' has a null where a value is expected"),
        (["a", ["b"]], "input 'text_input' has nested lists of different lengths"),
    ],
)
@on_uvloop
async def test_a_list_that_does_not_fit(value: Any, problem: str) -> None:
    async with serving() as server:
        reply = await send(server.port, "gen", {"text_input": value})
        assert (reply.status, reply.error()) == (400, problem)


@on_uvloop
async def test_generate_reads_only_the_outermost_list() -> None:
    async with serving() as server:
        reply = await send(server.port, "gen", {"max_tokens": [[1], [2]]}, path="generate")
        assert reply.status == 200
        reply = await send(server.port, "gen", {"max_tokens": None}, path="generate")
        assert (reply.status, "null" in reply.error()) == (500, False)


@pytest.mark.parametrize("is_nested", [True, False])
@on_uvloop
async def test_an_image_may_be_longer_than_other_json(is_nested: bool) -> None:
    image = np.arange(3 * 224 * 224, dtype=np.float32).reshape(3, 224, 224)
    value = image.tolist() if is_nested else image.ravel().tolist()
    async with serving() as server:
        reply = await send(server.port, "id_fp32", {"IN": image.ravel().tolist()})
        assert reply.status == 200
        assert np.array_equal(np.array(reply.json()["OUT"], np.float32), image.ravel())
        if is_nested:
            reply = await send(server.port, "id_fp32", {"IN": value})
            assert (reply.status, reply.error()) == (
                400,
                "input 'IN' has shape [3, 224, 224] in the JSON, expected shape [-1]",
            )


@on_uvloop
async def test_a_long_list_with_a_fault() -> None:
    numbers = list(range(100_000))
    async with serving() as server:
        for value, status, problem in [
            ([*numbers, None], 500, "attempt to access JSON non-number"),
            ([numbers, numbers[1:]], 400, "has nested lists of different lengths"),
            ([*numbers, "x"], 500, "attempt to access JSON non-number"),
        ]:
            reply = await send(server.port, "id_fp32", {"IN": value})
            assert (reply.status, problem in reply.error()) == (status, True), reply.body
        other = json.dumps({"IN": [1], "x": numbers}).encode()
        reply = await send(server.port, "id_fp32", other)
        assert (reply.status, "JSON values outside of tensor data" in reply.error()) == (400, True)


# Files.


@on_uvloop
async def test_a_file_is_the_input_of_its_model() -> None:
    image = b"\x89PNG\r\n" + bytes(range(256)) * 1000
    async with serving() as server:
        for headers in (PNG, {"Content-Type": "application/octet-stream"}):
            inputs, _, _, *_ = seen(await send(server.port, "gen", image, headers))
            assert inputs == {"text_input": [[1, 1], [[image]]]}
        text = seen(await send(server.port, "gen", b"hello", {"Content-Type": "text/plain"}))
        assert text[0] == {"text_input": [[1, 1], [[b"hello"]]]}


@on_uvloop
async def test_a_body_that_begins_as_an_object_is_json_under_any_open_type() -> None:
    flat = b' {"text_input": "a"}'
    async with serving() as server:
        for kind in ("application/octet-stream", "text/plain", "application/x-www-form-urlencoded"):
            inputs = seen(await send(server.port, "gen", flat, {"Content-Type": kind}))[0]
            assert inputs == {"text_input": [[1, 1], [[b"a"]]]}
        inputs = seen(await send(server.port, "gen", flat, PNG))[0]
        assert inputs == {"text_input": [[1, 1], [[flat]]]}


@on_uvloop
async def test_a_file_for_a_model_of_numbers() -> None:
    async with serving() as server:
        reply = await send(server.port, "id_fp32", b"\x89PNG", PNG)
        assert (reply.status, reply.error()) == (
            400,
            "a body of type 'image/png' is the only input of a model, of type BYTES; model "
            "'id_fp32' has 'IN' (FP32 [-1]): send a form (-F IN=...), or JSON {\"IN\": ...}",
        )


# Forms.


@on_uvloop
async def test_a_form_has_files_and_values() -> None:
    image = b"\r\n--" + bytes(range(256)) * 400
    async with serving() as server:
        body = form(
            ("text_input", image),
            ("max_tokens", b"5"),
            ("stream", b"true"),
            ("temp", b"0.5"),
            ("words", b"a"),
            ("words", b"b"),
            ("id", b"r7"),
        )
        inputs, parameters, request_id, *_ = seen(await send(server.port, "gen", body, FORM))
        assert inputs == {
            "text_input": [[1, 1], [[image]]],
            "max_tokens": [[1, 1], [[5]]],
            "stream": [[1, 1], [[True]]],
            "temp": [[1, 1], [[0.5]]],
            "words": [[1, 2], [[b"a", b"b"]]],
        }
        assert (parameters, request_id) == ({}, "r7")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (form(("max_tokens", b"many")), "input 'max_tokens' of type INT32 cannot be 'many'"),
        (form(("nothing", b"1")), "the form has 'nothing', which is no input of model 'gen'"),
        (form(("sequence_id", b"1")), "a form cannot have 'sequence_id'"),
        (form(("id", b"1"), ("id", b"2")), "the form has 'id' 2 times"),
        (form(("text_input", b"a"))[:-8], "the form ends before its last boundary"),
        (b"text", "the form does not begin with its boundary"),
        (form(("text_input", b"a")).replace(b"name=", b"no="), "a part of the form has no name"),
        (
            form(("text_input", b"a"), head="\r\nContent-Transfer-Encoding: base64"),
            "a part of the form has Content-Transfer-Encoding base64",
        ),
        (form(*[("text_input", b"a")] * 1025), "the form has more than 1024 parts"),
        (form(*[("text_input", b"a")] * 5), "batch-size"),
    ],
)
@on_uvloop
async def test_a_form_that_cannot_be_read(body: bytes, problem: str) -> None:
    async with serving() as server:
        reply = await send(server.port, "gen", body, FORM)
        assert (reply.status, problem in reply.error()) == (400, True), reply.body


@on_uvloop
async def test_a_form_without_a_boundary() -> None:
    async with serving() as server:
        reply = await send(server.port, "gen", b"a", {"Content-Type": "multipart/form-data"})
        assert (reply.status, reply.error()) == (400, "the Content-Type of a form has no boundary")


@pytest.mark.parametrize("headers", [FORM, PNG, {"Content-Type": "application/octet-stream"}])
@on_uvloop
async def test_a_page_may_send_no_form_and_no_file(headers: dict[str, str]) -> None:
    async with serving() as server:
        page = {**headers, "Origin": "http://test", "Sec-Fetch-Site": "same-origin"}
        reply = await send(server.port, "gen", form(("text_input", b"a")), page)
        assert reply.status == 403


@on_uvloop
async def test_a_length_of_the_json_makes_it_tritons_form() -> None:
    async with serving() as server:
        headers = {**PNG, "Inference-Header-Content-Length": "0"}
        reply = await send(server.port, "id_bytes", b"abc", headers)
        assert reply.status == 400
        assert "input shape [1]" in reply.error()
