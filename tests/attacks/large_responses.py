"""Small questions with large or expensive responses."""

from __future__ import annotations

import json
import struct

from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target


def _binary(
    model: str, name: str, count: int, outputs: list[dict[str, object]]
) -> tuple[bytes, int]:
    data = struct.pack("<f", 0.1) * count
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": "FP32",
                    "shape": [count],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "outputs": outputs,
        }
    ).encode()
    return head + data, len(head)


@attack(60 * MIB * 7)
def binary_in_json_out(target: Target) -> None:
    """15 million floats become a quarter of a gigabyte of JSON."""
    body, length = _binary("identity_fp32", "INPUT0", 12 * MIB, [{"name": "OUTPUT0"}])
    status, text = target.post(
        "/v2/models/identity_fp32/infer",
        body,
        {"Inference-Header-Content-Length": str(length)},
    )
    assert status == 200, (status, text[:200])


@attack(60 * MIB * 3)
def classification_of_a_million(target: Target) -> None:
    body, length = _binary(
        "identity_fp32",
        "INPUT0",
        1_000_000,
        [{"name": "OUTPUT0", "parameters": {"classification": 1_000_000}}],
    )
    status, text = target.post(
        "/v2/models/identity_fp32/infer",
        body,
        {"Inference-Header-Content-Length": str(length)},
    )
    assert status in (200, 400), (status, text[:200])
