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


class Readers:
    """The processes that read model files now, so that the end of the server can end them."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` holds their variables; None means those of this process."""
        self._environment = environment
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(self, command: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
        """Raises subprocess.TimeoutExpired."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        )
        self._processes.add(process)
        try:
            if self._is_stopped:
                process.kill()
            out, errors = process.communicate(content, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        finally:
            self._processes.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def stop(self) -> None:
        self._is_stopped = True
        for process in list(self._processes):
            process.kill()


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
    command = [sys.executable, "-P", "-m", "naiad.worker.completion"]
    try:
        finished = readers.run(command, msgspec.json.encode(request))
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
