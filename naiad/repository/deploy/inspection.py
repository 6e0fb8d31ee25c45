"""What a model file itself tells: its batch size, inputs and outputs.

In:  the folder of a model, and example inputs for a file that does not declare shapes. Out: a
     ModelConfig with what the backend has read.
Rule: another process reads the file, because a bad file may crash the backend.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.completion_request import CompletionRequest, CompletionResult, Example
from naiad.ipc.work import LoadArguments
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.autocomplete import apply_auto_complete
from naiad.repository.config.config import ConfigOptions, read_model_config
from naiad.repository.config.config_json import config_to_json
from naiad.repository.reading_process import Readers

_COMPLETING = ("onnxruntime", "openvino", "pytorch")
"""Backends whose model files declare inputs and outputs. A Python model is not among them: it
completes its config each time it is loaded."""


def read_from_model(
    model_dir: Path, examples: list[Example], readers: Readers | None = None
) -> ModelConfig | None:
    """Returns the config with what the model file declares; None if the backend cannot read the
    model file. `examples` are inputs for a file that declares no shapes. Blocks. Raises
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
    request = CompletionRequest(config.backend, arguments, examples)
    completion = _complete(request, readers or Readers())
    if completion.error:
        raise invalid_arg(completion.error)
    apply_auto_complete(config, completion.fields)
    if not config.input and not config.output:
        raise invalid_arg(f"model '{name}' does not declare its inputs and outputs")
    return config


def _complete(request: CompletionRequest, readers: Readers) -> CompletionResult:
    """Reads the model file in another process, because a bad file may crash the backend."""
    try:
        result = readers.run("naiad.worker.completion", request, "reading the model")
    except NaiadError as error:
        return CompletionResult(error=error.message)
    return msgspec.json.decode(result, type=CompletionResult)
