"""Compares a config with the inputs and outputs of a model file: completes it or checks it.

In:  a Signature, which the framework reads from the model.
Out: the fields that Triton would complete, or NaiadError with Triton's messages.
Rule: a model batches if the first dimension of every tensor is -1, and only then.
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
    """The wire name, or "" if Triton has no such datatype."""
    shape: list[int] | None
    """The shape with the batch dimension. -1 is variable. None if the model does not tell it."""
    shown_type: str = ""
    """The framework's name of the type, for messages."""


class Signature(msgspec.Struct, frozen=True):
    inputs: list[TensorSignature]
    outputs: list[TensorSignature]
    optional_inputs: list[TensorSignature] = []
    """Inputs that a request may omit: ONNX initializers, and arguments with a default."""
    max_batch_size: int = 0
    """The largest batch that the model accepts; 0 if it does not tell."""


def default_max_batch_size(backend_config: dict[str, str]) -> int:
    value = backend_config.get("default-max-batch-size", "")
    return int(value) if value.isascii() and value.isdigit() else DEFAULT_MAX_BATCH_SIZE


class Completion(msgspec.Struct, frozen=True):
    fields: dict[str, Any]
    """The fields to add to the config's JSON. Empty if none is missing."""
    note: str = ""
    """A message for the log, or ""."""


def complete(config: ServedConfig, signature: Signature, default_batch_size: int) -> Completion:
    """As in Triton, completes a config only if its inputs or outputs are missing.

    Raises NaiadError.
    """
    if config.input and config.output:
        return Completion({})
    fields: dict[str, Any] = {}
    note = ""
    max_batch_size = config.max_batch_size
    if _can_batch(signature):
        if max_batch_size == 0:
            largest = signature.max_batch_size or default_batch_size
            max_batch_size = fields["max_batch_size"] = min(default_batch_size, largest)
            note = (
                f"autofilled max_batch_size to {max_batch_size} for model '{config.name}' since "
                "batching is supported but no max_batch_size is specified in model configuration. "
                "Must specify max_batch_size to utilize autofill with a larger max batch size"
            )
        if (
            max_batch_size > 1
            and config.sequence_batching is None
            and config.dynamic_batching is None
        ):
            fields["dynamic_batching"] = {}
    elif max_batch_size != 0:
        raise invalid_arg(
            f"autofill failed for model '{config.name}': model does not support batching while "
            "non-zero max_batch_size is specified"
        )
    hidden = (
        {state.input_name for state in config.states}
        | {state.output_name for state in config.states}
        | set(config.controls)
    )
    for field, configured, tensors in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        if not configured:
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
            f"autofill failed for model '{config.name}': the model does not tell the shape of its "
            f"{kind} '{tensor.name}'; describe its inputs and outputs in config.pbtxt"
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
            hint = (
                "; convert the model so that it returns tensors "
                "(for scikit-learn models: options={'zipmap': False})"
            )
        raise internal(
            f"unsupported datatype {tensor.shown_type} for {kind} '{tensor.name}' for model "
            f"'{config.name}'{hint}"
        )


def check(config: ServedConfig, signature: Signature) -> None:
    """Raises NaiadError if the config contradicts the model's signature."""
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
    if expected != len(signature.inputs):
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {len(signature.inputs)}"
        )
    for tensor in config.input:
        if tensor.name not in known_inputs:
            raise _unexpected("input", tensor.name, known_inputs)
    for tensor in config.input:
        known = known_inputs[tensor.name]
        _check_type(config, "input", tensor, known)
        if tensor.allow_ragged_batch:
            _check_ragged(config, tensor, known)
        else:
            _check_shape(config, tensor, known, is_input=True)
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    known_outputs = {tensor.name: tensor for tensor in signature.outputs}
    for tensor in config.output:
        known_output = known_outputs.get(tensor.name)
        if known_output is None:
            raise _unexpected("output", tensor.name, known_outputs)
        _check_type(config, "output", tensor, known_output)
        if tensor.name not in scattered:
            _check_shape(config, tensor, known_output, is_input=False)
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
    config: ServedConfig, kind: str, tensor: TensorConfig, known: TensorSignature
) -> None:
    _require_datatype(config, kind, known)
    if tensor.datatype != known.datatype:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects datatype "
            f"{tensor.data_type} for {kind} '{tensor.name}', "
            f"model provides {DATATYPES[known.datatype].config_name}"
        )


def _check_ragged(config: ServedConfig, tensor: TensorConfig, known: TensorSignature) -> None:
    if tensor.optional:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects model provides input "
            f"with shape [-1] for ragged input '{tensor.name}', which is not supported for "
            "optional input"
        )
    if known.shape is not None and known.shape != [-1]:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects model provides input "
            f"with shape [-1]  for ragged input '{tensor.name}', model provides "
            f"{_shown(known.shape)}"
        )


def _check_shape(
    config: ServedConfig, tensor: TensorConfig, known: TensorSignature, *, is_input: bool
) -> None:
    shape, dims = known.shape, tensor.model_dims
    if shape is None:
        return
    subject = f"model '{config.name}', tensor '{tensor.name}': "
    if config.is_batched:
        if shape[:1] != [-1]:
            raise invalid_arg(
                f"{subject}for the model to support batching the shape should have at least 1 "
                "dimension and the first dimension must be -1; but shape expected by the model is "
                f"{_shown(shape)}"
            )
        full = [-1, *dims]
        specified = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete shape {_shown(full)}"
        )
    elif not shape:
        if any(dim != 1 for dim in dims):
            raise invalid_arg(
                f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should only "
                "provide 1 in the model configuration when the model doesn't support batching. "
                f"Model configuration provided: {_shown(dims)}."
            )
        return
    else:
        full, specified = dims, f"shape {_shown(dims)}"
    if len(shape) != len(full) or not all(
        _fits(dim, config_dim, is_input) for dim, config_dim in zip(shape, full, strict=True)
    ):
        raise invalid_arg(
            f"{subject}the model expects {len(shape)} dimensions (shape {_shown(shape)}) but the "
            f"model configuration specifies {len(full)} dimensions ({specified})"
        )


def _fits(model_dim: int, config_dim: int, is_input: bool) -> bool:
    """Returns True if a dimension of the config may describe this dimension of the model.

    The config cannot make a fixed dimension of an input variable. An output may be fixed in the
    model or in the config alone.
    """
    if model_dim in (-1, config_dim):
        return True
    return not is_input and config_dim == -1


def _shown(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
