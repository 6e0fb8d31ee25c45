"""The PyTorch backend.

It runs TorchScript (`model.pt`), exported and AOT-compiled programs (`model.pt2`) and Python
classes (`runtime: "model.py"`).
In:  batches of requests. Out: their responses. On the CPU, tensors share memory with requests and
     responses.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from naiad.backends.backend import Backend, Runtime
from naiad.backends.batch_execution import BatchExecution, warning_to
from naiad.backends.served_config import ServedConfig, TensorConfig, read_config
from naiad.backends.signature import complete, default_max_batch_size
from naiad.backends.tensor_array import Array
from naiad.backends.torch.example import signature_by_example
from naiad.backends.torch.load import load_program
from naiad.backends.torch.missing_shapes import missing_shapes_error
from naiad.backends.torch.options import apply_options, choose_device, inference_context
from naiad.backends.torch.program import STRINGS, Calling, Program, match
from naiad.backends.torch.tensor import Allocate, from_strings, from_torch, to_strings, to_torch
from naiad.core.datatype import BY_CONFIG_NAME
from naiad.errors import internal, invalid_arg
from naiad.ipc.completion_request import Example
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse


class PytorchBackend(Backend):
    def __init__(self) -> None:
        self._program: Program | None = None
        self._device: Any = None
        self._placed = ("", 0)
        self._notes: list[str] = []
        self._execution: BatchExecution | None = None
        self._should_clean = False

    def complete_config(self, arguments: LoadArguments) -> bytes:
        config = read_config(arguments)
        if config.input and config.output:
            return arguments.model_config
        program = self._load(arguments, config)
        if program.signature is None:
            raise missing_shapes_error(
                config,
                program,
                f"{arguments.model_version}/{arguments.model_filename or 'model.pt'}",
            )
        completion = complete(
            config, program.signature, default_max_batch_size(arguments.backend_config)
        )
        self._notes += filter(None, [completion.note])
        return msgspec.json.encode(completion.fields)

    def complete_by_example(self, arguments: LoadArguments, examples: list[Example]) -> bytes:
        """Like `complete_config`, for a file without shapes: runs the model with example inputs."""
        config = read_config(arguments)
        program = self._load(arguments, config)
        signature = program.signature or signature_by_example(config, program, examples)
        return msgspec.json.encode(
            complete(config, signature, default_max_batch_size(arguments.backend_config)).fields
        )

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)
        program = self._load(arguments, config)
        calling = match(program, config)
        largest = 0 if program.signature is None else program.signature.max_batch_size
        if 0 < largest < config.max_batch_size:
            self._notes.append(
                f"max_batch_size of model '{config.name}' is {config.max_batch_size}, but the "
                f"program was exported for batches of up to {largest}: larger ones are run request "
                "by request"
            )
        for note in self._notes:
            runtime.log("WARNING", note, "backend.py", 0)
        run = _Runner(program, calling, config, self._device, runtime.allocate)
        self._execution = BatchExecution(config, run, _error_text, warn=warning_to(runtime))
        self._should_clean = (
            config.flag("ENABLE_CACHE_CLEANING", False) and arguments.instance_kind == "GPU"
        )

    def _load(self, arguments: LoadArguments, config: ServedConfig) -> Program:
        """Loads the model once per process: completing a config does not change the model."""
        placed = (arguments.instance_kind, arguments.device_id)
        if self._program is None or placed != self._placed:
            self._notes += apply_options(config)
            self._device = choose_device(arguments)
            self._program = load_program(arguments, config, self._device, self._notes)
            self._placed = placed
        return self._program

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        assert self._execution is not None
        responses = self._execution.execute(requests)
        if self._should_clean:
            torch.cuda.empty_cache()
        return responses

    def unload(self) -> None:
        self._program = self._execution = None


class _Runner:
    def __init__(
        self,
        program: Program,
        calling: Calling,
        config: ServedConfig,
        device: Any,
        allocate: Allocate,
    ) -> None:
        self._call = program.call
        self._arguments = program.arguments
        self._calling = calling
        self._device = device
        self._allocate = allocate
        self._context = inference_context(config)
        self._datatypes = _input_datatypes(config)
        self._outputs = {tensor.name: tensor for tensor in config.output}
        self._is_batched = config.is_batched

    def __call__(self, inputs: dict[str, Array], output_names: list[str]) -> list[Array]:
        with self._context():
            returned = self._forward(inputs)
            return [
                self._read(name, _pick(returned, name, self._calling.outputs[name]))
                for name in output_names
            ]

    def _forward(self, inputs: dict[str, Array]) -> Any:
        if self._calling.dictionary:
            return self._call({name: self._tensor(name, array) for name, array in inputs.items()})
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        names = {self._calling.positions[name]: name for name in inputs}
        for index, argument in enumerate(self._arguments):
            name = names.get(index)
            if name is None:
                if not argument.is_optional:
                    raise invalid_arg(
                        f"input for argument '{argument.name}' of the model is missing"
                    )
                continue
            value = (
                to_strings(inputs[name])
                if argument.kind == STRINGS
                else self._tensor(name, inputs[name])
            )
            if argument.is_keyword or len(positional) < index:
                keywords[argument.name] = value
            else:
                positional.append(value)
        return self._call(*positional, **keywords)

    def _tensor(self, name: str, array: Array) -> Any:
        datatype = self._datatypes.get(name, "")
        if datatype == "BYTES":
            raise invalid_arg(
                f"input '{name}' is TYPE_STRING, but the model takes a tensor: PyTorch has no "
                "tensors of strings"
            )
        return to_torch(array, datatype, self._device)

    def _read(self, name: str, value: Any) -> Array:
        if isinstance(value, torch.Tensor):
            return from_torch(name, value, self._allocate)
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return _shaped(from_strings(value), self._outputs.get(name), self._is_batched)
        raise internal(
            f"output '{name}' must be of type Tensor or List[str], received {type(value).__name__}"
        )


def _error_text(error: Exception) -> str:
    """Returns the message for the client.

    TorchScript's messages are tracebacks with the paths of the model's author. Only their last
    line is used.
    """
    if isinstance(error, UnicodeDecodeError):
        return (
            "PyTorch execute failure: a string is not valid UTF-8 "
            f"({error.reason} at byte {error.start})"
        )
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and "TorchScript interpreter" in lines[0]:
        lines = lines[-1:]
    return f"PyTorch execute failure: {' '.join(lines[:3]) or type(error).__name__}"


def _input_datatypes(config: ServedConfig) -> dict[str, str]:
    datatypes = {tensor.name: tensor.datatype for tensor in config.input}
    datatypes |= {state.input_name: BY_CONFIG_NAME[state.data_type].name for state in config.states}
    return datatypes


def _pick(returned: Any, name: str, key: int | str) -> Any:
    """Returns one output of the value that `forward` returned.

    The value is a tensor, a list of strings, a tuple or list of these, or a dictionary of tensors.
    """
    if isinstance(returned, dict):
        if isinstance(key, int):
            values = list(returned.values())
            key = list(returned)[key] if key < len(values) else ""
        if key not in returned:
            keys = ", ".join(map(str, returned))
            raise internal(f"output '{name}': the model returned a dictionary with {keys}")
        return returned[key]
    is_single = isinstance(returned, torch.Tensor) or (
        isinstance(returned, list) and all(isinstance(text, str) for text in returned)
    )
    values = [returned] if is_single or not isinstance(returned, (tuple, list)) else list(returned)
    index = key if isinstance(key, int) else _index_of(key)
    if index >= len(values):
        raise internal(f"output '{name}': the model returned {len(values)} outputs")
    return values[index]


def _index_of(key: str) -> int:
    """Returns the index in names such as `OUTPUT__1` and `RESULT[1]`."""
    digits = "".join(character for character in key if character.isdigit())
    return int(digits) if digits else 0


def _shaped(array: Array, output: TensorConfig | None, is_batched: bool) -> Array:
    """Gives a flat list of strings the shape of the config."""
    if output is None or not is_batched:
        return array
    dims = output.model_dims
    return array.reshape(-1, *dims) if -1 not in dims else array.reshape(-1, 1)
