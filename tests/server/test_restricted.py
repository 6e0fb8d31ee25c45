"""Restricted APIs and forwarded headers on a real server, both protocols.

Every route and every RPC that the server has is asked for, as its own tables list them: what is in
none of the groups that can be restricted must be on a short list here, so that a new route cannot
come in unguarded.
"""

from __future__ import annotations

import json
import re
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

from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.frontends.grpc.restriction import PROTOCOLS
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.options import HttpOptions
from naiad.settings.compound import RESTRICTED_CATEGORIES
from tests.fakes import FakeCore
from tests.server.harness import Server, naiad

OPEN_ROUTES = frozenset(("/v1", "/v1/anything"))
"""Paths that no group guards: behind these is nothing but an error in OpenAI's form."""
OPEN_RPCS = frozenset(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    # tells what is in the public .proto files, and nothing of this server
    for version in ("v1", "v1alpha")
)

EXPANSIONS = {
    r"(?:/versions/(?P<version>[0-9]+))?": ("", "/versions/1"),
    r"(?:/(?P<repository>[^/]+))?": ("", "/some"),
    r"(?:/region/(?P<region>[^/]+))?": ("", "/region/a"),
    r"(?:/models/(?P<model>[^/]+))?": ("", "/models/request_info"),
    r"(?P<kind>system|cuda)": ("system", "cuda"),
    r"(?P<model>[^/]+)": ("request_info", "other%2Fname"),
    r"(?P<model>.+)": ("request_info", "other/name"),
    r"(?:/.*)?": ("", "/anything"),
}


class Door(msgspec.Struct, frozen=True):
    method: str
    path: str
    group: str


def http_doors() -> list[Door]:
    frontend = HttpFrontend(FakeCore(), HttpOptions())
    doors = []
    for entry in frontend._entries():
        paths = [entry.pattern]
        for part, texts in EXPANSIONS.items():
            paths = [
                path.replace(part, text)
                for path in paths
                for text in (texts if part in path else ("",))
            ]
        for path in dict.fromkeys(paths):
            assert re.fullmatch(entry.pattern, path), (
                f"this test does not know how to make a path of {entry.pattern}"
            )
            doors.append(Door(entry.method, path, entry.group))
    return doors


def rpc_doors() -> list[Door]:
    frontend = GrpcFrontend(FakeCore())
    groups = {name: group for group, names in PROTOCOLS.items() for name in names}
    return [
        Door("", method.path, groups.get(method.path.rpartition("/")[2], ""))
        for method in frontend._methods()
    ]


HTTP_DOORS, RPC_DOORS = http_doors(), rpc_doors()


def test_every_route_can_be_restricted() -> None:
    assert {
        door.path for door in HTTP_DOORS if door.group not in RESTRICTED_CATEGORIES
    } == OPEN_ROUTES


def test_every_rpc_can_be_restricted() -> None:
    assert {door.path for door in RPC_DOORS if door.group not in RESTRICTED_CATEGORIES} == OPEN_RPCS
    assert set(PROTOCOLS) == set(RESTRICTED_CATEGORIES)


