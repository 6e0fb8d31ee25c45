"""One request of the corpus, for HTTP or for gRPC, and what is known about its answer.

The expected answer is the genuine Triton's, recorded in golden/. Where it must not be followed,
`expect` replaces parts of it and `because` says why: the oracle is 2.51, the reference that we
follow describes 2.73, and some answers are ours on purpose.
Rule: a case is complete in itself and leaves the server as it found it, unless its suite says that
      order matters.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import msgspec


class HttpCase(msgspec.Struct, frozen=True):
    name: str
    method: str
    path: str
    headers: dict[str, str] = {}
    body: bytes = b""
    raw: bytes = b""
    """When set, exactly these bytes are sent instead of what method, path, headers and body would
    make."""
    port: str = "http"
    expect: dict[str, Any] = {}
    because: str = ""
    normalise: tuple[str, ...] = ()
    is_settled_first: bool = False
    """Sent only when no model is loading or unloading any more: an unload answers before it is
    done."""
    is_ours_only: bool = False
    """Never sent to the genuine server, which would die or hang; `expect` is then the whole
    answer."""


class GrpcCase(msgspec.Struct, frozen=True):
    name: str
    rpc: str
    messages: tuple[bytes, ...]
    """Serialized requests; exactly one for a unary call."""
    metadata: tuple[tuple[str, str], ...] = ()
    service: str = "inference.GRPCInferenceService"
    expect: dict[str, Any] = {}
    because: str = ""
    normalise: tuple[str, ...] = ()
    is_ours_only: bool = False
    """Never sent to the genuine server, which would die or hang; `expect` is then the whole
    answer."""


Case: TypeAlias = HttpCase | GrpcCase
Answer: TypeAlias = dict[str, Any]


def get(name: str, path: str, **options: Any) -> HttpCase:
    return HttpCase(name, "GET", path, **options)


def post(name: str, path: str, body: Any = b"", **options: Any) -> HttpCase:
    """A body that is not bytes is sent as JSON."""
    data = (
        body
        if isinstance(body, bytes)
        else body.encode()
        if isinstance(body, str)
        else json.dumps(body).encode()
    )
    return HttpCase(name, "POST", path, body=data, **options)


def infer(name: str, model: str, body: Any, version: str = "", **options: Any) -> HttpCase:
    path = (
        f"/v2/models/{model}/versions/{version}/infer" if version else f"/v2/models/{model}/infer"
    )
    return post(name, path, body, **options)


def tensor(
    name: str, datatype: str, shape: list[Any], data: Any, **parameters: Any
) -> dict[str, Any]:
    """A JSON input; `data` None leaves the field out."""
    fields: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        fields["parameters"] = parameters
    if data is not None:
        fields["data"] = data
    return fields


def binary_infer(
    name: str, model: str, header: dict[str, Any], payload: bytes, **options: Any
) -> HttpCase:
    """The JSON header followed by the tensors, as the binary extension has it."""
    encoded = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(encoded)), **options.pop("headers", {})}
    return infer(name, model, encoded + payload, headers=headers, **options)


def refused(status: int, message: str) -> dict[str, Any]:
    """The `expect` of an HTTP error."""
    return {
        "status": status,
        "headers": {"Content-Type": "application/json"},
        "json": {"error": message},
        "text": None,
    }


def add_sub_inputs(batch: int = 1) -> list[dict[str, Any]]:
    first, second = list(range(16 * batch)), [1] * (16 * batch)
    return [
        tensor("INPUT0", "FP32", [batch, 16], first),
        tensor("INPUT1", "FP32", [batch, 16], second),
    ]
