"""Parameters of a config that concern the processes of a model, whatever its backend: cores,
memory, environment variables and the Python version.

In:  a ModelConfig. Out: WorkerSettings, or problems with the path of the parameter.
Rule: only the text is read here. Whether this machine has as many cores, or that Python, is a
      question of the load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from naiad.backends.served_config import CPU_CORES, VARIABLE_PREFIX
from naiad.core.byte_size import parse_bytes
from naiad.errors import invalid_arg
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.source_map import entry_path

MEMORY_LIMIT = "MEMORY_LIMIT"
"""The private memory of each process of the model, such as 4GiB."""
PYTHON_VERSION = "PYTHON_VERSION"
"""The version of the interpreter, such as 3.12, for a model that brings no environment."""
MIN_MEMORY_BYTES = 64 << 20
MAX_CORES = 100_000
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"3\.\d{1,2}")


class WorkerSettings(msgspec.Struct, frozen=True):
    num_cores: int = 0
    """The cores that each instance runs on; 0 means all."""
    max_memory_bytes: int = 0
    """0 means no limit."""
    variables: dict[str, str] = {}
    """Environment variables of the model's processes."""
    python_version: str = ""
    """Empty for the server's."""


class _BadParameter(msgspec.Struct, frozen=True):
    name: str
    value: str
    expected: str


def read_worker_settings(config: ModelConfig) -> WorkerSettings:
    """Raises NaiadError."""
    for bad in _bad_parameters(config):
        raise invalid_arg(_message(config, bad))
    return WorkerSettings(
        num_cores=int(_text(config, CPU_CORES) or 0),
        max_memory_bytes=parse_bytes(_text(config, MEMORY_LIMIT) or 0, MEMORY_LIMIT),
        variables={
            name.removeprefix(VARIABLE_PREFIX): value.string_value
            for name, value in config.parameters.items()
            if name.startswith(VARIABLE_PREFIX)
        },
        python_version=_text(config, PYTHON_VERSION),
    )


def check_worker_settings(config: ModelConfig, found: ProblemList) -> None:
    for bad in _bad_parameters(config):
        found.add(
            "worker-setting",
            _message(config, bad),
            entry_path("parameters", bad.name),
            found=f"'{bad.value}'",
            expected=bad.expected,
        )


def _bad_parameters(config: ModelConfig) -> Iterator[_BadParameter]:
    for name in sorted(config.parameters):
        value = config.parameters[name].string_value
        expected = _expected(name, value.strip())
        if config.HasField("ensemble_scheduling") and _is_own(name):
            expected = "no such parameter, because an ensemble has no process of its own"
        if expected:
            yield _BadParameter(name, value, expected)


def _is_own(name: str) -> bool:
    return name in (CPU_CORES, MEMORY_LIMIT, PYTHON_VERSION) or name.startswith(VARIABLE_PREFIX)


def _expected(name: str, value: str) -> str:
    """Returns what the parameter should be; empty if it is right, or not one of these."""
    match name:
        case "CPU_CORES":
            is_number = value.isascii() and value.isdecimal() and len(value) < 7
            if value and not (is_number and 1 <= int(value) <= MAX_CORES):
                return "a whole number of cores, at least 1"
        case "MEMORY_LIMIT":
            if value and not _is_size(value):
                return "a size of at least 64MiB, such as 4GiB"
        case "PYTHON_VERSION":
            if value and not _VERSION.fullmatch(value):
                return "a version such as 3.12"
        case _ if name.startswith(VARIABLE_PREFIX):
            variable = name.removeprefix(VARIABLE_PREFIX)
            if not _VARIABLE_NAME.fullmatch(variable) or "\0" in value:
                return "ENV: and a name of letters, digits and '_', such as ENV:MY_OPTION"
    return ""


def _is_size(value: str) -> bool:
    try:
        return MIN_MEMORY_BYTES <= parse_bytes(value, MEMORY_LIMIT) < 2**63
    except ValueError:
        return False


def _text(config: ModelConfig, name: str) -> str:
    return config.parameters[name].string_value.strip() if name in config.parameters else ""


def _message(config: ModelConfig, bad: _BadParameter) -> str:
    return (
        f"parameter '{bad.name}' of model '{config.name}' is '{bad.value}', expected {bad.expected}"
    )
