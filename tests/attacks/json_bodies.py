"""JSON that is slow to read or large in memory: nested lists, many values, objects, parameters."""

from __future__ import annotations

import gzip

from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target

_INFER = "/v2/models/identity_fp32/infer"
_BUDGET = 3 * 60 * MIB + 64 * MIB
"""Three times the largest body that the server accepts, and the noise of the allocator."""


def _tensor(data: bytes, count: int, name: str = "INPUT0", datatype: str = "FP32") -> bytes:
    return (
        b'{"inputs":[{"name":"%b","datatype":"%b","shape":[%d],"data":'
        % (name.encode(), datatype.encode(), count)
        + data
        + b"}]}"
    )


@attack(_BUDGET)
def nested_next_to_flat_lists(target: Target) -> None:
    """Each level of the nesting costs a pass over all the values next to it."""
    deep = b"[" * 90 + b"1" + b"]" * 90
    data = b"[" + deep + b",1" * (4 * MIB) + b"]"
    status, body = target.post(_INFER, _tensor(data, 4 * MIB + 1))
    assert status in (200, 400), (status, body[:200])


@attack(_BUDGET)
def empty_lists_as_data(target: Target) -> None:
    data = b"[" + b"[]," * (16 * MIB) + b"1]"
    status, body = target.post(_INFER, _tensor(data, 1))
    assert status in (200, 400, 500), (status, body[:200])


@attack(_BUDGET)
def many_numbers(target: Target) -> None:
    """30 million numbers of the wrong count."""
    data = b"[" + b"1," * (29 * MIB) + b"1]"
    status, body = target.post(_INFER, _tensor(data, 16))
    assert status in (400, 500), (status, body[:200])


@attack(_BUDGET)
def many_valid_numbers(target: Target) -> None:
    """A valid request: 15 million numbers in and out."""
    count = 15 * MIB
    status, body = target.post(
        _INFER,
        _tensor(b"[" + b"0.5," * (count - 1) + b"0.5]", count),
    )
    assert status == 200, (status, body[:200])
    assert body.count(b"0.5") == count


@attack(_BUDGET)
def many_wrong_numbers(target: Target) -> None:
    """Numbers that the typed pass refuses at the very end."""
    data = b"[" + b"1," * (29 * MIB) + b"true]"
    status, body = target.post(_INFER, _tensor(data, 29 * MIB + 1))
    assert status in (400, 500), (status, body[:200])


@attack(_BUDGET)
def many_objects(target: Target) -> None:
    status, body = target.post(_INFER, b'{"inputs":[' + b"{}," * (20 * MIB - 10) + b"{}]}")
    assert status in (400, 500), (status, body[:200])


@attack(_BUDGET)
def many_parameters(target: Target) -> None:
    names = b",".join(b'"p%d":1' % index for index in range(4 * MIB))
    status, body = target.post(_INFER, b'{"parameters":{' + names + b'},"inputs":[]}')
    assert status in (400, 500), (status, body[:200])


@attack(_BUDGET)
def many_outputs_in_json(target: Target) -> None:
    names = b",".join(b'{"name":"o%d"}' % index for index in range(3 * MIB))
    body = _tensor(b"[1]", 1)[:-1] + b',"outputs":[' + names + b"]}"
    status, text = target.post(_INFER, body)
    assert status in (400, 500), (status, text[:200])
    assert len(text) < 64 * 1024, f"the error has {len(text)} bytes"


@attack(_BUDGET)
def gzip_of_numbers(target: Target) -> None:
    """60 KB that unpack to 58 MB of numbers."""
    body = gzip.compress(_tensor(b"[" + b"1," * (29 * MIB) + b"1]", 16), 9)
    status, text = target.post(_INFER, body, {"Content-Encoding": "gzip"})
    assert status in (400, 500), (status, text[:200])


@attack(_BUDGET)
def gzip_of_objects(target: Target) -> None:
    body = gzip.compress(b'{"inputs":[' + b"{}," * (20 * MIB - 10) + b"{}]}", 9)
    status, text = target.post(_INFER, body, {"Content-Encoding": "gzip"})
    assert status in (400, 500), (status, text[:200])


@attack(_BUDGET)
def gzip_to_openai(target: Target) -> None:
    body = gzip.compress(b'{"model":"x","messages":[' + b"{}," * (20 * MIB - 20) + b"{}]}", 9)
    status, text = target.post("/v1/chat/completions", body, {"Content-Encoding": "gzip"})
    assert status in (400, 404, 413), (status, text[:200])


@attack(_BUDGET)
def control_bodies(target: Target) -> None:
    """Bodies of the control routes and of OpenAI's, which nobody needs to be large."""
    body = b'{"a":[' + b"[]," * (20 * MIB - 10) + b"[]]}"
    for path in (
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/repository/index",
        "/v2/repository/models/add_sub/unload",
        "/v2/systemsharedmemory/region/x/register",
        "/v1/completions",
    ):
        status, text = target.post(path, body)
        # As under Triton, the repository's routes read whatever fits into --http-max-input-size.
        assert status in (400, 413) or "/repository/" in path, (path, status, text[:200])


@attack(_BUDGET)
def generate_with_lists(target: Target) -> None:
    body = b'{"INPUT0":[' + b"[]," * (20 * MIB - 10) + b"[]]}"
    status, text = target.post("/v2/models/identity_fp32/generate", body)
    assert status in (400, 413, 500), (status, text[:200])


@attack(_BUDGET)
def broken_json(target: Target) -> None:
    """A fault at the end of a body of every size: the exact scanner must not be slow."""
    for size in (8_000, 16_000, 60_000, 250_000, 4_000_000):
        status, text = target.post(_INFER, _tensor(b"[" + b"1," * (size // 2) + b"]", 1))
        assert status in (400, 500), (status, text[:200])
        status, text = target.post(_INFER, b"[" * size)
        assert status in (400, 500), (status, text[:200])


@attack(_BUDGET)
def long_shape(target: Target) -> None:
    shape = b",".join([b"1"] * (16 * MIB))
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[' + shape + b'],"data":[1]}]}'
    status, text = target.post(_INFER, body)
    assert status in (400, 500), (status, text[:200])
    assert len(text) < 64 * 1024, f"the error has {len(text)} bytes"


@attack(_BUDGET)
def load_with_a_large_file(target: Target) -> None:
    """Whether loads are allowed or not, the body is read first."""
    text = b"QUJD" * (14 * MIB)
    body = b'{"parameters":{"file:1/model.onnx":"' + text + b'"}}'
    status, reply = target.post("/v2/repository/models/none/load", body)
    assert status in (400, 404, 503), (status, reply[:200])
