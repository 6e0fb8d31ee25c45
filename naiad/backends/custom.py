"""The class to derive a custom backend from: it opens a model and runs it with numpy arrays.

Batching, strings and errors are handled here. A package registers its class under a name in the
entry point group `naiad.backends`, and a config.pbtxt selects it with `backend: "<name>"`
(docs/custom-backend.md shows one in 20 lines). A backend that needs more control
derives from naiad.backends.backend.Backend instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from naiad.backends.backend import Backend, Runtime
from naiad.backends.batch_execution import BatchExecution
from naiad.backends.python.model_module import version_dir
from naiad.backends.served_config import ServedConfig, read_config
from naiad.backends.tensor_array import Array
from naiad.core.datatype import DATATYPES
from naiad.errors import internal
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse

__all__ = ["Array", "ArrayBackend", "Context"]


class Context(msgspec.Struct, frozen=True):
    """The instance that a backend serves."""

    model_name: str
    version: int
    directory: Path
    """The version directory, with the model's files."""
    model_filename: str
    """`default_model_filename` of the config. May be empty."""
    parameters: Mapping[str, str]
    """`parameters` of the config."""
    options: Mapping[str, str]
    """The --backend-config settings of this backend."""
    config: dict[str, Any]
    """The whole config, as `GET /v2/models/M/config` shows it."""
    instance_name: str
    device: str
    """Either cpu or cuda:N."""


class ArrayBackend(Backend):
    """The class to derive from.

    An exception in `open` fails the load, and one in `run` fails the request. Neither ends the
    server.
    """

    def open(self, context: Context) -> None:
        """Loads the model. It is called once, before `run`."""

    def run(self, inputs: dict[str, Array]) -> Mapping[str, Any]:
        """Runs the model with inputs by name, and returns outputs by name.

        Requests of a batch are along the first dimension. Strings are object arrays of bytes.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Unloads the model. The process ends afterwards."""

    # The methods that the worker calls.

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)
        self.open(_context(arguments, config))
        datatypes = {tensor.name: tensor.datatype for tensor in config.output}

        def run(inputs: dict[str, Array], output_names: list[str]) -> list[Array]:
            outputs = self.run(inputs)
            return [_output(name, outputs, datatypes.get(name, "")) for name in output_names]

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
    """Returns one output, converted to the datatype of the config if it is of the same kind."""
    if name not in outputs:
        raise internal(
            f"the backend returned no output '{name}', only {', '.join(outputs) or 'none'}"
        )
    array = np.asarray(outputs[name])
    dtype = DATATYPES[datatype].numpy if datatype else None
    if (
        dtype is not None
        and array.dtype != dtype
        and array.dtype.kind not in "OSU"
        and np.can_cast(array.dtype, dtype, "same_kind")
    ):
        array = array.astype(dtype)
    return array
