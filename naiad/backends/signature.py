"""What a model file says about its tensors, and what that means for the config: filled in where
missing, checked where given.

In:  a Signature, read from the model by its framework. Out: the fields that Triton would have
     completed, or NaiadError with its words.
Rule: a first dimension of -1 in every tensor means that the model batches; nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from naiad.backends.served_config import ServedConfig, TensorConfig
from naiad.core.datatype import DATATYPES
from naiad.errors import NaiadError, internal, invalid_arg

DEFAULT_MAX_BATCH_SIZE = 4


class TensorSignature(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    """Wire name; empty when the type is one that Triton's protocol cannot carry."""
    shape: list[int] | None
    """With the batch dimension, -1 where variable; None when the model does not tell."""
    shown_type: str = ""
    """The framework's own name of the type, for messages."""


class Signature(msgspec.Struct, frozen=True):
    inputs: list[TensorSignature]
    outputs: list[TensorSignature]
    optional_inputs: list[TensorSignature] = []
    """May be left out: ONNX initializers that are also inputs, arguments with a default."""


def default_max_batch_size(backend_config: dict[str, str]) -> int:
    value = backend_config.get("default-max-batch-size", "")
    return int(value) if value.isascii() and value.isdigit() else DEFAULT_MAX_BATCH_SIZE


class Completion(msgspec.Struct, frozen=True):
    fields: dict[str, Any]
    """Of the config's JSON; empty when nothing is missing."""
    note: str = ""
    """For the log."""


def complete(config: ServedConfig, signature: Signature, default_batch_size: int) -> Completion:
    """Triton completes a config only when its inputs or its outputs are missing. Raises
    NaiadError."""
    if config.input and config.output:
        return Completion({})
    fields: dict[str, Any] = {}
    note = ""
    max_batch_size = config.max_batch_size
    if _can_batch(signature):
        if max_batch_size == 0:
            max_batch_size = fields["max_batch_size"] = default_batch_size
            note = (
                f"autofilled max_batch_size to {max_batch_size} for model '{config.name}' since batching is supported but no "
                "max_batch_size is specified in model configuration. Must specify max_batch_size to utilize autofill with a "
                "larger max batch size"
            )
        if (
            max_batch_size > 1
            and config.sequence_batching is None
            and config.dynamic_batching is None
        ):
            fields["dynamic_batching"] = {}
    elif max_batch_size != 0:
        raise invalid_arg(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size is specified"
        )
    hidden = (
        {state.input_name for state in config.states}
        | {state.output_name for state in config.states}
        | set(config.controls)
    )
    for field, given, tensors in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        if not given:
            fields[field] = [
                _described(config, field, tensor, max_batch_size)
                for tensor in tensors
                if tensor.name not in hidden
            ]
    return Completion(fields, note)


def _can_batch(signature: Signature) -> bool:
    tensors = [*signature.inputs, *signature.outputs]
    return bool(tensors) and all(
        tensor.shape is not None and tensor.shape[:1] == [-1] for tensor in tensors
    )


def _described(
    config: ServedConfig, kind: str, tensor: TensorSignature, max_batch_size: int
) -> dict[str, Any]:
    _require_datatype(config, kind, tensor)
    if tensor.shape is None:
        raise invalid_arg(
            f"autofill failed for model '{config.name}': the model does not tell the shape of its {kind} '{tensor.name}'; "
            f"describe its inputs and outputs in config.pbtxt"
        )
    dims = tensor.shape[1:] if max_batch_size > 0 else tensor.shape
    described: dict[str, Any] = {
        "name": tensor.name,
        "data_type": DATATYPES[tensor.datatype].config_name,
        "dims": dims or [1],
    }
    if not dims and max_batch_size > 0:
        described["reshape"] = {"shape": []}
    return described


def _require_datatype(config: ServedConfig, kind: str, tensor: TensorSignature) -> None:
    if not tensor.datatype:
        hint = ""
        if tensor.shown_type.startswith(("seq", "map")):
            hint = "; convert the model so that it returns tensors (for scikit-learn models: options={'zipmap': False})"
        raise internal(
            f"unsupported datatype {tensor.shown_type} for {kind} '{tensor.name}' for model '{config.name}'{hint}"
        )


