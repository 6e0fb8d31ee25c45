"""For writers of backends: a class that opens a model and runs arrays through it. Batching,
strings, errors are done here.

A package offers it under a name, by the entry point group `naiad.backends` (docs/custom-backend.md
shows one in 20 lines); a config.pbtxt then says `backend: "<that name>"`. Whoever wants more
implements naiad.backends.backend.Backend instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from naiad.backends.backend import Runtime
from naiad.backends.batch_execution import BatchExecution
from naiad.backends.python.model_module import version_dir
from naiad.backends.served_config import ServedConfig, read_config
from naiad.backends.tensor_array import Array
from naiad.core.datatype import DATATYPES
from naiad.core.work import LoadArguments, WorkRequest, WorkResponse
from naiad.errors import internal

__all__ = ["Array", "ArrayBackend", "Context"]


class Context(msgspec.Struct, frozen=True):
    """What a backend may know about the instance that it serves."""

    model_name: str
    version: int
    directory: Path
    """The version's: the model's files."""
    model_filename: str
    """`default_model_filename` of the config; may be empty."""
    parameters: Mapping[str, str]
    """Of the config."""
    options: Mapping[str, str]
    """What --backend-config says for this backend."""
    config: dict[str, Any]
    """The whole config, as `GET /v2/models/M/config` shows it."""
    instance_name: str
    device: str
    """cpu, or cuda:N."""


class ArrayBackend:
    """Subclass it. An exception from `open` fails the load, one from `run` the request; neither
    ends the server."""

    def open(self, context: Context) -> None:
        """Loads the model; called once, before anything else."""

    def run(self, inputs: dict[str, Array]) -> Mapping[str, Any]:
        """Inputs by name, requests of a batch along the first dimension; strings are object arrays
        of bytes. Outputs by name."""
        raise NotImplementedError

    def close(self) -> None:
        """The model is unloaded; the process ends afterwards."""

    # naiad.backends.backend.Backend, for the worker.

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)
        self.open(_context(arguments, config))
        datatypes = {tensor.name: tensor.datatype for tensor in config.output}

        def run(inputs: dict[str, Array], wanted: list[str]) -> list[Array]:
            outputs = self.run(inputs)
            return [_output(name, outputs, datatypes.get(name, "")) for name in wanted]

        self._execution = BatchExecution(
            config, run, lambda error: f"{type(error).__name__}: {error}"
        )

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        return self._execution.execute(requests)

    def unload(self) -> None:
        self.close()


def _context(arguments: LoadArguments, config: ServedConfig) -> Context:
    return Context(
        arguments.model_name,
        arguments.model_version,
        Path(version_dir(arguments)),
        arguments.model_filename,
        {name: parameter.string_value for name, parameter in config.parameters.items()},
        arguments.backend_config,
        msgspec.json.decode(arguments.model_config),
        arguments.instance_name,
        f"cuda:{arguments.device_id}" if arguments.instance_kind == "GPU" else "cpu",
    )


def _output(name: str, outputs: Mapping[str, Any], datatype: str) -> Array:
    """Numbers are converted to the type that the config promises, as far as that loses nothing."""
    if name not in outputs:
        raise internal(
            f"the backend returned no output '{name}', only {', '.join(outputs) or 'none'}"
        )
    array = np.asarray(outputs[name])
    wanted = DATATYPES[datatype].numpy if datatype else None
    if (
        wanted is not None
        and array.dtype != wanted
        and array.dtype.kind not in "OSU"
        and np.can_cast(array.dtype, wanted, "same_kind")
    ):
        array = array.astype(wanted)
    return array