@pytest.fixture(scope="module")
def server(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each group has a key of its own."""
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


def ask(server: Server, door: Door, headers: dict[str, str] | None = None) -> tuple[int, str]:
    body = b"" if door.method == "POST" else None
    request = urllib.request.Request(
        f"http://{server.http}{door.path}", body, headers or {}, method=door.method
    )
    status, data = server.fetch(request)
    return status, data.decode()


@pytest.mark.parametrize(
    "door",
    [door for door in HTTP_DOORS if not door.group],
    ids=lambda door: f"{door.method} {door.path}",
)
def test_open_routes_lead_nowhere(server: Server, door: Door) -> None:
    assert ask(server, door)[0] in (404, 405)


@pytest.mark.parametrize(
    "door",
    [door for door in HTTP_DOORS if door.group],
    ids=lambda door: f"{door.method} {door.path}",
)
def test_routes(server: Server, door: Door) -> None:
    refusal = (403, f'{{"error":"This API is restricted, expecting header \'key-{door.group}\'"}}')
    assert ask(server, door) == refusal
    assert ask(server, door, {f"key-{door.group}": "wrong"}) == refusal
    assert ask(server, door, {f"key-{door.group}": ""}) == refusal
    others = {
        f"key-{group}": f"secret-{group}" for group in RESTRICTED_CATEGORIES if group != door.group
    }
    assert ask(server, door, others) == refusal
    assert ask(server, door, {f"KEY-{door.group}": f"secret-{door.group}"})[0] != 403


@pytest.mark.parametrize(
    "door",
    [door for door in HTTP_DOORS if door.group and door.method == "GET"],
    ids=lambda door: door.path,
)
def test_head_is_no_way_around(server: Server, door: Door) -> None:
    assert ask(server, msgspec.structs.replace(door, method="HEAD"))[0] == 403


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
def test_other_spellings_are_no_way_around(server: Server, request_line: str, host: str) -> None:
    """Refused, unknown or malformed: anything but the answer."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as plain:
        plain.sendall(
            f"{request_line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while piece := plain.recv(4096):
            answer += piece
    assert int(answer.split(b" ")[1]) in (400, 403, 404, 405)
    assert b'"extensions"' not in answer


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
    "door", [door for door in RPC_DOORS if door.group], ids=lambda door: door.path
)
def test_rpcs(server: Server, door: Door) -> None:
    header = f"triton-grpc-protocol-key-{door.group}"
    refusal = (
        grpc.StatusCode.UNAVAILABLE,
        f"This protocol is restricted, expecting header '{header}'",
    )
    with grpc.insecure_channel(server.grpc) as channel:
        assert call(channel, door.path) == refusal
        assert call(channel, door.path, {header: "wrong"}) == refusal
        assert call(channel, door.path, {f"key-{door.group}": f"secret-{door.group}"}) == refusal
        others = {
            f"triton-grpc-protocol-key-{group}": f"secret-{group}"
            for group in RESTRICTED_CATEGORIES
            if group != door.group
        }
        assert call(channel, door.path, others) == refusal
        assert call(channel, door.path, {header: f"secret-{door.group}"})[1] != refusal[1]


def test_secrets_are_not_in_the_log(server: Server) -> None:
    assert [line for line in server.lines if "secret-" in line] == []


# Forwarded headers.


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
    facts = [
        fact.decode()
        for fact in client.infer("request_info", [tensor], headers=headers, **more).as_numpy(
            "FACTS"
        )
    ]
    (line,) = (fact for fact in facts if fact.startswith("parameters="))
    found: dict[str, Any] = json.loads(line.removeprefix("parameters="))
    return found


def test_forwarded_over_http(forwarding: Server) -> None:
    with http_client.InferenceServerClient(forwarding.http) as client:
        seen = parameters_seen(
            http_client,
            client,
            {"My-Header": "one", "my_other": "two", "not-mine": "three"},
            parameters={"own": 4},
        )
        assert seen == {"My-Header": "one", "my_other": "two", "own": 4}
        assert parameters_seen(http_client, client, {}) == {}


def test_forwarded_over_grpc(forwarding: Server) -> None:
    with grpc_client.InferenceServerClient(forwarding.grpc) as client:
        seen = parameters_seen(
            grpc_client, client, {"my-header": "one", "not-mine": "three"}, parameters={"own": 4}
        )
        assert seen == {"my-header": "one", "own": 4}


@pytest.mark.parametrize("name", ["triton_final_response", "sequence_id"])
def test_names_that_triton_keeps_for_itself(forwarding: Server, name: str) -> None:
    words = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    with (
        http_client.InferenceServerClient(forwarding.http) as client,
        pytest.raises(InferenceServerException, match=words),
    ):
        parameters_seen(http_client, client, {name: "1"})
    with (
        grpc_client.InferenceServerClient(forwarding.grpc) as client,
        pytest.raises(InferenceServerException, match=words),
    ):
        parameters_seen(grpc_client, client, {name: "1"})
