"""A loaded PyTorch model: a callable, its arguments, and the known facts about its tensors.

The tensors of a config are matched to arguments and results as in Triton. Inputs are matched by
argument name, by `<name>__<index>` or by `ARGS[i]`/`KWARGS[k]`, otherwise in order. Outputs are
matched by `<name>__<index>` or `RESULT[...]`, by key if the model returns a dictionary, otherwise
in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.backends.served_config import ServedConfig
from naiad.backends.signature import Signature
from naiad.errors import invalid_arg

_NAMED_INDEX = re.compile(r".*__(\d+)")
_POSITION = re.compile(r"(?:ARGS|RESULT)\[(\d+)\]")
_KEY = re.compile(r"(?:KWARGS|RESULT)\[['\"]?(.+?)['\"]?\]")

TENSOR, STRINGS, DICTIONARY = "tensor", "strings", "dictionary"


class Argument(msgspec.Struct, frozen=True):
    name: str
    kind: str = TENSOR
    """TENSOR, STRINGS (TorchScript's List[str]) or DICTIONARY (all inputs as Dict[str, Tensor])."""
    is_optional: bool = False
    is_keyword: bool = False


class Program(msgspec.Struct, frozen=True):
    call: Callable[..., Any]
    arguments: list[Argument]
    description: str
    """The kind of the file, for messages."""
    output_names: list[str] = []
    """The keys of the returned dictionary, or invented names for a tuple. Empty if unknown."""
    signature: Signature | None = None
    """None if the file does not contain the shapes of its tensors."""
    layers: list[list[int]] = []
    """The shapes of the model's parameters, in order, to guess its inputs and outputs."""


class Calling(msgspec.Struct, frozen=True):
    """Maps the inputs and outputs of a config to arguments and results of the call."""

    positions: dict[str, int]
    """Input name -> index in `Program.arguments`."""
    dictionary: bool
    """True if the model takes all inputs as one dictionary."""
    outputs: dict[str, int | str]
    """Output name -> index in a tuple, or key of a dictionary."""


def match(program: Program, config: ServedConfig) -> Calling:
    """Raises NaiadError if the names cannot be matched."""
    names = (
        [tensor.name for tensor in config.input]
        + config.controls
        + [state.input_name for state in config.states]
    )
    names += [name for batch in config.batch_input for name in batch.target_name]
    outputs = list(
        dict.fromkeys(
            [tensor.name for tensor in config.output]
            + [state.output_name for state in config.states]
        )
    )
    if [argument.kind for argument in program.arguments] == [DICTIONARY]:
        return Calling({}, True, _match_outputs(program, config, outputs))
    return Calling(
        _match_inputs(program, config, names), False, _match_outputs(program, config, outputs)
    )


def _match_inputs(program: Program, config: ServedConfig, names: list[str]) -> dict[str, int]:
    arguments = {argument.name: index for index, argument in enumerate(program.arguments)}
    by_index = [_index(name, arguments) for name in names]
    if all(name in arguments for name in names):
        positions = {name: arguments[name] for name in names}
    elif all(index is not None for index in by_index):
        positions = {
            name: index for name, index in zip(names, by_index, strict=True) if index is not None
        }
    else:
        positions = {name: index for index, name in enumerate(names)}
    allowed = ", ".join([argument.name for argument in program.arguments])
    for name, position in positions.items():
        if position >= len(program.arguments):
            raise invalid_arg(f"unexpected inference input '{name}', allowed inputs are: {allowed}")
    if len(set(positions.values())) < len(positions):
        raise invalid_arg(
            f"two inputs of model '{config.name}' stand for the same argument of the model, whose "
            f"arguments are: {allowed}"
        )
    missing = [
        argument.name
        for index, argument in enumerate(program.arguments)
        if index not in positions.values() and not argument.is_optional
    ]
    if missing:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {len(names)} inputs, "
            f"model provides {len(program.arguments)}: no input for {', '.join(missing)}"
        )
    return positions


def _index(name: str, arguments: dict[str, int]) -> int | None:
    if index := _NAMED_INDEX.fullmatch(name) or _POSITION.fullmatch(name):
        return int(index[1])
    if key := _KEY.fullmatch(name):
        return arguments.get(key[1])
    return None


def _match_outputs(
    program: Program, config: ServedConfig, names: list[str]
) -> dict[str, int | str]:
    known = program.output_names
    keys = [_output_key(name, known) for name in names]
    if all(key is not None for key in keys):
        outputs = {name: key for name, key in zip(names, keys, strict=True) if key is not None}
    else:
        outputs = dict(zip(names, range(len(names)), strict=True))
    for name, key in outputs.items():
        if known and (key not in known if isinstance(key, str) else key >= len(known)):
            raise invalid_arg(
                f"unexpected inference output '{name}', allowed outputs are: {', '.join(known)}"
            )
    return outputs


def _output_key(name: str, known: list[str]) -> int | str | None:
    if name in known:
        return name
    if index := _NAMED_INDEX.fullmatch(name) or _POSITION.fullmatch(name):
        return int(index[1])
    if key := _KEY.fullmatch(name):
        return key[1]
    return None
