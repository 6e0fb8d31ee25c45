"""Headers that come again with other ids: filled from a template, they are what decoding them would
give, and so are their answers."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.protocol.v2 import json_codec
from naiad.protocol.v2.json_template import recall, without_id
from naiad.protocol.v2.output_format import BINARY_FORM, OutputForms

SPEC = ModelSpec("m", 1, [1], "", 0, {}, {})
DATA = struct.pack("<2f", 1, 2)
INPUTS = [{"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]


def header(id: str | None, **more: Any) -> bytes:
    document = ({} if id is None else {"id": id}) | {"inputs": INPUTS} | more
    return json.dumps(document, separators=(",", ":")).encode()


def decode(text: bytes, data: bytes = DATA) -> tuple[InferRequest, OutputForms]:
    return json_codec.decode_request(text + data, len(text), "m", "", 1 << 20)


def fill(text: bytes, body: bytes, header_length: int) -> InferRequest | None:
    template = recall("m", without_id(text)[0])
    assert template is not None
    return template.fill_body(body, header_length, "m", "")


def test_requests_with_other_ids_have_one_form() -> None:
    requests = [decode(header(id))[0] for id in ("1", "22", "a-b.c:d/e+f=g@h", "X" * 128)]
    assert [request.id for request in requests] == ["1", "22", "a-b.c:d/e+f=g@h", "X" * 128]
    assert requests[0].form is not None
    assert all(request.form is requests[0].form for request in requests)
    assert all(bytes(request.inputs[0].data) == DATA for request in requests)
    assert decode(header(None))[0].form is not requests[0].form


def test_spaces_as_other_clients_write_them() -> None:
    texts = [json.dumps({"id": id, "inputs": INPUTS}).encode() for id in ("1", "2")]
    first, second = (decode(text)[0] for text in texts)
    assert (first.id, second.id) == ("1", "2")
    assert first.form is second.form is not None


@pytest.mark.parametrize("id", ['a"b', "a\\b", "ü", "a b", "X" * 129, "\n", ""])
def test_ids_that_json_escapes_or_that_are_long_are_read_as_ever(id: str) -> None:
    for _ in range(2):
        assert decode(header(id, outputs=[{"name": "O1"}]))[0].id == id


def test_a_second_id_wins_as_in_any_json() -> None:
    rest = header(None)[1:]
    for first in ("a", "b"):
        assert decode(b'{"id":"%b","id":"z",%b' % (first.encode(), rest))[0].id == "z"
        assert decode(b'{"id":"%b","\\u0069d":"z",%b' % (first.encode(), rest))[0].id == "z"
        assert (
            decode(b'{"id":"%b",%b,"id":"%b"}' % (first.encode(), rest[:-1], first.encode()))[0].id
            == first
        )


def test_a_body_that_is_not_the_same_again_is_not_filled() -> None:
    text = header("12")
    decode(text)
    other = header("345")
    assert fill(text, other + DATA, len(other)) is not None
    assert fill(text, other + DATA, len(text)) is None
    assert fill(text, other + DATA + b"more", len(other)) is None
    assert fill(text, other[:-1] + b" " + DATA, len(other)) is None
    assert fill(text, header(None) + DATA, len(header(None))) is None
    assert fill(text, header('1"2') + DATA, len(header('1"2'))) is None
    without = header(None)
    decode(without)
    assert fill(without, without + DATA, len(without)) is not None
    assert fill(without, other + DATA, len(other)) is None
    assert fill(without, without + DATA, len(without) + 1) is None


@given(st.text(max_size=140), st.booleans())
def test_any_id_is_decoded_and_answered(id: str, has_spaces: bool) -> None:
    try:
        id.encode()
    except UnicodeEncodeError:
        return
    text = json.dumps(
        {"id": id, "inputs": INPUTS}, separators=None if has_spaces else (",", ":")
    ).encode()
    assert decode(text)[0].id == id
    assert decode(text)[0].id == id
    check_answer(id, OutputForms(BINARY_FORM), 2)


def check_answer(id: str, forms: OutputForms, times: int = 1) -> None:
    for n in range(times):
        output = Tensor("OUT", "FP32", [2], struct.pack("<2f", n, 2))
        encoded = json_codec.encode_response(InferResponse("m", "1", id, [output]), forms, SPEC)
        body = b"".join(encoded.parts)
        assert (encoded.size, body[encoded.header_length :]) == (len(body), output.data)
        assert encoded.headers.endswith(
            b"Inference-Header-Content-Length: %d\r\n" % encoded.header_length
        )
        expected = {"id": id} if id else {}
        expected |= {"model_name": "m", "model_version": "1"}
        outputs = [
            {"name": "OUT", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
        ]
        assert json.loads(body[: encoded.header_length]) == expected | {"outputs": outputs}


def test_answers_with_ids_of_all_kinds_in_turn() -> None:
    forms = OutputForms(BINARY_FORM)
    for id in (
        "",
        "1",
        "2",
        "33",
        "44",
        'a"',
        "\\",
        "ü",
        "5",
        "",
        "66",
        "xü",
        "77",
        "X" * 128,
        "Y" * 128,
        "Z" * 129,
        "8" * 129,
    ):
        check_answer(id, forms)
