"""The body of a load request, with small and large files."""

from __future__ import annotations

import base64
import json

import pytest

from naiad.errors import NaiadError
from naiad.protocol.v2 import load_request
from naiad.protocol.v2.load_request import decode_load_parameters

FILE = bytes(range(256)) * 3


def body(**parameters: object) -> bytes:
    names = {name.replace("file_", "file:"): value for name, value in parameters.items()}
    return json.dumps({"parameters": names}).encode()


def encoded(data: bytes = FILE) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(params=[16, 64, 128 * 1024], autouse=True)
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_request, "SLICE_BYTES", request.param)
    monkeypatch.setattr(load_request, "_PIECE_BYTES", max(request.param // 2, 1))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 100, len(FILE)])
def test_files_and_config(size: int) -> None:
    text = body(config='{"a": "\\"b\\""}', file_a=encoded(FILE[:size]), file_b=encoded())
    assert decode_load_parameters(text) == {
        "config": '{"a": "\\"b\\""}',
        "file:a": FILE[:size],
        "file:b": FILE,
    }


def test_slashes_may_be_escaped() -> None:
    text = body(file_a=encoded(b"\xff" * 300)).replace(b"/", b"\\/")
    assert decode_load_parameters(text) == {"file:a": b"\xff" * 300}


def test_nothing_to_load_with() -> None:
    assert decode_load_parameters(b"") == decode_load_parameters(b"{}") == {}


@pytest.mark.parametrize(
    "text", ["Q", "QQ=", "QQ==QQ==", "Q" * 100 + "!" + "Q" * 100, "QQ==" + "Q" * 400, "ä" * 100]
)
def test_refuses_what_is_not_base64(text: str) -> None:
    with pytest.raises(NaiadError, match="load parameter 'file:a' is not valid base64"):
        decode_load_parameters(body(file_a=text))


def test_refuses_other_parameters() -> None:
    with pytest.raises(NaiadError, match="Unrecognized load parameter 'x'"):
        decode_load_parameters(body(x="y" * 300))
    with pytest.raises(NaiadError, match="JSON non-string"):
        decode_load_parameters(body(config=1))
    with pytest.raises(NaiadError, match="non-object"):
        decode_load_parameters(b'{"parameters": []}')


def test_bounds_what_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_request, "MAX_REST_BYTES", 100)
    with pytest.raises(NaiadError, match="more than 100 bytes"):
        decode_load_parameters(b'{"a":[' + b"[]," * 100 + b"[]]}")
