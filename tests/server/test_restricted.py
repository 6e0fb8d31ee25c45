"""Restricted APIs and forwarded headers on a real server, over both protocols.

The tests send a request to every route and every RPC in the server's own tables. Those that belong
to no restricted group must be in a short list here, so that a new route cannot be unprotected.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from naiad.settings.compound import RESTRICTED_CATEGORIES
from tests import entrances
from tests.server.harness import Server, naiad

METRICS_ROUTE = "/metrics"
"""Triton has no group for it. API keys can guard it (--guarded-api)."""
OPEN_ROUTES = frozenset(("/", "/v1", "/v1/anything", METRICS_ROUTE))
"""Paths that no group protects: a page without any model's name, errors in OpenAI's format, and
metrics."""
KEY_ROUTES = frozenset(
    f"/key/{name}"
    for name in (
        "generate", "update", "regenerate", "block", "unblock", "delete", "list", "info",
    )
)  # fmt: skip
"""Paths that API keys alone protect; without a key file they do nothing."""
OPEN_RPCS = frozenset(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
"""RPCs that no group protects. Reflection returns only the public .proto files."""


class Entrance(msgspec.Struct, frozen=True):
    method: str
    path: str
    group: str
    """Empty for an entrance that cannot be restricted."""


def grouped(found: list[entrances.Entrance]) -> list[Entrance]:
    return [
        Entrance(one.method, one.path, one.group if one.group in RESTRICTED_CATEGORIES else "")
        for one in found
    ]


HTTP_ENTRANCES = grouped(entrances.http_entrances())
RPC_ENTRANCES = grouped(entrances.rpc_entrances())


def test_every_route_can_be_restricted() -> None:
    assert {
        entrance.path for entrance in HTTP_ENTRANCES if entrance.group not in RESTRICTED_CATEGORIES
    } == OPEN_ROUTES | KEY_ROUTES


def test_every_rpc_can_be_restricted() -> None:
    assert {
        entrance.path for entrance in RPC_ENTRANCES if entrance.group not in RESTRICTED_CATEGORIES
    } == OPEN_RPCS
    assert {entrance.group for entrance in RPC_ENTRANCES if entrance.group} == set(
        RESTRICTED_CATEGORIES
    )


@pytest.fixture(scope="module")
def server(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each group has its own key."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "request_info").symlink_to(repositories / "main" / "request_info")
    flags = []
    for group in RESTRICTED_CATEGORIES:
        flags += [
            f"--http-restricted-api={group}:key-{group}=secret-{group}",
            f"--grpc-restricted-protocol={group}:key-{group}=secret-{group}",
        ]
    with naiad([str(folder)], flags) as one:
        yield one


def ask(
    server: Server, entrance: Entrance, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    body = b"" if entrance.method == "POST" else None
    request = urllib.request.Request(
        f"http://{server.http}{entrance.path}", body, headers or {}, method=entrance.method
    )
    status, data = server.fetch(request)
    return status, data.decode()


@pytest.mark.parametrize(
    "entrance",
    [entrance for entrance in HTTP_ENTRANCES if not entrance.group],
    ids=lambda entrance: f"{entrance.method} {entrance.path}",
)
def test_open_routes_do_nothing_that_a_group_protects(server: Server, entrance: Entrance) -> None:
    statuses = (501,) if entrance.path in KEY_ROUTES else (404, 405)
    if entrance.path == METRICS_ROUTE:
        statuses = (200,)
    assert ask(server, entrance)[0] in statuses


@pytest.mark.parametrize(
    "entrance",
    [entrance for entrance in HTTP_ENTRANCES if entrance.group],
    ids=lambda entrance: f"{entrance.method} {entrance.path}",
)
def test_a_route_requires_the_key_of_its_group(server: Server, entrance: Entrance) -> None:
    rejection = (
        403,
        f'{{"error":"This API is restricted, expecting header \'key-{entrance.group}\'"}}',
    )
    assert ask(server, entrance) == rejection
    assert ask(server, entrance, {f"key-{entrance.group}": "wrong"}) == rejection
    assert ask(server, entrance, {f"key-{entrance.group}": ""}) == rejection
    others = {
        f"key-{group}": f"secret-{group}"
        for group in RESTRICTED_CATEGORIES
        if group != entrance.group
    }
    assert ask(server, entrance, others) == rejection
    assert ask(server, entrance, {f"KEY-{entrance.group}": f"secret-{entrance.group}"})[0] != 403


@pytest.mark.parametrize(
    "entrance",
    [entrance for entrance in HTTP_ENTRANCES if entrance.group and entrance.method == "GET"],
    ids=lambda entrance: entrance.path,
)
def test_head_requires_the_key_too(server: Server, entrance: Entrance) -> None:
    assert ask(server, msgspec.structs.replace(entrance, method="HEAD"))[0] == 403


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /v2?key-metadata=secret-metadata",
        "GET http://elsewhere/v2",
        "GET //v2",
        "GET /v2/",
        "GET /./v2",
        "GET /x/../v2",
        "GET /%762",
        "GET /V2",
        "GET /v2/health/../../v2",
        "GET /v2/models/%2e%2e",
    ],
)
@pytest.mark.parametrize("host", ["x", "x/?", "x#", "user@x"])
def test_other_spellings_of_a_path_do_not_bypass_the_key(
    server: Server, request_line: str, host: str
) -> None:
    """A request may be rejected, unknown or malformed, but must not return the metadata."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as plain:
        plain.sendall(
            f"{request_line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        response = b""
        while piece := plain.recv(4096):
            response += piece
    assert int(response.split(b" ")[1]) in (400, 403, 404, 405)
    assert b'"extensions"' not in response


def call(
    channel: grpc.Channel, path: str, metadata: dict[str, str] | None = None
) -> tuple[grpc.StatusCode, str]:
    try:
        stream = channel.stream_stream(path)(
            iter([b""]), timeout=20, metadata=list((metadata or {}).items())
        )
        next(stream)
        stream.cancel()
    except StopIteration:
        pass
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize(
    "entrance",
    [entrance for entrance in RPC_ENTRANCES if entrance.group],
    ids=lambda entrance: entrance.path,
)
def test_an_rpc_requires_the_key_of_its_group(server: Server, entrance: Entrance) -> None:
    header = f"triton-grpc-protocol-key-{entrance.group}"
    rejection = (
        grpc.StatusCode.UNAVAILABLE,
        f"This protocol is restricted, expecting header '{header}'",
    )
    with grpc.insecure_channel(server.grpc) as channel:
        assert call(channel, entrance.path) == rejection
        assert call(channel, entrance.path, {header: "wrong"}) == rejection
        assert (
            call(channel, entrance.path, {f"key-{entrance.group}": f"secret-{entrance.group}"})
            == rejection
        )
        others = {
            f"triton-grpc-protocol-key-{group}": f"secret-{group}"
            for group in RESTRICTED_CATEGORIES
            if group != entrance.group
        }
        assert call(channel, entrance.path, others) == rejection
        assert call(channel, entrance.path, {header: f"secret-{entrance.group}"})[1] != rejection[1]


def test_secrets_are_not_in_the_log(server: Server) -> None:
    assert [line for line in server.lines if "secret-" in line] == []


@pytest.fixture(scope="module")
def forwarding(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "request_info").symlink_to(repositories / "main" / "request_info")
    flags = [
        "--http-header-forward-pattern=^(my|triton|sequence)[-_].*",
        "--grpc-header-forward-pattern=(?-i)^(my|triton|sequence)[-_].*",
    ]
    with naiad([str(folder)], flags) as one:
        yield one


def parameters_seen(
    module: Any, client: Any, headers: dict[str, str], **more: Any
) -> dict[str, Any]:
    tensor = module.InferInput("ANY", [1], "INT32")
    tensor.set_data_from_numpy(np.array([1], np.int32))
    result = client.infer("request_info", [tensor], headers=headers, **more)
    facts = [fact.decode() for fact in result.as_numpy("FACTS")]
    (line,) = (fact for fact in facts if fact.startswith("parameters="))
    parameters: dict[str, Any] = json.loads(line.removeprefix("parameters="))
    return parameters


def test_forwards_headers_over_http(forwarding: Server) -> None:
    with http_client.InferenceServerClient(forwarding.http) as client:
        seen = parameters_seen(
            http_client,
            client,
            {"My-Header": "one", "my_other": "two", "not-mine": "three"},
            parameters={"own": 4},
        )
        assert seen == {"My-Header": "one", "my_other": "two", "own": 4}
        assert parameters_seen(http_client, client, {}) == {}


def test_forwards_headers_over_grpc(forwarding: Server) -> None:
    with grpc_client.InferenceServerClient(forwarding.grpc) as client:
        seen = parameters_seen(
            grpc_client, client, {"my-header": "one", "not-mine": "three"}, parameters={"own": 4}
        )
        assert seen == {"my-header": "one", "own": 4}


@pytest.mark.parametrize("name", ["triton_final_response", "sequence_id"])
def test_rejects_headers_with_reserved_names(forwarding: Server, name: str) -> None:
    message = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    with (
        http_client.InferenceServerClient(forwarding.http) as client,
        pytest.raises(InferenceServerException, match=message),
    ):
        parameters_seen(http_client, client, {name: "1"})
    with (
        grpc_client.InferenceServerClient(forwarding.grpc) as client,
        pytest.raises(InferenceServerException, match=message),
    ):
        parameters_seen(grpc_client, client, {name: "1"})