def check(config: ServedConfig, signature: Signature) -> None:
    """That the config describes this model, as far as the model tells. Raises NaiadError."""
    expected = (
        len(config.input)
        + len(config.controls)
        + len(config.states)
        + sum(len(batch.target_name) for batch in config.batch_input)
    )
    optional = {tensor.name for tensor in signature.optional_inputs}
    expected -= sum(tensor.name in optional for tensor in config.input)
    known_inputs = {
        tensor.name: tensor for tensor in [*signature.inputs, *signature.optional_inputs]
    }
    for tensor in config.input:
        if tensor.name not in known_inputs:
            raise _unexpected("input", tensor.name, known_inputs)
    if expected != len(signature.inputs):
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides {len(signature.inputs)}"
        )
    for tensor in config.input:
        found = known_inputs[tensor.name]
        _check_type(config, "input", tensor, found)
        if tensor.allow_ragged_batch:
            _check_ragged(config, tensor, found)
        else:
            _check_shape(config, tensor, found, is_input=True)
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    known_outputs = {tensor.name: tensor for tensor in signature.outputs}
    for tensor in config.output:
        found_output = known_outputs.get(tensor.name)
        if found_output is None:
            raise _unexpected("output", tensor.name, known_outputs)
        _check_type(config, "output", tensor, found_output)
        if tensor.name not in scattered:
            _check_shape(config, tensor, found_output, is_input=False)
    for state in config.states:
        if state.input_name not in known_inputs:
            raise _unexpected("input", state.input_name, known_inputs)
        if state.output_name not in known_outputs:
            raise _unexpected("output", state.output_name, known_outputs)


def _unexpected(kind: str, name: str, allowed: dict[str, TensorSignature]) -> NaiadError:
    return invalid_arg(
        f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(allowed)}"
    )


def _check_type(
    config: ServedConfig, kind: str, tensor: TensorConfig, found: TensorSignature
) -> None:
    _require_datatype(config, kind, found)
    if tensor.datatype != found.datatype:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects datatype {tensor.data_type} for {kind} '{tensor.name}', "
            f"model provides {DATATYPES[found.datatype].config_name}"
        )


def _check_ragged(config: ServedConfig, tensor: TensorConfig, found: TensorSignature) -> None:
    if tensor.optional:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for ragged input "
            f"'{tensor.name}', which is not supported for optional input"
        )
    if found.shape is not None and found.shape != [-1]:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1]  for ragged input "
            f"'{tensor.name}', model provides {_shown(found.shape)}"
        )


def _check_shape(
    config: ServedConfig, tensor: TensorConfig, found: TensorSignature, *, is_input: bool
) -> None:
    shape, dims = found.shape, tensor.model_dims
    if shape is None:
        return
    subject = f"model '{config.name}', tensor '{tensor.name}': "
    if config.is_batched:
        if shape[:1] != [-1]:
            raise invalid_arg(
                f"{subject}for the model to support batching the shape should have at least 1 dimension and the first dimension must "
                f"be -1; but shape expected by the model is {_shown(shape)}"
            )
        full = [-1, *dims]
        told = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            f"{_shown(full)}"
        )
    elif not shape:
        if any(dim != 1 for dim in dims):
            raise invalid_arg(
                f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should only provide 1 in the model "
                f"configuration when the model doesn't support batching. Model configuration provided: {_shown(dims)}."
            )
        return
    else:
        full, told = dims, f"shape {_shown(dims)}"
    if len(shape) != len(full) or not all(
        _fits(dim, wanted, is_input) for dim, wanted in zip(shape, full, strict=True)
    ):
        raise invalid_arg(
            f"{subject}the model expects {len(shape)} dimensions (shape {_shown(shape)}) but the model configuration specifies "
            f"{len(full)} dimensions ({told})"
        )


def _fits(model_dim: int, config_dim: int, is_input: bool) -> bool:
    """A fixed dimension of an input cannot be opened by the config; where only one side of an
    output is fixed, nothing is wrong."""
    if model_dim in (-1, config_dim):
        return True
    return not is_input and config_dim == -1


def _shown(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
