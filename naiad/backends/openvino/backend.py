"""The OpenVINO backend: runs a `model.xml` on the CPU.

`default_model_filename` may name another file that OpenVINO can read.
In:  batches of requests. Out: their responses. Parameters have the names of Triton's backend.
If the config has a max_batch_size, a model with a fixed batch size is changed to accept any. With
SKIP_OV_DYNAMIC_BATCHSIZE it keeps its size, and ENABLE_BATCH_PADDING fills smaller batches.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import openvino

from naiad.backends.backend import Backend, Runtime
from naiad.backends.batch_execution import BatchExecution, warning_to
from naiad.backends.openvino.options import compile_options
from naiad.backends.served_config import ServedConfig, read_config
from naiad.backends.signature import (
    Signature,
    TensorSignature,
    check,
    complete,
    default_max_batch_size,
)
from naiad.backends.tensor_array import Array
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.shm.arena import INLINE_MAX_BYTES

_DATATYPES = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "bf16": "BF16",
}
"""Strings are missing because the CPU plugin (2026.4) crashes the process when it frees them."""


class OpenvinoBackend(Backend):
    def __init__(self) -> None:
        self._notes: list[str] = []
        self._execution: BatchExecution | None = None

    def complete_config(self, arguments: LoadArguments) -> bytes:
        config = read_config(arguments)
        if config.input and config.output:
            return arguments.model_config
        signature = read_signature(read_model(arguments, config))
        completion = complete(config, signature, default_max_batch_size(arguments.backend_config))
        self._notes += filter(None, [completion.note])
        return msgspec.json.encode(completion.fields)

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)
        if arguments.instance_kind == "GPU":
            self._notes.append(
                "the OpenVINO backend runs on the CPU: instance "
                f"'{arguments.instance_name}' does not use GPU"
            )
        model = read_model(arguments, config)
        try:
            fixed_batch = _fit_shapes(model, config)
            signature = read_signature(model)
            check(config, _opened(signature) if fixed_batch else signature)
            compiled = _core(config).compile_model(model, "CPU", compile_options(config))
        except NaiadError:
            raise
        except Exception as error:
            raise internal(
                f"failed to compile model '{config.name}': {_error_text(error, arguments)}"
            ) from error
        for note in self._notes:
            runtime.log("WARNING", note, "backend.py", 0)
        run = _Runner(compiled, signature, config, fixed_batch, runtime)
        scalars = frozenset(tensor.name for tensor in signature.inputs if tensor.shape == [])
        self._execution = BatchExecution(
            config,
            run,
            lambda error: f"OpenVINO error: {_error_text(error, arguments)}",
            scalars,
            warning_to(runtime),
        )

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        assert self._execution is not None
        return self._execution.execute(requests)

    def unload(self) -> None:
        self._execution = None


def _core(config: ServedConfig) -> Any:
    core = openvino.Core()
    extension = config.text("CPU_EXTENSION_PATH")
    if extension:
        core.add_extension(extension)
    return core


def read_model(arguments: LoadArguments, config: ServedConfig) -> Any:
    """Raises NaiadError."""
    name = arguments.model_filename or "model.xml"
    path = os.path.join(arguments.model_dir, str(arguments.model_version), name)
    shown = f"{arguments.model_name}/{arguments.model_version}/{name}"
    if not os.path.exists(path):
        raise internal(f"unable to find '{shown}' for model '{config.name}': no such file")
    try:
        return _core(config).read_model(path)
    except Exception as error:
        raise internal(f"failed to read '{shown}': {_error_text(error, arguments)}") from error


def read_signature(model: Any) -> Signature:
    return Signature(
        [_signature(port) for port in model.inputs], [_signature(port) for port in model.outputs]
    )


def _signature(port: Any) -> TensorSignature:
    kind = port.get_element_type().get_type_name()
    partial = port.get_partial_shape()
    shape = None
    if not partial.rank.is_dynamic:
        shape = [-1 if dim.is_dynamic else dim.get_length() for dim in partial]
    return TensorSignature(_name(port), _DATATYPES.get(kind, ""), shape, kind)


def _name(port: Any) -> str:
    """Returns one of the port's names, or the name of its node if it has none."""
    return str(min(port.get_names()) if port.get_names() else port.get_node().get_friendly_name())


