"""Opens model files as a load does, in a process of its own: what a file says completes the config,
and a config that contradicts it is a problem. Part of check.

In:  a config and the folder of one version. Out: the completed config, or the reason for which the
     backend refuses the model.
Rule: no code of the model runs, so Python classes, pickles, compiled programs and models with
      libraries of their own are not opened. `naiad check --load` opens them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.backends.torch.archive import FileKind, file_kind
from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.completion_request import CompletionRequest, CompletionResult
from naiad.ipc.work import LoadArguments
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.check.packages import IsInstalled, package_of
from naiad.repository.config.autocomplete import (
    apply_auto_complete,
    fill_defaults,
    fill_instance_groups,
)
from naiad.repository.config.config import ConfigOptions
from naiad.repository.config.config_json import config_to_json
from naiad.repository.reading_process import Limits, Readers

MAX_FILE_BYTES = 1 << 30
"""A larger file takes too long."""
LIMIT_S = 120.0


def may_open(config: ModelConfig, path: Path, is_installed: IsInstalled) -> bool:
    """Whether the file can be opened here, without code of the model."""
    package = package_of(config.backend)
    if not package or not is_installed(package) or config.runtime:
        return False
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        return False
    if config.model_operations.op_library_filename or "CPU_EXTENSION_PATH" in config.parameters:
        return False
    try:
        return config.backend != "pytorch" or file_kind(str(path), path.name) in (
            FileKind.TORCHSCRIPT,
            FileKind.EXPORTED,
        )
    except NaiadError:
        return False


def read_model(
    config: ModelConfig, version: int, model_dir: Path, options: ConfigOptions
) -> ModelConfig:
    """Returns the completed config. Raises NaiadError with the reason of a load that fails; no
    reason is found in a file that takes too long."""
    arguments = LoadArguments(
        config.name,
        version,
        str(model_dir.absolute()),
        f"{config.name}_0",
        "CPU",
        0,
        config_to_json(config),
        config.default_model_filename,
    )
    request = CompletionRequest(
        config.backend,
        arguments,
        should_complete=options.is_auto_complete_enabled,
        should_load=True,
    )
    content = Readers().run(
        "naiad.worker.completion", request, "reading the model", Limits(wall_s=LIMIT_S)
    )
    result = msgspec.json.decode(content, type=CompletionResult)
    if result.error:
        raise invalid_arg(result.error)
    completed = ModelConfig()
    completed.CopyFrom(config)
    apply_auto_complete(completed, result.fields)
    fill_defaults(completed)
    fill_instance_groups(completed, options.gpus)
    return completed
