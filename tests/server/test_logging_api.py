"""The logging extension over both protocols: clients can change what is logged, but not the
file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.harness import Server, naiad

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def server(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "observed").symlink_to(repositories / "main" / "observed")
    with naiad([str(folder)]) as one:
        yield one


@pytest.fixture(params=[http_client, grpc_client], ids=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    module: ModuleType = request.param
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as one:
        yield one
        one.update_log_settings(
            {name: value for name, value in DEFAULTS.items() if name != "log_file"}
        )


def shown(settings: Any) -> dict[str, Any]:
    if isinstance(settings, dict):
        return settings
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in settings.settings.items()
    }


def lines_of_a_request(server: Server) -> list[str]:
    """Sends a request to a model that logs a line per level. Returns these lines. Waits for the
    error line, the last one that is always logged."""
    since = len(server.lines)
    tensor = http_client.InferInput("AMOUNT", [1], "FP64")
    tensor.set_data_from_numpy(np.array([1.0]))
    with http_client.InferenceServerClient(server.http) as client:
        client.infer("observed", [tensor])
    server.wait_for_line("observed at level error", since=since)
    return [line for line in server.lines[since:] if "observed" in line]


def test_default_settings(client: Any) -> None:
    assert shown(client.get_log_settings()) == DEFAULTS


def test_turns_levels_off_and_on(client: Any, server: Server) -> None:
    assert any("level info" in line for line in lines_of_a_request(server))
    assert shown(client.update_log_settings({"log_info": False, "log_warning": False})) == {
        **DEFAULTS,
        "log_info": False,
        "log_warning": False,
    }
    lines = lines_of_a_request(server)
    assert [line for line in lines if "level info" in line or "level warning" in line] == []
    client.update_log_settings({"log_info": True})
    assert any("level info" in line for line in lines_of_a_request(server))


def test_turns_verbose_lines_on(client: Any, server: Server) -> None:
    assert not any("level verbose" in line for line in lines_of_a_request(server))
    assert shown(client.update_log_settings({"log_verbose_level": 1}))["log_verbose_level"] == 1
    since = len(server.lines)
    lines_of_a_request(server)
    server.wait_for_line("observed at level verbose", since=since)


def test_changes_the_format(client: Any, server: Server) -> None:
    client.update_log_settings({"log_format": "ISO8601"})
    assert all(line[4] == "-" and line[10] == "T" for line in lines_of_a_request(server))


def test_rejects_a_change_of_the_file(client: Any, tmp_path: Path) -> None:
    target = tmp_path / "written.log"
    with pytest.raises(
        InferenceServerException,
        match="log file location can not be updated through network protocol",
    ):
        client.update_log_settings({"log_file": str(target)})
    assert not target.exists()
    assert shown(client.get_log_settings())["log_file"] == ""


def test_a_rejected_update_changes_nothing(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="got: strange"):
        client.update_log_settings({"log_info": False, "log_format": "strange"})
    assert shown(client.get_log_settings()) == DEFAULTS


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"log_info": "x"}, 500, "attempt to access JSON non-boolean as boolean"),
        ({"log_error": 3}, 500, "attempt to access JSON non-boolean as boolean"),
        (
            {"log_verbose_level": -1},
            500,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"log_verbose_level": True},
            500,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"log_format": 3}, 500, "attempt to access JSON non-string as string"),
        ({"log_format": "x"}, 503, "invalid argument for --log_format, got: x"),
        ({"log_file": ""}, 501, "log file location can not be updated through network protocol"),
        (
            b"{",
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
    ],
)
def test_rejects_wrong_values_over_http(
    server: Server, body: Any, status: int, message: str
) -> None:
    response = server.post("/v2/logging", body)
    assert (response[0], json.loads(response[1])["error"]) == (status, message)


@pytest.mark.parametrize("body", [{}, {"nosuch": 1}, {"log_info": None}, [], "text"])
def test_ignores_unknown_settings(server: Server, body: Any) -> None:
    assert json.loads(server.post("/v2/logging", body)[1]) == DEFAULTS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log_info": 1}, "expect boolean for 'log_info'"),
        ({"log_verbose_level": True}, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": "1"}, "expect int32 for 'log_verbose_level'"),
        ({"log_format": 3}, "expect string for 'log_format'"),
        ({"log_format": "x"}, "invalid argument for log_format, got: x"),
    ],
)
def test_rejects_wrong_values_over_grpc(
    server: Server, settings: dict[str, Any], message: str
) -> None:
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    request = grpc_client.service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        setattr(request.settings[name], kinds[type(value)], value)
    with (
        grpc_client.InferenceServerClient(server.grpc) as client,
        pytest.raises(Exception, match=message),
    ):
        client._client_stub.LogSettings(request)