def _fit_shapes(model: Any, config: ServedConfig) -> bool:
    """Reshapes the model to the shapes of the config.

    Returns True if the batch size stays fixed, at max_batch_size.
    """
    if config.flag("RESHAPE_IO_LAYERS", False):
        batch = [-1] if config.is_batched else []
        dims = {
            tensor.name: openvino.PartialShape([*batch, *tensor.model_dims])
            for tensor in config.input
        }
        model.reshape(
            {_name(port): dims[_name(port)] for port in model.inputs if _name(port) in dims}
        )
        return False
    fixed = [port for port in model.inputs if _has_fixed_batch(port.get_partial_shape())]
    if not config.is_batched or not fixed:
        return False
    if config.flag("SKIP_OV_DYNAMIC_BATCHSIZE", False):
        return _require_fixed_batch(fixed, config)
    model.reshape(
        {
            _name(port): openvino.PartialShape([-1, *list(port.get_partial_shape())[1:]])
            for port in fixed
        }
    )
    return False


def _has_fixed_batch(shape: Any) -> bool:
    return bool(shape.rank.is_static and shape.rank.get_length() > 0 and shape[0].is_static)


def _require_fixed_batch(ports: list[Any], config: ServedConfig) -> bool:
    for port in ports:
        size = port.get_partial_shape()[0].get_length()
        if size != config.max_batch_size:
            raise invalid_arg(
                f"unable to load model '{config.name}', max_batch_size is {config.max_batch_size}, "
                f"but input '{_name(port)}' has a fixed batch of {size} and "
                "SKIP_OV_DYNAMIC_BATCHSIZE is set"
            )
    return True


def _opened(signature: Signature) -> Signature:
    """Returns the signature with a variable batch, to compare a model with a fixed batch."""

    def opened(tensor: TensorSignature) -> TensorSignature:
        return msgspec.structs.replace(tensor, shape=[-1, *(tensor.shape or [])[1:]])

    return Signature(
        [opened(tensor) for tensor in signature.inputs],
        [opened(tensor) for tensor in signature.outputs],
    )


class _Runner:
    def __init__(
        self,
        compiled: Any,
        signature: Signature,
        config: ServedConfig,
        fixed_batch: bool,
        runtime: Runtime,
    ) -> None:
        self._request = compiled.create_infer_request()
        self._datatypes = {
            tensor.name: tensor.datatype for tensor in [*signature.inputs, *signature.outputs]
        }
        self._inputs = {tensor.name: index for index, tensor in enumerate(signature.inputs)}
        self._outputs = {tensor.name: index for index, tensor in enumerate(signature.outputs)}
        self._batch = config.max_batch_size if fixed_batch else 0
        self._runtime = runtime
        self._should_pad = config.flag("ENABLE_BATCH_PADDING", False)

    def __call__(self, inputs: dict[str, Array], output_names: list[str]) -> list[Array]:
        count = len(next(iter(inputs.values()))) if self._batch else 0
        if self._batch and count != self._batch:
            if not self._should_pad:
                raise invalid_arg(
                    f"the model takes batches of exactly {self._batch}, got {count}; set "
                    "ENABLE_BATCH_PADDING to YES to have them filled up"
                )
            inputs = {name: _padded(array, self._batch) for name, array in inputs.items()}
        for name, array in inputs.items():
            self._request.set_input_tensor(
                self._inputs[name], _to_tensor(array, self._datatypes[name])
            )
        self._request.infer()
        arrays = [self._read(name) for name in output_names]
        return [array[:count] for array in arrays] if count else arrays

    def _read(self, name: str) -> Array:
        """Returns a copy, because the next run overwrites the memory of the request.

        A large copy goes to memory shared with the server.
        """
        source: Array = self._request.get_output_tensor(self._outputs[name]).data
        if self._datatypes[name] == "BF16":
            source = source.view(np.uint16)
        if source.nbytes <= INLINE_MAX_BYTES:
            return source.copy()
        array: Array = np.frombuffer(self._runtime.allocate(source.nbytes), source.dtype).reshape(
            source.shape
        )
        np.copyto(array, source)
        return array


def _to_tensor(array: Array, datatype: str) -> Any:
    """Shares the array's memory, if it is writable, as OpenVINO requires."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()
    if datatype == "BF16":
        return openvino.Tensor(array, openvino.Shape(list(array.shape)), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def _padded(array: Array, count: int) -> Array:
    if len(array) > count:
        raise invalid_arg(f"batch of {len(array)} exceeds the model's batch of {count}")
    return np.concatenate([array, np.zeros([count - len(array), *array.shape[1:]], array.dtype)])


def _error_text(error: Exception, arguments: LoadArguments) -> str:
    """Returns the last lines of the message, without paths.

    OpenVINO's messages start with its source files; the reason is in the last lines.
    """
    root = os.path.dirname(os.path.abspath(arguments.model_dir)) + os.sep
    lines = [line.strip() for line in str(error).replace(root, "").splitlines()]
    lines = [
        line for line in lines if line and not line.startswith(("Exception from src", "Check '"))
    ]
    return " ".join(lines[-2:]) or type(error).__name__
