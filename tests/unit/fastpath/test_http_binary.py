"""A binary plan decodes what json_codec.decode_request decodes."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest
from naiad.fastpath.http_binary import BinaryPlan
from tests.unit.fastpath.planned import Decoder

DATA = struct.pack("<2f", 1, 2)
INPUTS = [{"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]


def header(id: str | None, **more: Any) -> bytes:
    document = ({} if id is None else {"id": id}) | {"inputs": INPUTS} | more
    return json.dumps(document, separators=(",", ":")).encode()


DECODER = Decoder()


def decode(text: bytes, data: bytes = DATA) -> InferRequest:
    return DECODER.decode(text + data, len(text))[0]


def plan_of(text: bytes) -> BinaryPlan:
    request, plan = DECODER.decode(text + DATA, len(text))
    assert isinstance(plan, BinaryPlan)
    assert request.signature is plan.signature
    return plan


def test_requests_with_other_ids_share_a_plan() -> None:
    ids = ["1", "22", "a-b.c:d/e+f=g@h", "X" * 128]
    requests = [decode(header(id)) for id in ids]
    assert [request.id for request in requests] == ids
    assert requests[0].signature is not None
    assert all(request.signature is requests[0].signature for request in requests)
    assert all(bytes(request.inputs[0].data) == DATA for request in requests)
    assert decode(header(None)).signature is not requests[0].signature


def test_spaces_as_other_clients_write_them() -> None:
    texts = [json.dumps({"id": id, "inputs": INPUTS}).encode() for id in ("1", "2")]
    first, second = (decode(text) for text in texts)
    assert (first.id, second.id) == ("1", "2")
    assert first.signature is second.signature is not None


@pytest.mark.parametrize("id", ['a"b', "a\\b", "ü", "a b", "X" * 129, "\n", ""])
def test_ids_that_json_escapes_or_that_are_long_are_read_as_ever(id: str) -> None:
    for _ in range(2):
        assert decode(header(id, outputs=[{"name": "O1"}])).id == id


def test_a_second_id_wins_as_in_any_json() -> None:
    rest = header(None)[1:]
    for first in ("a", "b"):
        assert decode(b'{"id":"%b","id":"z",%b' % (first.encode(), rest)).id == "z"
        assert decode(b'{"id":"%b","\\u0069d":"z",%b' % (first.encode(), rest)).id == "z"
        assert (
            decode(b'{"id":"%b",%b,"id":"%b"}' % (first.encode(), rest[:-1], first.encode())).id
            == first
        )


def test_a_body_that_is_not_the_same_again_is_not_filled() -> None:
    text = header("12")
    plan = plan_of(text)
    other = header("345")
    assert plan.decode(other + DATA, len(other)) is not None
    assert plan.decode(other + DATA, len(text)) is None
    assert plan.decode(other + DATA + b"more", len(other)) is None
    assert plan.decode(other[:-1] + b" " + DATA, len(other)) is None
    assert plan.decode(header(None) + DATA, len(header(None))) is None
    assert plan.decode(header('1"2') + DATA, len(header('1"2'))) is None
    without = header(None)
    plan = plan_of(without)
    assert plan.decode(without + DATA, len(without)) is not None
    assert plan.decode(other + DATA, len(other)) is None
    assert plan.decode(without + DATA, len(without) + 1) is None


@given(st.text(max_size=140), st.booleans())
def test_any_id_is_decoded(id: str, has_spaces: bool) -> None:
    try:
        id.encode()
    except UnicodeEncodeError:
        return
    text = json.dumps(
        {"id": id, "inputs": INPUTS}, separators=None if has_spaces else (",", ":")
    ).encode()
    assert decode(text).id == id
    assert decode(text).id == id


def test_a_repeated_request_in_shared_memory_is_the_same_request() -> None:
    place = {"shared_memory_region": "r", "shared_memory_offset": 4, "shared_memory_byte_size": 8}
    tensor = {"name": "A", "datatype": "FP32", "shape": [2], "parameters": place}
    text = json.dumps(
        {"inputs": [tensor], "outputs": [{"name": "X", "parameters": place}]}
    ).encode()
    decoder = Decoder()
    first, learned = decoder.decode(text)
    first.inputs[0].data = b"something that was read"
    again, plan = decoder.decode(text)
    assert plan is not None
    assert plan is learned
    assert again.regions == RegionUse([(0, RegionSlice("r", 4, 8))], {"X": RegionSlice("r", 4, 8)})
    assert again.signature is first.signature
    assert len(again.inputs[0].data) == 0
    assert plan.formats.by_name is not None
    assert plan.formats.by_name["X"].is_shared
