"""Writes config.pbtxt files from what the model files declare, for `naiad check --write`.

In:  repositories, and example inputs for models whose files do not declare shapes.
Out: a config.pbtxt for every model that does not have one, and a list of the results.
Rule: an existing config.pbtxt is never changed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from naiad.core.datatype import DATATYPES
from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.completion_request import CompletionRequest, CompletionResult, Example
from naiad.ipc.work import LoadArguments
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.autocomplete import apply_auto_complete
from naiad.repository.config.config import ConfigOptions, read_model_config
from naiad.repository.config.config_json import config_to_json
from naiad.repository.scan import CONFIG_FILE, scan_repository

_COMPLETING = ("onnxruntime", "openvino", "pytorch")
"""Backends whose model files declare inputs and outputs. A Python model is not among them: it
completes its config each time it is loaded."""
_EXAMPLE = re.compile(
    r"(?:(?P<name>[^=]+)=)?(?P<shape>\d+(?:[,x]\d+)*)(?::(?P<datatype>[A-Za-z0-9_]+))?"
)


class Written(msgspec.Struct, frozen=True):
    path: Path
    error: str = ""
    """The reason why nothing was written; empty on success."""


def parse_example(text: str) -> Example:
    """Parses the text of --example. Raises NaiadError."""
    match = _EXAMPLE.fullmatch(text.strip())
    if match is None:
        raise invalid_arg(
            f"--example is '{text}', expected NAME=SHAPE[:DATATYPE], e.g. x=1,3,224,224 or"
            " ids=1,16:INT64"
        )
    datatype = (match["datatype"] or "").upper().removeprefix("TYPE_")
    if datatype and datatype not in DATATYPES:
        raise invalid_arg(
            f"--example is '{text}', but '{match['datatype']}' is not a datatype. Expected one of"
            f" {', '.join(DATATYPES)}"
        )
    return Example(
        (match["name"] or "").strip(),
        [int(dim) for dim in re.split("[,x]", match["shape"])],
        datatype,
    )


def write_configs(repositories: Sequence[Path], examples: Sequence[Example]) -> Iterator[Written]:
    """Yields a result for each model without a config.pbtxt, in order. Raises NaiadError if a
    repository cannot be read."""
    for repository in repositories:
        for directory in scan_repository(repository):
            path = directory.path / CONFIG_FILE
            if not path.exists() and directory.versions:
                try:
                    text = _config_text(directory.path, list(examples))
                except NaiadError as error:
                    yield Written(path, error.message)
                    continue
                if text:
                    path.write_text(text)
                    yield Written(path)


def _config_text(model_dir: Path, examples: list[Example]) -> str:
    """Returns the text of a config.pbtxt; empty if the backend cannot read the model file."""
    file = read_model_config(model_dir, options=ConfigOptions())
    config = file.config
    if config.backend not in _COMPLETING:
        return ""
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
    completion = _complete(CompletionRequest(config.backend, arguments, examples))
    if completion.error:
        raise invalid_arg(completion.error)
    apply_auto_complete(config, completion.fields)
    if not config.input and not config.output:
        raise invalid_arg(f"model '{name}' does not declare its inputs and outputs")
    return render_config(config)


def _complete(request: CompletionRequest) -> CompletionResult:
    """Reads the model file in another process, because a bad file may crash the backend."""
    command = [sys.executable, "-P", "-m", "naiad.worker.completion"]
    finished = subprocess.run(
        command, input=msgspec.json.encode(request), capture_output=True, check=False
    )
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


def render_config(config: ModelConfig) -> str:
    """Renders the fields that a person would write; reading the file fills in the others."""
    lines = [f'backend: "{config.backend}"', f"max_batch_size: {config.max_batch_size}"]
    for kind, tensors in (("input", config.input), ("output", config.output)):
        lines += [f"{kind} [", ",\n".join(f"  {_tensor(tensor)}" for tensor in tensors), "]"]
    if config.HasField("dynamic_batching"):
        lines.append("dynamic_batching { }")
    if config.model_transaction_policy.decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    return "\n".join(lines) + "\n"


def _tensor(tensor: Any) -> str:
    data_type = next(
        kind.config_name for kind in DATATYPES.values() if kind.config_number == tensor.data_type
    )
    parts = [f'name: "{tensor.name}"', f"data_type: {data_type}", f"dims: {_dims(tensor.dims)}"]
    if tensor.HasField("reshape"):
        parts.append(f"reshape {{ shape: {_dims(tensor.reshape.shape)} }}")
    if getattr(tensor, "optional", False):
        parts.append("optional: true")
    return "{ " + " ".join(parts) + " }"


def _dims(dims: Sequence[int]) -> str:
    return f"[ {', '.join(map(str, dims))} ]" if dims else "[ ]"
