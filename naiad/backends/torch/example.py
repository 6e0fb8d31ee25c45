"""Finds the signature of a PyTorch model whose file has no shapes, by running it with an example.

In:  a Program and the shapes of its inputs. Out: a Signature.
The model is run with zeros, once with the given shapes and once with one more row. It batches if
the first dimension of every output follows the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch

from naiad.backends.served_config import ServedConfig
from naiad.backends.signature import Signature, TensorSignature
from naiad.backends.torch.missing_shapes import guess_datatype
from naiad.backends.torch.program import TENSOR, Argument, Program
from naiad.backends.torch.tensor import DATATYPES, DTYPES
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.ipc.completion_request import Example


def signature_by_example(
    config: ServedConfig, program: Program, examples: list[Example]
) -> Signature:
    """Raises NaiadError."""
    arguments = _required(config, program)
    matched = _match(config, arguments, examples)
    inputs = [
        _input(argument, example, program)
        for argument, example in zip(arguments, matched, strict=True)
    ]
    first = _run(config, program, inputs, 0)
    batch = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    second = None
    if batch and all(tensor.shape[:1] == [batch] for tensor in inputs if tensor.shape):
        try:
            second = _run(config, program, inputs, 1)
        except NaiadError:
            pass  # the model accepts only this number of rows
    is_batched = second is not None and all(
        one.shape[:1] == (batch,) and more.shape[:1] == (batch + 1,)
        for (_, one), (_, more) in zip(first, second, strict=True)
    )
    outputs = [
        TensorSignature(
            name, DATATYPES.get(tensor.dtype, ""), list(tensor.shape), str(tensor.dtype)
        )
        for name, tensor in first
    ]
    return Signature(
        [_opened(tensor, is_batched) for tensor in inputs],
        [_opened(tensor, is_batched) for tensor in outputs],
    )


def _required(config: ServedConfig, program: Program) -> list[Argument]:
    arguments = [argument for argument in program.arguments if not argument.is_optional]
    other = next((argument for argument in arguments if argument.kind != TENSOR), None)
    if other is not None:
        raise invalid_arg(
            f"model '{config.name}' takes {other.kind} as '{other.name}': its config cannot be "
            "made from an example"
        )
    return arguments


def _match(
    config: ServedConfig, arguments: list[Argument], examples: list[Example]
) -> list[Example]:
    names = [argument.name for argument in arguments]
    by_name = {example.name: example for example in examples}
    if len(arguments) == 1 and set(by_name) == {""}:
        return examples
    flags = ", ".join(f"--example {name}=SHAPE" for name in names)
    if set(by_name) != set(names):
        raise invalid_arg(f"model '{config.name}' takes {', '.join(names)}: give {flags}")
    return [by_name[name] for name in names]


def _input(argument: Argument, example: Example, program: Program) -> TensorSignature:
    datatype = example.datatype or guess_datatype(program.layers)
    if datatype not in DTYPES:
        raise invalid_arg(
            f"'{datatype}' is not a datatype of PyTorch's tensors, expected one of "
            f"{', '.join(DTYPES)}"
        )
    return TensorSignature(argument.name, datatype, example.shape)


def _run(
    config: ServedConfig, program: Program, inputs: list[TensorSignature], more_rows: int
) -> list[tuple[str, Any]]:
    tensors = []
    for tensor in inputs:
        shape = list(tensor.shape or [])
        if shape:
            shape[0] += more_rows
        tensors.append(torch.zeros(shape, dtype=DTYPES[tensor.datatype]))
    keywords = {
        tensor.name: value
        for tensor, value in zip(inputs, tensors, strict=True)
        if _is_keyword(program, tensor.name)
    }
    positional = [
        value for tensor, value in zip(inputs, tensors, strict=True) if tensor.name not in keywords
    ]
    try:
        with torch.inference_mode():
            returned = program.call(*positional, **keywords)
    except Exception as error:
        shown = ", ".join(f"{tensor.name}={tensor.shape}:{tensor.datatype}" for tensor in inputs)
        last = next(
            (line for line in reversed(str(error).splitlines()) if line.strip()),
            type(error).__name__,
        )
        raise invalid_arg(
            f"model '{config.name}' does not accept the example {shown}: {last}"
        ) from error
    return _named(config, returned)


def _is_keyword(program: Program, name: str) -> bool:
    return any(argument.name == name and argument.is_keyword for argument in program.arguments)


def _named(config: ServedConfig, returned: Any) -> list[tuple[str, Any]]:
    if isinstance(returned, dict):
        named = [(str(key), value) for key, value in returned.items()]
    else:
        values = returned if isinstance(returned, (tuple, list)) else [returned]
        named = [(f"OUTPUT__{index}", value) for index, value in enumerate(values)]
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise internal(
                f"output '{name}' of model '{config.name}' is {type(value).__name__}, "
                "expected a tensor"
            )
    return named


def _opened(tensor: TensorSignature, is_batched: bool) -> TensorSignature:
    shape = list(tensor.shape or [])
    return TensorSignature(
        tensor.name, tensor.datatype, [-1, *shape[1:]] if is_batched else shape, tensor.shown_type
    )
