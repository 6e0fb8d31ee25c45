"""The error for a PyTorch file without shapes and without a config: it suggests a config.pbtxt.

Names are those of the model's arguments. Data types and dims are guessed from its first and last
layers.
"""

from __future__ import annotations

from naiad.backends.served_config import ServedConfig
from naiad.backends.torch.program import DICTIONARY, STRINGS, Program
from naiad.errors import NaiadError, invalid_arg


def missing_shapes_error(config: ServedConfig, program: Program, file: str) -> NaiadError:
    name = next((argument.name for argument in program.arguments), "x")
    shape = ",".join(str(dim if dim > 0 else 32) for dim in [1, *_guess_input(program.layers)[1]])
    kind = program.description
    return invalid_arg(
        f"model '{config.name}' has no input and output in its config, and {file}, {kind}, does "
        f"not tell their shapes. Put this into {config.name}/config.pbtxt and correct the dims "
        "(they are without the batch dimension):\n\n"
        f"{template(config, program)}\n"
        f"or let it be written for an example: naiad check --write --example {name}={shape} "
        "REPOSITORY"
    )


def template(config: ServedConfig, program: Program) -> str:
    data_type, dims = _guess_input(program.layers)
    inputs = []
    for argument in program.arguments:
        if argument.is_optional:
            continue
        if argument.kind == STRINGS:
            inputs.append(_tensor(argument.name, "TYPE_STRING", [1]))
        elif argument.kind == DICTIONARY:
            inputs.append(_tensor("KEY", data_type, dims))
        else:
            inputs.append(_tensor(argument.name, data_type, dims))
    outputs = [
        _tensor(name, "TYPE_FP32", _guess_output(program.layers))
        for name in program.output_names or ["OUTPUT__0"]
    ]
    lines = [
        'backend: "pytorch"',
        *([f'runtime: "{config.runtime}"'] if config.runtime else []),
        "max_batch_size: 4",
    ]
    lines += [
        "input [",
        *_listed(inputs),
        "]",
        "output [",
        *_listed(outputs),
        "]",
        "dynamic_batching { }",
    ]
    return "\n".join(lines) + "\n"


def _listed(tensors: list[str]) -> list[str]:
    return [f"  {tensor}," for tensor in tensors[:-1]] + [f"  {tensor}" for tensor in tensors[-1:]]


def _tensor(name: str, data_type: str, dims: list[int]) -> str:
    return f'{{ name: "{name}" data_type: {data_type} dims: [ {", ".join(map(str, dims))} ] }}'


def _guess_input(layers: list[list[int]]) -> tuple[str, list[int]]:
    first = next((shape for shape in layers if len(shape) > 1), [])
    if len(first) > 2:
        # A convolution: channels first, then one variable dimension for each of the kernel.
        return "TYPE_FP32", [first[1], *[-1] * (len(first) - 2)]
    if len(first) == 2 and first[0] > 4 * first[1] and first[0] > 1000:
        # Many more rows than columns: an embedding table, indexed by integers.
        return "TYPE_INT64", [-1]
    return "TYPE_FP32", [first[1]] if first else [-1]


def guess_datatype(layers: list[list[int]]) -> str:
    """Returns the wire name of the guessed datatype of the input."""
    return _guess_input(layers)[0].removeprefix("TYPE_")


def _guess_output(layers: list[list[int]]) -> list[int]:
    last = next((shape for shape in reversed(layers) if shape), [])
    return [last[0]] if last else [-1]
