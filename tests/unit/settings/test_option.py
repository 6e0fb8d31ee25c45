import re
from typing import Annotated

import msgspec
import pytest

from naiad.settings.option import Group, declared_options
from naiad.settings.resolve import OPTIONS

GROUP = Group("Group")


class Undeclared(msgspec.Struct):
    port: int = 1


class Unparsed(msgspec.Struct):
    port: Annotated[bytes, GROUP("help")] = b""


def test_rejects_a_field_without_a_declaration() -> None:
    with pytest.raises(TypeError, match="setting 'port' is not declared"):
        declared_options(Undeclared)


def test_rejects_a_type_without_a_parser() -> None:
    with pytest.raises(
        TypeError, match="setting 'port' of type <class 'bytes'> needs a parse function"
    ):
        declared_options(Unparsed)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_help_text_is_a_sentence(name: str) -> None:
    help = OPTIONS[name].flag.help
    assert re.fullmatch(r"\S.*[.]", help), "expected a sentence that ends with a period"


def test_defaults_are_those_of_triton() -> None:
    """Users who move from Triton rely on its defaults."""
    defaults = {name: OPTIONS[name].default for name in TRITON_DEFAULTS}
    assert defaults == TRITON_DEFAULTS


TRITON_DEFAULTS = {
    "id": "triton",
    "exit-timeout-secs": 30,
    "log-verbose": 0,
    "log-info": True,
    "log-warning": True,
    "log-error": True,
    "log-format": "default",
    "exit-on-error": True,
    "disable-auto-complete-config": False,
    "strict-readiness": True,
    "model-control-mode": "none",
    "repository-poll-secs": 15,
    "model-load-thread-count": 4,
    "model-load-retry-count": 0,
    "model-namespacing": False,
    "enable-peer-access": True,
    "allow-http": True,
    "http-port": 8000,
    "reuse-http-port": False,
    "http-thread-count": 8,
    "http-max-input-size": 67108864,
    "allow-grpc": True,
    "grpc-port": 8001,
    "grpc-infer-thread-count": 2,
    "grpc-infer-allocation-pool-size": 8,
    "grpc-use-ssl": False,
    "grpc-infer-response-compression-level": "none",
    "grpc-keepalive-time": 7200000,
    "grpc-keepalive-timeout": 20000,
    "grpc-keepalive-permit-without-calls": False,
    "grpc-http2-max-pings-without-data": 2,
    "grpc-http2-min-recv-ping-interval-without-data": 300000,
    "grpc-http2-max-ping-strikes": 2,
    "allow-sagemaker": False,
    "sagemaker-port": 8080,
    "sagemaker-thread-count": 8,
    "vertex-ai-port": 8080,
    "vertex-ai-thread-count": 8,
    "allow-metrics": True,
    "allow-gpu-metrics": True,
    "allow-cpu-metrics": True,
    "metrics-port": 8002,
    "metrics-interval-ms": 2000.0,
    "rate-limit": "off",
    "pinned-memory-pool-byte-size": 268435456,
    "buffer-manager-thread-count": 0,
    "backend-directory": "/opt/tritonserver/backends",
    "repoagent-directory": "/opt/tritonserver/repoagents",
    "cache-directory": "/opt/tritonserver/caches",
    "trace-rate": 1000,
    "trace-count": -1,
    "trace-log-frequency": 0,
}
