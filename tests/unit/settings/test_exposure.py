"""Who can reach the server: when the log warns, and when load requests may bring files."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.settings import Settings
from naiad.settings.consistency import check_creation
from naiad.settings.exposure import exposure_warning, has_console, is_loopback
from naiad.wiring import allowed_hosts, are_files_allowed

ANYWHERE: dict[str, Any] = {"http_address": "0.0.0.0", "grpc_address": "0.0.0.0"}
MUTUAL: dict[str, Any] = {"http_use_ssl_mutual": True, "grpc_use_ssl_mutual": True}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.1", "example.com", ""])
def test_not_loopback(address: str) -> None:
    assert not is_loopback(address)


def test_the_warning_names_the_addresses_and_the_command() -> None:
    text = exposure_warning(Settings(**ANYWHERE))
    assert "0.0.0.0:8000 and 0.0.0.0:8001" in text
    assert "naiad key create NAME --api-key-file keys.json" in text
    only_grpc = exposure_warning(Settings(grpc_address="::"))
    assert ":::8001" in only_grpc
    assert "8000" not in only_grpc


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**ANYWHERE, "api_key_file": "keys.json"},
        {**ANYWHERE, "api_key": ("x",)},
        {**ANYWHERE, **MUTUAL},
        {**ANYWHERE, "allow_http": False, "allow_grpc": False},
    ],
)
def test_no_warning_where_nobody_gets_in(settings: dict[str, Any]) -> None:
    assert exposure_warning(Settings(**settings)) == ""


def test_files_in_load_requests() -> None:
    assert are_files_allowed(Settings())
    assert not are_files_allowed(Settings(**ANYWHERE))
    assert are_files_allowed(Settings(**ANYWHERE, api_key_file="keys.json"))
    assert are_files_allowed(Settings(**ANYWHERE, allow_file_override="true"))
    assert not are_files_allowed(Settings(allow_file_override="false"))


def test_host_is_checked_on_this_machine_only_and_where_names_are_listed() -> None:
    assert allowed_hosts(Settings()) == frozenset()
    assert allowed_hosts(Settings(**ANYWHERE)) is None
    assert allowed_hosts(Settings(api_key=("x",))) is None
    assert allowed_hosts(Settings(**ANYWHERE, allowed_host=("a",))) == frozenset(("a",))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"console": "false"}, False),
        ({"allow_http": False, "console": "true"}, False),
        (ANYWHERE, False),
        ({**ANYWHERE, "console": "true", "api_key_file": "keys.json"}, True),
    ],
)
def test_the_console_is_on_where_only_this_machine_is(
    options: dict[str, Any], expected: bool
) -> None:
    assert has_console(Settings(**options)) is expected


def test_a_console_that_others_reach_needs_keys() -> None:
    with pytest.raises(NaiadError, match=r"--console=true requires API keys"):
        check_creation(Settings(model_repository=("m",), console="true", **ANYWHERE))
    check_creation(
        Settings(model_repository=("m",), console="true", api_key_file="keys.json", **ANYWHERE)
    )
