"""What a load asks of a config and of the model's files before it starts a process. `naiad check`
asks the same.

In:  a completed config and the model's directory. Out: nothing, or the NaiadError of the load.
"""

from __future__ import annotations

import math
from pathlib import Path

from naiad.core.model_spec import ModelSpec
from naiad.errors import invalid_arg
from naiad.instances.load_limit import LOAD_TIMEOUT
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.worker_settings import PYTHON_VERSION, read_worker_settings
from naiad.repository.load.warmup import read_warmup
from naiad.repository.model import build_spec
from naiad.scheduling.sequence.controls import read_controls
from naiad.scheduling.sequence.implicit_state import read_state

STUB_NAME_EXCLUDES = frozenset(";|&$`<>()[]{}\\\"'*?~#!")
"""Triton passes the name of a Python model's instance to a shell, and refuses these characters."""
EXECUTION_TIMEOUT = "EXECUTION_TIMEOUT_SECS"
"""Parameter of a model's config: a worker whose `execute` takes longer is killed. Without it, a
slow worker counts as busy, not as dead."""


def require_startable(config: ModelConfig, max_instances: int) -> None:
    """The rules that need no tensors. Raises NaiadError."""
    check_count(config, max_instances)
    for parameter in (EXECUTION_TIMEOUT, LOAD_TIMEOUT):
        read_seconds(config, parameter, 0.0)
    if config.backend == "python":
        for name in (config.name, *(group.name for group in config.instance_group)):
            check_stub_name(name)
    else:
        require_no_python_version(config)


def require_readable(config: ModelConfig, versions: list[int], model_dir: Path) -> None:
    """The rules for tensors, whose config must be complete. Raises NaiadError."""
    for version in versions:
        read_warmup(config, read_spec(config, version, versions, model_dir), model_dir)
    if config.HasField("sequence_batching"):
        read_controls(config)
        read_state(config, model_dir)


def read_spec(config: ModelConfig, version: int, versions: list[int], model_dir: Path) -> ModelSpec:
    try:
        return build_spec(config, version, versions, model_dir)
    except OSError as error:
        raise invalid_arg(
            f"failed to read a label file of model '{config.name}': {error.strerror}"
        ) from error


def require_no_python_version(config: ModelConfig) -> None:
    if read_worker_settings(config).python_version:
        raise invalid_arg(
            f"model '{config.name}' has the parameter '{PYTHON_VERSION}', which is for Python "
            f"models; its backend is '{config.backend}'"
        )


def check_count(config: ModelConfig, max_instances: int) -> None:
    """Each instance is a process, so a wrong digit could stop the machine."""
    count = sum(
        max(group.count, 1) * (len(group.gpus) if group.kind == ModelInstanceGroup.KIND_GPU else 1)
        for group in config.instance_group
    )
    if count > max_instances:
        raise invalid_arg(
            f"model '{config.name}' asks for {count} instances in its instance_group, but "
            f"--max-model-instances allows {max_instances}"
        )


def check_stub_name(name: str) -> None:
    if not STUB_NAME_EXCLUDES.isdisjoint(name):
        raise invalid_arg("Invalid stub name: contains invalid characters")


def read_seconds(config: ModelConfig, parameter: str, default: float) -> float:
    """A parameter of the model's config that is a time. Raises NaiadError."""
    text = config.parameters[parameter].string_value if parameter in config.parameters else ""
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise invalid_arg(
            f"parameter '{parameter}' of model '{config.name}' is '{text}', expected seconds"
        )
    return max(seconds, 0.0)
