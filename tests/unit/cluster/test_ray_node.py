from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from naiad.cluster import command, ray_node
from naiad.cluster.placement import ADDRESS_LABEL, NAME_LABEL
from naiad.errors import NaiadError


@pytest.mark.parametrize(
    ("port", "message"),
    [
        (16380, "Ray gives the ports 10002 to 19999 to its workers: choose another one, such as"),
        (10001, "which the client server of Ray may use"),
        (80, "expected a number from 1024 to 65535"),
        (70000, "expected a number from 1024 to 65535"),
    ],
)
def test_a_port_that_ray_refuses_is_refused_first(port: int, message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        ray_node.check_port(port)
    assert message in caught.value.message
    ray_node.check_port(ray_node.DEFAULT_PORT)


def test_start_refuses_such_a_port_without_starting_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAIAD_CLUSTER_DIR", str(tmp_path / "cluster"))
    monkeypatch.setattr(ray_node, "require_ray", lambda: None)
    monkeypatch.setattr(ray_node, "start_ray", lambda *_: pytest.fail("Ray was started"))
    result = CliRunner().invoke(command.command, ["start", "--port", "16380"])
    assert isinstance(result.exception, NaiadError)
    assert "10002 to 19999" in result.exception.message
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1", "fd00::7", "::1"])
def test_the_operators_address_is_a_label_of_the_node(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    labels: dict[str, str] = {}
    monkeypatch.setattr(ray_node, "start_ray", lambda arguments, given, *more: labels.update(given))
    ray_node.start_head(address, 6380, "a", {"zone": "x"}, tmp_path)
    assert labels[NAME_LABEL] == "a"
    assert labels["zone"] == "x"
    assert ":" not in labels[ADDRESS_LABEL]
    assert ray_node.labelled_address(labels[ADDRESS_LABEL]) == address


def test_ray_stays_on_loopback_if_the_head_does(tmp_path: Path) -> None:
    assert ray_node.ray_environment(tmp_path, "127.0.0.1")[ray_node.LOOPBACK_ONLY] == "0"
    assert ray_node.LOOPBACK_ONLY not in ray_node.ray_environment(tmp_path, "10.0.0.1")


@pytest.mark.parametrize("address", ["localhost", "0.0.0.0", "10.0.0", "224.0.0.1"])
def test_an_address_that_is_not_one_of_a_machine_is_refused(address: str) -> None:
    with pytest.raises(NaiadError, match=f"--address is '{address}', expected"):
        ray_node.check_address(address)


def test_only_the_exception_of_a_traceback_is_shown() -> None:
    text = (
        "Usage stats collection is off.\n"
        "Traceback (most recent call last):\n"
        '  File "ray/scripts.py", line 1, in main\n'
        "    start()\n"
        "ValueError: Ray component gcs is trying to use a port that is used.\n"
        "Port information: {'gcs': 1}\n"
    )
    assert ray_node.what_ray_said(text, "") == (
        "ValueError: Ray component gcs is trying to use a port that is used.\n"
        "Port information: {'gcs': 1}"
    )
    assert ray_node.what_ray_said("", "it is\nso\n") == "it is\nso"


def test_a_head_that_is_away_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAIAD_CLUSTER_DIR", str(tmp_path))
    monkeypatch.setattr(ray_node, "require_ray", lambda: None)
    ray_node.make_token()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(NaiadError, match=f"no cluster responds at {address}: nothing listens"):
            ray_node.connect(address)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "Ray's authentication is off"),
        ({"RAY_AUTH_MODE": "disabled"}, "Ray's authentication is off"),
        ({"RAY_AUTH_MODE": "token"}, "neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH"),
    ],
)
def test_attach_insists_on_authentication(
    environment: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAIAD_CLUSTER_DIR", str(tmp_path / "cluster"))
    monkeypatch.setattr(ray_node, "require_ray", lambda: None)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(command.command, ["attach"])
    assert isinstance(result.exception, NaiadError)
    assert message in result.exception.message


def test_attach_copies_the_token_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAIAD_CLUSTER_DIR", str(tmp_path / "cluster"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 40)
    path = ray_node.take_environment_token()
    assert path.read_text() == "t" * 40
    assert path.stat().st_mode & 0o077 == 0


def test_a_loopback_head_cannot_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "require_ray", lambda: None)
    result = CliRunner().invoke(command.command, ["join", "127.0.0.1:6380"])
    assert isinstance(result.exception, NaiadError)
    assert "'127.0.0.1' is an address of this machine only" in result.exception.message
