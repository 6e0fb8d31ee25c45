"""BYTES tensors whose elements are many and small."""

from __future__ import annotations

import json
import struct

from naiad.pb.grpc_service_pb2 import ModelInferRequest
from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target


@attack(3 * 200 * MIB + 64 * MIB)
def empty_byte_elements(target: Target) -> None:
    """200 MB of elements of no bytes, of the right number and of the wrong one."""
    count = 50 * MIB
    for claimed in (count, count - 1):
        request = ModelInferRequest(model_name="identity_bytes")
        request.inputs.add(name="TEXT", datatype="BYTES", shape=[1, claimed])
        request.raw_input_contents.append(bytes(4 * count))
        target.call("ModelInfer", request.SerializeToString())


@attack(3 * 60 * MIB + 64 * MIB)
def small_byte_elements_over_http(target: Target) -> None:
    element = struct.pack("<I", 1) + b"x"
    count = 11 * MIB
    data = element * count
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "TEXT",
                    "datatype": "BYTES",
                    "shape": [1, count - 1],
                    "parameters": {"binary_data_size": len(data)},
                }
            ]
        }
    ).encode()
    status, body = target.post(
        "/v2/models/identity_bytes/infer",
        head + data,
        {"Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 400, (status, body[:200])


@attack(3 * 60 * MIB + 64 * MIB)
def many_strings_in_json(target: Target) -> None:
    """A valid request: ten million one-letter strings in and out."""
    count = 4 * MIB
    data = b'["a"' + b',"a"' * (count - 1) + b"]"
    body = (
        b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,%d],"data":' % count
        + data
        + b"}]}"
    )
    status, text = target.post("/v2/models/identity_bytes/infer", body)
    assert status == 200, (status, text[:200])


@attack(60 * MIB * 7, flags=("--http-max-input-size=209715400",))
def long_strings_as_json(target: Target) -> None:
    """Valid requests: a few strings of megabytes, binary in and JSON out."""
    for count, size in ((1, 60 * MIB), (60, MIB)):
        data = (struct.pack("<I", size) + b"x" * size) * count
        binary = {"binary_data_size": len(data)}
        entry = {"name": "TEXT", "datatype": "BYTES", "shape": [1, count], "parameters": binary}
        head = json.dumps({"inputs": [entry]}).encode()
        status, body = target.post(
            "/v2/models/identity_bytes/infer",
            head + data,
            {"Inference-Header-Content-Length": str(len(head))},
        )
        assert status == 200, (status, body[:200])
        assert body.count(b"x") == count * size
