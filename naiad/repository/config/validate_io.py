"""Rules for inputs, outputs, batch inputs and batch outputs; part of validate.

Rule: `dims` never include the batch dimension of a model that batches. Every message about shapes
      says so, because this is the most common mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from naiad.core.datatype import BY_CONFIG_NAME, BY_CONFIG_NUMBER
from naiad.pb.model_config_pb2 import (
    TYPE_FP32,
    TYPE_INT32,
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.suggestion import nearest

TENSORRT_PLATFORM = "tensorrt_plan"
_VARIABLE_HINT = "-1 to indicate a variable-size dimension"


def check_tensors(config: ModelConfig, found: ProblemList) -> None:
    for index, model_input in enumerate(config.input):
        _check_tensor(config, model_input, "input", f"input[{index}]", found)
        _check_format(config, model_input, f"input[{index}]", found)
    for index, model_output in enumerate(config.output):
        _check_tensor(config, model_output, "output", f"output[{index}]", found)


def dims_text(dims: Sequence[int]) -> str:
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def batch_note(config: ModelConfig, dims: Sequence[int]) -> str:
    """Explains how a client of this model sees `dims`."""
    if config.max_batch_size > 0:
        return (
            f"dims {dims_text(dims)}, which clients see as {dims_text([-1, *dims])} "
            f"because max_batch_size is {config.max_batch_size}"
        )
    return f"dims {dims_text(dims)}, the full shape because max_batch_size is 0"


def _check_tensor(
    config: ModelConfig, tensor: ModelInput | ModelOutput, kind: str, path: str, found: ProblemList
) -> None:
    suffix = f" for {config.name}"
    if not tensor.name:
        found.add(
            f"{kind}-name",
            f"model {kind} must specify 'name'{suffix}",
            path,
            found="no name",
            expected=f"the {kind}'s name",
        )
        return
    prefix = f"model {kind} '{tensor.name}' "
    if tensor.data_type not in BY_CONFIG_NUMBER:
        shown = "no data_type" if not tensor.data_type else f"data_type {tensor.data_type}"
        expected = "one of " + ", ".join(BY_CONFIG_NAME)
        found.add(
            f"{kind}-data-type",
            f"{prefix}must specify 'data_type'{suffix}",
            path,
            found=shown,
            expected=expected,
        )
    _check_dims(config, tensor, kind, path, found, prefix, suffix)
    if tensor.is_shape_tensor and config.platform != TENSORRT_PLATFORM:
        message = f"shape tensors are only supported for TensorRT platform{suffix}"
        shown = f"is_shape_tensor with {config.backend or config.platform}"
        found.add(
            "shape-tensor",
            message,
            f"{path}.is_shape_tensor",
            found=shown,
            expected="a TensorRT model",
            fix="remove is_shape_tensor",
        )
    if tensor.is_non_linear_format_io:
        _check_non_linear(config, tensor, kind, path, found, suffix)


def _check_dims(
    config: ModelConfig,
    tensor: ModelInput | ModelOutput,
    kind: str,
    path: str,
    found: ProblemList,
    prefix: str,
    suffix: str,
) -> None:
    if not tensor.dims:
        shape = "the shape of one batch element" if config.max_batch_size > 0 else "the full shape"
        message = f"{prefix}must specify 'dims'{suffix}"
        fix = (
            "write dims: [ 1 ] for one value per batch element"
            if config.max_batch_size > 0
            else "write dims: [ 1 ] for a single value"
        )
        found.add(
            f"{kind}-dims",
            message,
            path,
            found="no dims",
            expected=f"{shape}; -1 for a variable dimension",
            fix=fix,
        )
    for at, dim in _impossible(tensor.dims):
        message = f"{prefix}dimension must be integer >= 1, or {_VARIABLE_HINT}{suffix}"
        fix = "write -1 if the size varies"
        if dim == 0 and at == 0 and config.max_batch_size > 0:
            fix = "leave the batch dimension out of dims: max_batch_size adds it"
        found.add(
            f"{kind}-dims",
            message,
            f"{path}.dims[{at}]",
            found=str(dim),
            expected="1 or more, or -1",
            fix=fix,
        )
    if tensor.HasField("reshape"):
        _check_reshape(config, tensor, kind, path, found, prefix, suffix)


def _check_reshape(
    config: ModelConfig,
    tensor: ModelInput | ModelOutput,
    kind: str,
    path: str,
    found: ProblemList,
    prefix: str,
    suffix: str,
) -> None:
    shape = tensor.reshape.shape
    code = f"{kind}-reshape"
    if not shape and config.max_batch_size == 0:
        message = (
            f"{prefix}cannot have empty reshape for non-batching model "
            f"as scalar tensors are not supported{suffix}"
        )
        fix = "set max_batch_size, or remove the reshape"
        found.add(
            code,
            message,
            f"{path}.reshape",
            found="reshape { shape: [ ] } with max_batch_size 0",
            expected="a shape",
            fix=fix,
        )
    for at, dim in _impossible(shape):
        message = f"{prefix}reshape dimensions must be integer >= 1, or {_VARIABLE_HINT}{suffix}"
        found.add(
            code,
            message,
            f"{path}.reshape.shape[{at}]",
            found=str(dim),
            expected="1 or more, or -1",
        )
    if any(True for _ in _impossible([*tensor.dims, *shape])) or not tensor.dims:
        return
    shown = f"dims {dims_text(tensor.dims)} and reshape {dims_text(shape)}"
    dims_runs, shape_runs = _runs(tensor.dims), _runs(shape)
    if len(dims_runs) != len(shape_runs) and -1 in tensor.dims and -1 in shape:
        message = (
            f"{prefix}has different number of variable-size dimensions for dims and reshape{suffix}"
        )
        found.add(
            code,
            message,
            f"{path}.reshape",
            found=shown,
            expected="as many -1 in reshape as in dims",
        )
    elif dims_runs != shape_runs:
        message = f"{prefix}has different size for dims and reshape{suffix}"
        expected = (
            "the same number of elements before, between and after each -1; "
            "neither counts the batch dimension"
        )
        found.add(code, message, f"{path}.reshape", found=shown, expected=expected)


def _check_format(config: ModelConfig, tensor: ModelInput, path: str, found: ProblemList) -> None:
    if tensor.format in (ModelInput.FORMAT_NHWC, ModelInput.FORMAT_NCHW) and len(tensor.dims) != 3:
        message = f"model input NHWC/NCHW require 3 dims for {config.name}"
        order = (
            "height, width, channels"
            if tensor.format == ModelInput.FORMAT_NHWC
            else "channels, height, width"
        )
        fix = ""
        if len(tensor.dims) == 4:
            fix = "leave the batch dimension out of dims"
            fix += (
                ": max_batch_size adds it"
                if config.max_batch_size > 0
                else " and set max_batch_size"
            )
        shown = dims_text(tensor.dims)
        found.add(
            "input-format",
            message,
            f"{path}.dims",
            found=f"dims {shown}",
            expected=f"3 dims: {order}",
            fix=fix,
        )


def _check_non_linear(
    config: ModelConfig,
    tensor: ModelInput | ModelOutput,
    kind: str,
    path: str,
    found: ProblemList,
    suffix: str,
) -> None:
    where = f"{path}.is_non_linear_format_io"
    if config.platform != TENSORRT_PLATFORM:
        message = f"Non-linear IO format is only supported for the TensorRT platform{suffix}"
        found.add(
            "non-linear-io",
            message,
            where,
            found=config.backend or config.platform,
            expected="a TensorRT model",
        )
    elif len(tensor.dims) != 3:
        message = f"Non-linear IO format {kind} requires 3 dims{suffix}"
        found.add(
            "non-linear-io",
            message,
            where,
            found=f"dims {dims_text(tensor.dims)}",
            expected="3 dims",
        )


def check_batch_io(config: ModelConfig, found: ProblemList) -> None:
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    for index, batch_input in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        _check_kind(config, batch_input, "input", path, found)
        if batch_input.data_type not in (TYPE_INT32, TYPE_FP32):
            message = f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}"
            shown = (
                DataType.Name(batch_input.data_type)
                if batch_input.data_type in DataType.values()
                else str(batch_input.data_type)
            )
            found.add(
                "batch-input-type",
                message,
                f"{path}.data_type",
                found=shown,
                expected="TYPE_INT32 or TYPE_FP32",
            )
        _check_sources(config, batch_input, path, inputs, found)
    for index, batch_output in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        _check_kind(config, batch_output, "output", path, found)
        _check_sources(config, batch_output, path, inputs, found)
        _check_targets(config, batch_output, path, outputs, found)


def _check_kind(
    config: ModelConfig,
    batch_io: BatchInput | BatchOutput,
    side: str,
    path: str,
    found: ProblemList,
) -> None:
    kinds = BatchInput.Kind if isinstance(batch_io, BatchInput) else BatchOutput.Kind
    if batch_io.kind not in kinds.values():
        message = f"unknown batch {side} kind '{batch_io.kind}' for {config.name}"
        found.add(
            f"batch-{side}-kind",
            message,
            f"{path}.kind",
            found=str(batch_io.kind),
            expected="one of " + ", ".join(kinds.keys()),
        )
    elif len(batch_io.source_input) != 1:
        count = len(batch_io.source_input)
        message = (
            f"batch {side} kind '{kinds.Name(batch_io.kind)}' expects 1 source input, "
            f"got {count} for {config.name}"
        )
        found.add(
            f"batch-{side}-source",
            message,
            f"{path}.source_input",
            found=f"{count} source inputs",
            expected="exactly 1",
        )


def _check_sources(
    config: ModelConfig,
    batch_io: BatchInput | BatchOutput,
    path: str,
    inputs: list[str],
    found: ProblemList,
) -> None:
    for at, name in enumerate(batch_io.source_input):
        if name not in inputs:
            message = f"unknown source input name '{name}' for {config.name}"
            _unknown_name(
                "batch-source", message, f"{path}.source_input[{at}]", name, inputs, "inputs", found
            )


def _check_targets(
    config: ModelConfig,
    batch_output: BatchOutput,
    path: str,
    outputs: list[str],
    found: ProblemList,
) -> None:
    seen: set[str] = set()
    for at, name in enumerate(batch_output.target_name):
        where = f"{path}.target_name[{at}]"
        if name not in outputs:
            _unknown_name(
                "batch-target",
                f"unknown target output name '{name}' for {config.name}",
                where,
                name,
                outputs,
                "outputs",
                found,
            )
        elif name in seen:
            message = f"target output name '{name}' can only be specified once for {config.name}"
            found.add(
                "batch-target", message, where, found=f"'{name}' twice", expected="each target once"
            )
        seen.add(name)


def _unknown_name(
    code: str, message: str, path: str, name: str, known: list[str], kind: str, found: ProblemList
) -> None:
    near = nearest(name, known)
    fix = f"did you mean '{near}'?" if near else ""
    found.add(
        code,
        message,
        path,
        found=f"'{name}'",
        expected=f"one of the model's {kind}: {', '.join(known) or 'none'}",
        fix=fix,
    )


def _impossible(dims: Sequence[int]) -> Iterator[tuple[int, int]]:
    return ((at, dim) for at, dim in enumerate(dims) if dim < 1 and dim != -1)


def _runs(dims: Sequence[int]) -> list[int]:
    """The numbers of elements before, between and after variable dimensions: [2,4,-1,6] ->
    [8,6]."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [math.prod(run) for run in runs]
