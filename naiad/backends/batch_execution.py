"""Runs a list of requests as one batch. All framework backends share this code.

In:  requests from the worker. Out: one response each.
Inputs are concatenated along the batch dimension, with one copy, or none for a single request.
Outputs are split into views.
Rule: if a run with several requests fails, each request is run alone, so that a bad request fails
      only itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from naiad.backends.backend import Runtime
from naiad.backends.ragged_batch import batch_input, scatter
from naiad.backends.served_config import ServedConfig, TensorConfig
from naiad.backends.tensor_array import (
    Array,
    array_dtype,
    flat_bytes,
    require_type,
    to_array,
    to_tensor,
)
from naiad.core.datatype import BY_CONFIG_NAME
from naiad.core.reshape import reshaped
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, internal
from naiad.ipc.work import WorkError, WorkRequest, WorkResponse

Run: TypeAlias = Callable[[dict[str, Array], list[str]], list[Array]]
"""Runs the model: (inputs by name, output names) -> these outputs, in this order."""

ErrorText: TypeAlias = Callable[[Exception], str]
"""Returns the message for the client about an exception of the framework, without paths."""


Warn: TypeAlias = Callable[[str], None]


def warning_to(runtime: Runtime) -> Warn:
    return lambda text: runtime.log("WARNING", text, "batch_execution.py", 0)


class _Output:
    """The configuration of one output."""

    __slots__ = ("datatype", "dims", "is_scalar", "model_dims", "name")

    def __init__(self, name: str, datatype: str, tensor: TensorConfig | None) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = tensor.dims if tensor is not None and tensor.reshape is not None else None
        self.model_dims = tensor.model_dims if tensor is not None else []
        self.is_scalar = tensor is not None and tensor.reshape is None and tensor.dims == [1]


class BatchExecution:
    def __init__(
        self,
        config: ServedConfig,
        run: Run,
        error_text: ErrorText,
        scalar_inputs: frozenset[str] = frozenset(),
        warn: Warn | None = None,
    ) -> None:
        """`scalar_inputs` are the inputs that have no dimensions in the model.

        A config can only give them the dims [ 1 ].
        """
        self._warn = warn
        """None when the warning about batches has been given."""
        self._config = config
        self._error_text = error_text
        self._scalar_inputs = scalar_inputs
        self._run = run
        self._is_batched = config.is_batched
        self._inputs = {tensor.name: tensor for tensor in config.input}
        self._ragged = {tensor.name for tensor in config.input if tensor.allow_ragged_batch}
        self._reshaped = {tensor.name for tensor in config.input if tensor.reshape is not None}
        outputs = {
            tensor.name: _Output(tensor.name, tensor.datatype, tensor) for tensor in config.output
        }
        for state in config.states:
            datatype = BY_CONFIG_NAME[state.data_type].name
            outputs.setdefault(state.output_name, _Output(state.output_name, datatype, None))
        self._outputs = outputs
        self._all_outputs = list(outputs)
        self._scattered = {
            name: batch.source_input[0]
            for batch in config.batch_output
            for name in batch.target_name
        }

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        if not self._is_batched or len(requests) == 1:
            return [self._execute_alone(request) for request in requests]
        try:
            return list(self._execute(requests))
        except Exception as error:
            reason = self._error_text(error)
        responses = [self._execute_alone(request) for request in requests]
        if self._warn is not None and not any(response.error for response in responses):
            warn, self._warn = self._warn, None
            warn(
                f"model '{self._config.name}' fails with a batch of {len(requests)} requests, each "
                "of which succeeds alone, so that batching costs time instead of saving it: lower "
                f"max_batch_size, which is {self._config.max_batch_size}, to what the model "
                f"accepts ({reason})"
            )
        return list(responses)

    def _execute_alone(self, request: WorkRequest) -> WorkResponse:
        try:
            return self._execute([request])[0]
        except NaiadError as error:
            return WorkResponse(error=WorkError.of(error))
        except Exception as error:
            return WorkResponse(error=WorkError(Code.INTERNAL.name, self._error_text(error)))

    def _execute(self, requests: list[WorkRequest]) -> list[WorkResponse]:
        output_names = self._requested_outputs(requests)
        arrays = self._run(self._merge(requests), output_names)
        if len(requests) == 1:
            return [self._respond_one(requests[0], output_names, arrays)]
        return self._split(requests, output_names, arrays)

    def _requested_outputs(self, requests: list[WorkRequest]) -> list[str]:
        """Returns every output that some request asks for. A request without names wants all."""
        first = requests[0].requested_outputs
        if not first:
            return self._all_outputs
        if len(requests) == 1:
            return first
        names: dict[str, None] = {}
        for request in requests:
            if not request.requested_outputs:
                return self._all_outputs
            names.update(dict.fromkeys(request.requested_outputs))
        return list(names)

    # Inputs.

    def _merge(self, requests: list[WorkRequest]) -> dict[str, Array]:
        inputs: dict[str, Array] = {}
        first = requests[0].inputs
        if len(requests) == 1:
            for tensor in first:
                inputs[tensor.name] = to_array(
                    tensor.data, tensor.datatype, self._model_shape(tensor)
                )
        else:
            for index, tensor in enumerate(first):
                inputs[tensor.name] = self._concatenated(_column(requests, index, tensor.name))
        for name in self._ragged:
            if name in inputs:
                inputs[name] = inputs[name].reshape(-1)
        for batch in self._config.batch_input:
            array = batch_input(batch, self._shapes(requests, batch.source_input[0]))
            inputs.update(dict.fromkeys(batch.target_name, array))
        return inputs

    def _concatenated(self, tensors: list[Tensor]) -> Array:
        first = tensors[0]
        if first.datatype == "BYTES":
            parts = [
                to_array(tensor.data, "BYTES", self._model_shape(tensor)) for tensor in tensors
            ]
            return np.concatenate(
                [part.reshape(-1) for part in parts] if first.name in self._ragged else parts
            )
        # Joining buffers is much cheaper than making as many small arrays, and the result is
        # writable and aligned.
        array: Array = np.frombuffer(
            bytearray().join([tensor.data for tensor in tensors]), array_dtype(first.datatype)
        )
        if first.name in self._ragged:
            return array
        shape = self._model_shape(first)
        return array.reshape(sum(tensor.shape[0] for tensor in tensors), *shape[1:])

    def _model_shape(self, tensor: Tensor) -> list[int]:
        if tensor.name not in self._reshaped:
            return [] if tensor.name in self._scalar_inputs else tensor.shape
        config = self._inputs[tensor.name]
        return reshaped(tensor.shape, config.dims, config.model_dims, int(self._is_batched))

    @staticmethod
    def _shapes(requests: list[WorkRequest], name: str) -> list[list[int]]:
        return [
            next(tensor.shape for tensor in request.inputs if tensor.name == name)
            for request in requests
        ]

    # Outputs.

    def _respond_one(
        self, request: WorkRequest, output_names: list[str], arrays: list[Array]
    ) -> WorkResponse:
        tensors: list[Tensor] = []
        for name, array in zip(output_names, arrays, strict=True):
            output = self._outputs[name]
            require_type(name, array, output.datatype)
            if name in self._scattered:
                array = scatter(name, array, self._shapes([request], self._scattered[name]))[0]
            elif self._is_batched:
                self._require_batch(output, array, _batch_size(request))
            tensors.append(
                to_tensor(name, array, output.datatype, self._client_shape(output, array))
            )
        return WorkResponse(tensors)

    def _split(
        self, requests: list[WorkRequest], output_names: list[str], arrays: list[Array]
    ) -> list[WorkResponse]:
        sizes = [_batch_size(request) for request in requests]
        total = sum(sizes)
        columns: dict[str, list[Tensor]] = {}
        for name, array in zip(output_names, arrays, strict=True):
            output = self._outputs[name]
            require_type(name, array, output.datatype)
            if name in self._scattered:
                parts = scatter(name, array, self._shapes(requests, self._scattered[name]))
                columns[name] = [
                    to_tensor(name, part, output.datatype, list(part.shape)) for part in parts
                ]
            else:
                self._require_batch(output, array, total)
                columns[name] = self._cut(output, array, sizes, total)
        if not any(request.requested_outputs for request in requests):
            return [WorkResponse(list(row)) for row in zip(*columns.values(), strict=True)]
        return [
            WorkResponse([columns[name][index] for name in request.requested_outputs or columns])
            for index, request in enumerate(requests)
        ]

    def _cut(self, output: _Output, array: Array, sizes: list[int], total: int) -> list[Tensor]:
        tail = self._client_shape(output, array)[1:]
        tensors: list[Tensor] = []
        start = 0
        if output.datatype == "BYTES":
            for size in sizes:
                tensors.append(
                    to_tensor(output.name, array[start : start + size], "BYTES", [size, *tail])
                )
                start += size
            return tensors
        data = flat_bytes(array)
        item_bytes = len(data) // total
        for size in sizes:
            end = start + size * item_bytes
            tensors.append(Tensor(output.name, output.datatype, [size, *tail], data[start:end]))
            start = end
        return tensors

    def _require_batch(self, output: _Output, array: Array, total: int) -> None:
        if array.ndim == 0 or array.shape[0] != total:
            raise internal(
                f"failed to split the output tensor '{output.name}' in responses: expected batch "
                f"size of {total} in model output, got shape [{','.join(map(str, array.shape))}]"
            )

    def _client_shape(self, output: _Output, array: Array) -> list[int]:
        shape = list(array.shape)
        if output.dims is not None:
            return reshaped(shape, output.model_dims, output.dims, int(self._is_batched))
        if not shape and output.is_scalar:
            return [1]
        return shape


def _column(requests: list[WorkRequest], index: int, name: str) -> list[Tensor]:
    """Returns one input of every request. `index` is correct if all have their inputs in the same
    order, as is nearly always the case."""
    try:
        column = [request.inputs[index] for request in requests]
        if all(tensor.name == name for tensor in column):
            return column
    except IndexError:
        pass
    return [
        next(tensor for tensor in request.inputs if tensor.name == name) for request in requests
    ]


def _batch_size(request: WorkRequest) -> int:
    return request.inputs[0].shape[0] if request.inputs else 1
