"""One request of the corpus, over HTTP or gRPC, and what is known about its response.

The expected response is the genuine Triton's, recorded in golden/. Where Naiad does not follow it,
`expect` replaces parts of it and `because` gives the reason: the recorded server is 2.51, Naiad
follows 2.73, and some responses differ on purpose.
Rule: a case does not depend on other cases and does not change the server, unless the order of
      cases matters in its suite.
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
    """If set, exactly these bytes are sent. Method, path, headers and body are then ignored."""
    port: str = "http"
    expect: dict[str, Any] = {}
    because: str = ""
    normalise: tuple[str, ...] = ()
    is_settled_first: bool = False
    """Waits until no model is loading or unloading: an unload responds before it is done."""
    is_ours_only: bool = False
    """Never sent to the genuine server, which would crash or hang. `expect` is then the whole
    response."""


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
    """Never sent to the genuine server, which would crash or hang. `expect` is then the whole
    response."""


Case: TypeAlias = HttpCase | GrpcCase
Response: TypeAlias = dict[str, Any]


def get(name: str, path: str, **options: Any) -> HttpCase:
    return HttpCase(name, "GET", path, **options)


def post(name: str, path: str, body: Any = b"", **options: Any) -> HttpCase:
    """Makes a POST case. A body that is neither bytes nor text is sent as JSON."""
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    return HttpCase(name, "POST", path, body=body, **options)


def infer(name: str, model: str, body: Any, version: str = "", **options: Any) -> HttpCase:
    path = f"/v2/models/{model}/versions/{version}" if version else f"/v2/models/{model}"
    return post(name, f"{path}/infer", body, **options)


def tensor(
    name: str, datatype: str, shape: list[Any], data: Any, **parameters: Any
) -> dict[str, Any]:
    """Returns a JSON input, without the field `data` if `data` is None."""
    fields: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        fields["parameters"] = parameters
    if data is not None:
        fields["data"] = data
    return fields


def binary_infer(
    name: str, model: str, header: dict[str, Any], payload: bytes, **options: Any
) -> HttpCase:
    """Makes a request of the binary data extension: the JSON header followed by the tensors."""
    encoded = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(encoded)), **options.pop("headers", {})}
    return infer(name, model, encoded + payload, headers=headers, **options)


def health(name: str, kind: str, query: str = "", *, is_true: bool = True) -> HttpCase:
    """Makes a case of a server that is live or ready."""
    return get(
        name,
        f"/v2/health/{kind}{query}",
        expect={
            "headers": {"Content-Type": "application/json"},
            "json": {kind: is_true},
            "text": None,
        },
        because="the body is the Open Inference Protocol's, which KServe's clients read",
    )


def refused(status: int, message: str) -> dict[str, Any]:
    """Returns the `expect` of an HTTP error."""
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
