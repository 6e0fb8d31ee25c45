from __future__ import annotations

from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.router.config import ModelSpec, ReplicaSpec, parse_replica, read_config

GOOD = """
policy = "round_robin"

[[replica]]
url = "http://10.0.0.1:8000"
grpc = "10.0.0.1:8001"
name = "a"

[[replica]]
url = "https://gpu.example:8443"

[model."llama*"]
policy = "session"
idempotent = false

[model."*"]
policy = "least_load"

[health]
interval_s = 0.5

[outlier]
errors = 3
"""


def test_reads_a_config_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(GOOD)
    config = read_config(path)
    assert [spec.full_name for spec in config.replica] == ["a", "gpu.example:8443"]
    assert config.replica[1].http_address.is_tls
    assert config.model_spec("llama-8b") == ModelSpec("session", idempotent=False)
    assert config.model_spec("other").policy == "least_load"
    assert config.health.interval_s == 0.5
    assert config.outlier.errors == 3


def test_reads_json(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text('{"replica": [{"url": "http://h:1"}]}')
    assert read_config(path).replica == (ReplicaSpec("http://h:1"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polcy = 'x'", "unknown field `polcy`"),
        ("[[replica]]\nurl = 'http://h:1'\nport = 3", r"unknown field `port` - at `$.replica[0]`"),
        ("[[replica]]\nname = 'a'", "missing required field `url` - at `$.replica[0]`"),
        ("[[replica]]\nurl = 7", "Expected `str`, got `int`"),
        ("[[replica]]\nurl = 'http://h:1/v2'", "has a path"),
        ("[[replica]]\nurl = 'http://h:1'\ngrpc = 'h'", "grpc 'h' has no port"),
        ("[[replica]]\nurl = 'http://h:1'\ngrpc = 'h:1'", "the same address h:1"),
        ("[[replica]]\nurl = 'http://h:1'\nname='a/b'", "must not contain '/'"),
        ("[[replica]]\nurl = 'http://h:99999'", "is not an address"),
        (
            "[[replica]]\nurl = 'http://h:1'\n[[replica]]\nurl = 'http://h:1'\nname = 'b'",
            "'h:1' and 'b' have the same url",
        ),
        (
            "[[replica]]\nurl = 'http://h:1'\nname='b'\n[[replica]]\nurl = 'http://h:2'\nname='b'",
            "two replicas have the name 'b'",
        ),
        ("[health]\ninterval_s = 0", "interval_s > 0"),
        ("[breaker]\nfailures = 0", "failures >= 1"),
        ("[retry]\nburst = -1", "not negative"),
        ("replica = [", "config file"),
    ],
)
def test_says_what_is_wrong_with_a_config_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(NaiadError) as caught:
        read_config(path)
    assert message in caught.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="No such file"):
        read_config(tmp_path / "none.toml")


def test_parses_the_text_of_a_flag() -> None:
    spec = parse_replica("http://10.0.0.1:8000,grpc=10.0.0.1:8001,name=a")
    assert spec == ReplicaSpec("http://10.0.0.1:8000", "10.0.0.1:8001", "a")
    assert parse_replica("10.0.0.1:8000").http_address.authority == "10.0.0.1:8000"
    assert parse_replica("http://[::1]:8000").full_name == "[::1]:8000"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an address"),
        ("http://h:1,grcp=h:2", "unknown field `grcp`; the fields are grpc, name"),
        ("http://h:1,grpc", "'grpc' is not a field, expected KEY=VALUE"),
        ("http://h:1,name=a,name=b", "'name' is repeated"),
        ("http://u:p@h:1", "is not an address"),
        ("http://h:1,kv_events=h:5557", "expected tcp://HOST:PORT"),
    ],
)
def test_says_what_is_wrong_with_a_flag(text: str, message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        parse_replica(text)
    assert message in caught.value.message
