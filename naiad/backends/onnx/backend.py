"""The onnxruntime backend: runs a `model.onnx`.

In:  batches of requests. Out: their responses, computed by one session per instance.
Numbers are not copied. If an output is large and its size is known in advance, onnxruntime writes
it to memory shared with the server.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from naiad.backends.backend import Backend, Runtime
from naiad.backends.batch_execution import BatchExecution, warning_to
from naiad.backends.onnx.idle_memory import IdleMemory, shares_arena
from naiad.backends.onnx.session import open_session, run_options
from naiad.backends.served_config import ServedConfig, read_config
from naiad.backends.signature import (
    Signature,
    TensorSignature,
    check,
    complete,
    default_max_batch_size,
)
from naiad.backends.tensor_array import Array, array_dtype
from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.shm.arena import INLINE_MAX_BYTES

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}
ONNX_BFLOAT16 = 16


class OnnxBackend(Backend):
    def __init__(self) -> None:
        self._session: Any = None
        self._device = ("", 0)
        self._notes: list[str] = []
        self._execution: BatchExecution | None = None
        self._idle_memory: IdleMemory | None = None

    def complete_config(self, arguments: LoadArguments) -> bytes:
        config = read_config(arguments)
        if config.input and config.output:
            return arguments.model_config
        signature = read_signature(self._open(arguments, config))
        completion = complete(config, signature, default_max_batch_size(arguments.backend_config))
        self._notes += filter(None, [completion.note])
        return msgspec.json.encode(completion.fields)

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)
        session = self._open(arguments, config)
        signature = read_signature(session)
        check(config, signature)
        for note in self._notes:
            runtime.log("WARNING", note, "backend.py", 0)
        scalars = frozenset(tensor.name for tensor in signature.inputs if tensor.shape == [])
        run = _Runner(session, config, signature, runtime)
        self._execution = BatchExecution(config, run, _error_text, scalars, warning_to(runtime))
        if shares_arena(config, session.get_providers()):
            self._idle_memory = IdleMemory()

    def _open(self, arguments: LoadArguments, config: ServedConfig) -> onnxruntime.InferenceSession:
        """Opens the session once per process: completing a config does not change the session."""
        device = (arguments.instance_kind, arguments.device_id)
        if self._session is None or device != self._device:
            self._session = open_session(arguments, config, self._notes)
            self._device = device
        return self._session

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        assert self._execution is not None
        try:
            return self._execution.execute(requests)
        finally:
            if self._idle_memory is not None:
                self._idle_memory.use()

    def unload(self) -> None:
        if self._idle_memory is not None:
            self._idle_memory.end()
        self._session = self._execution = None


def read_signature(session: onnxruntime.InferenceSession) -> Signature:
    return Signature(
        [_signature(node) for node in session.get_inputs()],
        [_signature(node) for node in session.get_outputs()],
        [_signature(node) for node in session.get_overridable_initializers()],
    )


def _signature(node: Any) -> TensorSignature:
    datatype = _DATATYPES.get(node.type, "")
    shape = None
    if datatype:
        # A symbolic dimension is a name or None.
        shape = [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape]
    return TensorSignature(node.name, datatype, shape, node.type)


class _Runner:
    def __init__(
        self, session: Any, config: ServedConfig, signature: Signature, runtime: Runtime
    ) -> None:
        self._session = session
        self._options = run_options(config)
        self._runtime = runtime
        self._is_batched = config.is_batched
        outputs = {tensor.name: tensor for tensor in signature.outputs}
        self._outputs = outputs
        self._strings = frozenset(
            tensor.name
            for tensor in [*signature.inputs, *signature.optional_inputs]
            if tensor.datatype == "BYTES"
        )
        self._has_bf16 = any(
            tensor.datatype == "BF16" for tensor in [*signature.inputs, *signature.outputs]
        )
        self._bf16 = frozenset(
            tensor.name
            for tensor in [*signature.inputs, *signature.optional_inputs]
            if tensor.datatype == "BF16"
        )
        self._item_bytes = {
            tensor.name: _item_bytes(tensor, config.is_batched) for tensor in signature.outputs
        }

    def __call__(self, inputs: dict[str, Array], output_names: list[str]) -> list[Array]:
        for name in self._strings:
            if name in inputs:
                inputs[name] = _decoded(name, inputs[name])
        if self._has_bf16 or self._is_large(inputs, output_names):
            return self._run_bound(inputs, output_names)
        arrays: list[Array] = self._session.run(output_names, inputs, self._options)
        return arrays

    def _is_large(self, inputs: dict[str, Array], output_names: list[str]) -> bool:
        """Returns True if an output is known to be too large for a message."""
        count = _batch_size(inputs) if self._is_batched else 1
        item_bytes = self._item_bytes
        return any(item_bytes[name] * count > INLINE_MAX_BYTES for name in output_names)

    def _run_bound(self, inputs: dict[str, Array], output_names: list[str]) -> list[Array]:
        binding = self._session.io_binding()
        kept: list[Array] = []
        for name, array in inputs.items():
            if name in self._bf16:
                array = np.ascontiguousarray(array)
                kept.append(array)
                binding.bind_input(
                    name, "cpu", 0, ONNX_BFLOAT16, list(array.shape), array.ctypes.data
                )
            else:
                binding.bind_cpu_input(name, array)
        count = _batch_size(inputs)
        arrays: dict[str, Array] = {}
        for name in output_names:
            placed = self._place(name, count)
            if placed is None:
                binding.bind_output(name, "cpu")
            else:
                arrays[name] = placed
                kind = (
                    ONNX_BFLOAT16 if self._outputs[name].datatype == "BF16" else placed.dtype.type
                )
                binding.bind_output(name, "cpu", 0, kind, list(placed.shape), placed.ctypes.data)
        self._session.run_with_iobinding(binding, self._options)
        values = binding.get_outputs()
        return [
            arrays[name] if name in arrays else self._read(name, value)
            for name, value in zip(output_names, values, strict=True)
        ]

    def _place(self, name: str, count: int) -> Array | None:
        """Returns memory for an output whose size is known, shared with the server if it is large.

        Returns None if onnxruntime has to allocate the memory.
        """
        tensor, item_bytes = self._outputs[name], self._item_bytes[name]
        if item_bytes == 0 or tensor.shape is None:
            return None
        shape = [count, *tensor.shape[1:]] if self._is_batched else tensor.shape
        dtype = array_dtype(tensor.datatype)
        if prod(shape) * dtype.itemsize <= INLINE_MAX_BYTES:
            return None if tensor.datatype != "BF16" else np.empty(shape, dtype)
        memory = self._runtime.allocate(prod(shape) * dtype.itemsize)
        return np.frombuffer(memory, dtype).reshape(shape)

    def _read(self, name: str, value: Any) -> Array:
        if self._outputs[name].datatype != "BF16":
            array: Array = value.numpy()
            return array
        return _bf16_bits(value)


def _error_text(error: Exception) -> str:
    return f"onnx runtime error: {str(error).strip() or type(error).__name__}"


def _item_bytes(tensor: TensorSignature, is_batched: bool) -> int:
    """Returns the size of one batch element, or of the whole output if the model does not batch.

    Returns 0 for strings, and if the model does not tell the size.
    """
    if tensor.shape is None or tensor.datatype in ("", "BYTES"):
        return 0
    dims = tensor.shape[1:] if is_batched else tensor.shape
    if any(dim < 0 for dim in dims) or (is_batched and not tensor.shape):
        return 0
    return prod(dims) * array_dtype(tensor.datatype).itemsize


def _batch_size(inputs: dict[str, Array]) -> int:
    for array in inputs.values():
        return int(array.shape[0]) if array.ndim else 1
    return 1


def _bf16_bits(value: Any) -> Array:
    """Copies the bits of a BF16 output, which onnxruntime cannot convert to numpy."""
    shape = value.shape()
    size = prod(shape)
    if not size:
        return np.empty(shape, np.uint16)
    bits = (ctypes.c_uint16 * size).from_address(value.data_ptr())
    return np.array(bits, np.uint16).reshape(shape)


def _decoded(name: str, array: Array) -> Array:
    """Decodes byte strings, because onnxruntime requires str. Raises NaiadError."""
    result = np.empty(array.shape, np.object_)
    flat = result.reshape(-1)
    for index, element in enumerate(array.reshape(-1).tolist()):
        try:
            flat[index] = element.decode()
        except UnicodeDecodeError as error:
            raise invalid_arg(
                f"input '{name}': element {index} is not valid UTF-8 "
                f"({error.reason} at byte {error.start})"
            ) from None
    return result
