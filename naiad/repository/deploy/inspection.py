"""What a model file itself tells: its batch size, inputs and outputs.

In:  the folder of a model, and example inputs for a file that does not declare shapes. Out: a
     ModelConfig with what the backend has read.
Rule: another process reads the file, because a bad file may crash the backend.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from naiad.errors import invalid_arg
from naiad.ipc.completion_request import CompletionRequest, CompletionResult, Example
from naiad.ipc.work import LoadArguments
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.autocomplete import apply_auto_complete
from naiad.repository.config.config import ConfigOptions, read_model_config
from naiad.repository.config.config_json import config_to_json

_COMPLETING = ("onnxruntime", "openvino", "pytorch")
"""Backends whose model files declare inputs and outputs. A Python model is not among them: it
completes its config each time it is loaded."""
LIMIT_S = 600.0


def read_from_model(
    model_dir: Path, examples: list[Example], environment: Mapping[str, str] | None = None
) -> ModelConfig | None:
    """Returns the config with what the model file declares; None if the backend cannot read the
    model file. `examples` are inputs for a file that declares no shapes. `environment` holds the
    variables of the process that reads it; None means those of this process. Blocks. Raises
    NaiadError."""
    file = read_model_config(model_dir, options=ConfigOptions())
    config = file.config
    if config.backend not in _COMPLETING:
        return None
    version = max(file.versions)
    name = config.name
    arguments = LoadArguments(
        name,
        version,
        str(model_dir.absolute()),
        f"{name}_0",
        "CPU",
        0,
        config_to_json(config),
        config.default_model_filename,
    )
    completion = _complete(CompletionRequest(config.backend, arguments, examples), environment)
    if completion.error:
        raise invalid_arg(completion.error)
    apply_auto_complete(config, completion.fields)
    if not config.input and not config.output:
        raise invalid_arg(f"model '{name}' does not declare its inputs and outputs")
    return config


def _complete(
    request: CompletionRequest, environment: Mapping[str, str] | None
) -> CompletionResult:
    """Reads the model file in another process, because a bad file may crash the backend."""
    command = [sys.executable, "-P", "-m", "naiad.worker.completion"]
    try:
        finished = subprocess.run(
            command,
            input=msgspec.json.encode(request),
            capture_output=True,
            check=False,
            timeout=LIMIT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return CompletionResult(error=f"reading the model took more than {LIMIT_S:.0f} s")
    if finished.returncode < 0:
        return CompletionResult(
            error="the process that read the model was killed by"
            f" {signal.Signals(-finished.returncode).name}"
        )
    if finished.returncode:
        lines = finished.stderr.decode(errors="replace").strip().splitlines()
        status = f"the process that read the model exited with status {finished.returncode}"
        return CompletionResult(error=lines[-1] if lines else status)
    return msgspec.json.decode(finished.stdout, type=CompletionResult)
