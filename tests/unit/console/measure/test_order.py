"""Orders of measurements: what a page may ask for, and the command line that it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from naiad.console.measure.order import Target, arguments, decode_order, file_arguments
from naiad.errors import NaiadError
from naiad.perf.command import command as perf_command

TARGET = Target(http_url="http://127.0.0.1:8000", grpc_url="127.0.0.1:8001", repository="/copy")


def line(target: Target = TARGET, **fields: Any) -> list[str]:
    return arguments(decode_order(json.dumps(fields).encode()), target)


def target(**fields: Any) -> Target:
    return Target(**({"http_url": "https://127.0.0.1:8000", "grpc_url": ""} | fields))


def test_an_order_is_a_command_line_that_naiad_perf_accepts() -> None:
    made = line(type="perf", model="m", protocol="grpc", concurrency="1:9:4", interval_ms=500)
    values = perf_command.parse(made[1:])
    assert (values["model"], values["protocol"], values["url"]) == ("m", "grpc", "127.0.0.1:8001")
    assert values["measurement_interval"] == 500


def test_a_language_model_is_measured_as_clients_use_it() -> None:
    made = line(target(is_language=True), type="perf", model="m", protocol="grpc")
    assert made[made.index("--service-kind") + 1] == "openai"
    assert "-i" not in made
    assert "-b" not in made


def test_files_belong_to_the_console() -> None:
    order = decode_order(b'{"type": "analyze", "model": "m", "latency_budget_ms": 20}')
    made = arguments(order, TARGET)
    assert made[:6] == ["analyze", "profile", "-m", "/copy", "--profile-models", "m"]
    assert made[made.index("--latency-budget") + 1] == "20"
    assert "--write-best-config" in file_arguments(order, Path("/job"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "perf"}, "missing required field `model`"),
        ({"type": "shell", "model": "m"}, "Invalid value 'shell'"),
        ({"type": "perf", "model": "m", "html": "/etc/x"}, "unknown field `html`"),
        ({"type": "perf", "model": "m", "concurrency": "1 -u evil"}, "expected N, START:END"),
        ({"type": "perf", "model": "m", "concurrency": "1:4096"}, "at most 50 levels"),
        ({"type": "perf", "model": "m", "concurrency": "8:2"}, "at most 50 levels"),
        ({"type": "perf", "model": "m", "interval_ms": 1}, "interval_ms is 1"),
        ({"type": "perf", "model": "m", "protocol": "udp"}, "Invalid enum value 'udp'"),
        ({"type": "analyze", "model": "m", "max_instances": 0}, "max_instances is 0"),
    ],
)
def test_refuses_what_is_not_a_measurement(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NaiadError, match=message):
        decode_order(json.dumps(fields).encode())


def test_grpc_needs_a_port_that_a_child_can_use() -> None:
    with pytest.raises(NaiadError, match="--allow-grpc=false"):
        line(target(), type="perf", model="m", protocol="grpc")
    with pytest.raises(NaiadError, match="TLS"):
        line(target(grpc_url="127.0.0.1:1", is_tls=True), type="perf", model="m", protocol="grpc")
