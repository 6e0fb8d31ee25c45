"""What a layout makes of the next message is what decode_request and encode_response make of it."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.fastpath.grpc_layout import MessageLayout, learn_message, learn_response
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.protocol.v2.grpc_codec import decode_request, encode_response, read_template

READ = lru_cache(read_template)
SPEC = ModelSpec("m", 1, [1], "python", 0, {}, {})


def request(raw: list[bytes], request_id: str = "", version: str = "") -> ModelInferRequest:
    message = ModelInferRequest(
        model_name="m:m", model_version=version, id=request_id, raw_input_contents=raw
    )
    for at, data in enumerate(raw):
        message.inputs.add(name=f"IN:{at}", datatype="UINT8", shape=[len(data)])
    message.outputs.add(name="OUT")
    return message


def learn(message: bytes) -> MessageLayout | None:
    return learn_message(message, len(message), READ)


def split(layout: MessageLayout, message: bytes) -> list[bytes] | None:
    """The parts of a message, as the transport finds them; None when it has another layout."""
    parts, at = [], 0
    for piece in layout.pieces:
        size = piece if isinstance(piece, int) else len(piece)
        part = message[at : at + size]
        at += size
        if isinstance(piece, int):
            parts.append(part)
        elif part != piece:
            return None
    return parts if at == len(message) else None


def fields(request: InferRequest) -> tuple[object, ...]:
    return (
        request.model_name,
        request.model_version,
        request.id,
        request.inputs,
        request.requested_outputs,
        request.parameters,
    )


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    st.text(max_size=20),
    st.sampled_from(["", "1"]),
    st.data(),
)
def test_the_next_request(
    raw: list[bytes], request_id: str, version: str, data: st.DataObject
) -> None:
    layout = learn(request(raw, request_id, version).SerializeToString())
    assert layout is not None
    size = len(request_id.encode())
    next_id = data.draw(
        st.text(max_size=20).filter(lambda text: len(text.encode()) == size) | st.just(request_id)
    )
    message = request(
        [data.draw(st.binary(min_size=len(one), max_size=len(one))) for one in raw],
        next_id,
        version,
    ).SerializeToString()
    parts = split(layout, message)
    assert parts is not None
    planned = layout.decode(parts)
    decoded, _ = decode_request(message, READ)
    assert planned is not None
    assert fields(planned) == fields(decoded)
    assert planned.signature is decoded.signature


def test_sizes_that_are_written_at_length() -> None:
    """A varint may have more bytes than it needs; then the next message must have them, too."""
    message = ModelInferRequest(model_name="m")
    message.inputs.add(name="IN", datatype="UINT8", shape=[3])
    head = message.SerializeToString()
    layout = learn(head + b"\x3a\x83\x00abc")
    assert layout is not None
    parts = split(layout, head + b"\x3a\x83\x00xyz")
    assert parts == [b"xyz"]
    assert split(layout, head + b"\x3a\x03xyz") is None
    planned = layout.decode(parts)
    assert planned is not None
    assert planned.inputs == [Tensor("IN", "UINT8", [3], b"xyz")]


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=3),
    st.sampled_from(["", "7"]),
    st.integers(0, 2000),
)
def test_the_beginning_of_a_message(sizes: list[int], request_id: str, num_bytes: int) -> None:
    """It will do as soon as the last tensor's data begins; a shorter one is not taken for another
    message."""
    message = request([bytes(size) for size in sizes], request_id).SerializeToString()
    beginning = message[:num_bytes]
    layout = learn_message(beginning, len(message), READ)
    if num_bytes >= len(message) - sizes[-1]:
        assert layout == learn(message)
    else:
        assert layout is None


def test_more_than_the_last_tensor() -> None:
    message = request([b"abc"]).SerializeToString()
    for num_bytes in (len(message) - 1, len(message) + 1):
        assert learn_message(message, num_bytes, READ) is None


def test_an_id_that_is_no_text() -> None:
    layout = learn(request([b"abc"], "7").SerializeToString())
    assert layout is not None
    assert layout.decode([b"\xff", b"abc"]) is None


def _with_parameter(message: ModelInferRequest) -> None:
    message.parameters["priority"].int64_param = 1


def _with_wrong_parameter(message: ModelInferRequest) -> None:
    message.parameters["triton_x"].int64_param = 1


def _with_classification(message: ModelInferRequest) -> None:
    message.outputs[0].parameters["classification"].int64_param = 1


def _with_region(message: ModelInferRequest) -> None:
    message.outputs[0].parameters["shared_memory_region"].string_param = "r"
    message.outputs[0].parameters["shared_memory_byte_size"].int64_param = 4


def _with_repeated_output(message: ModelInferRequest) -> None:
    message.outputs.add(name="OUT")


def _with_contents(message: ModelInferRequest) -> None:
    message.inputs[0].contents.uint_contents.append(1)


def _with_too_many_tensors(message: ModelInferRequest) -> None:
    message.raw_input_contents.append(b"more")


def _without_tensors(message: ModelInferRequest) -> None:
    del message.raw_input_contents[:]


@pytest.mark.parametrize(
    "change",
    [
        _with_parameter, _with_wrong_parameter, _with_classification, _with_region,
        _with_repeated_output, _with_contents,
        _with_too_many_tensors, _without_tensors,
    ],
)  # fmt: skip
def test_messages_without_a_layout(change: object) -> None:
    message = request([b"abc"])
    change(message)  # type: ignore[operator]
    assert learn(message.SerializeToString()) is None


@pytest.mark.parametrize("message", [b"", b":", b"\xff" * 40, b"\x0a\x01m:\x02a"])
def test_no_message(message: bytes) -> None:
    assert learn(message) is None


@given(
    st.lists(st.binary(min_size=3, max_size=200), min_size=1, max_size=3),
    st.sampled_from(["", "7", "ö"]),
    st.data(),
)
def test_the_next_response(outputs: list[bytes], request_id: str, data: st.DataObject) -> None:
    def respond(datas: list[bytes]) -> InferResponse:
        return InferResponse(
            "m",
            "1",
            request_id,
            [Tensor(f"OUT{at}", "UINT8", [len(d)], d) for at, d in enumerate(datas)],
        )

    asked, options = decode_request(request([b"abc"], request_id).SerializeToString())
    asked.requested_outputs = []
    layout = learn_response(respond(outputs))
    following = respond(
        [data.draw(st.binary(min_size=len(one), max_size=len(one))) for one in outputs]
    )
    parts = layout.encode(following)
    assert parts is not None
    expected = b"".join(encode_response(following, asked, options, SPEC)[0])
    filled = iter(parts)
    assert (
        b"".join(next(filled) if isinstance(piece, int) else piece for piece in layout.pieces)
        == expected
    )
    assert [len(part) for part in parts] == [
        piece for piece in layout.pieces if isinstance(piece, int)
    ]
    following.id = request_id + "x"
    assert layout.encode(following) is None
