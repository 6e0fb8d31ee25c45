"""A loaded PyTorch model, whatever file it came from: something to call, its arguments, and what it
tells about its tensors.

Tensors of a config are matched to it as Triton does: inputs by argument name, by `<name>__<index>`
or `ARGS[i]`/`KWARGS[k]`, else in order; outputs by `<name>__<index>` or `RESULT[...]`, by key where
the model returns a dictionary, else in order.
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
    """TENSOR, STRINGS (TorchScript's List[str]), or DICTIONARY: all inputs in one Dict[str,
    Tensor]."""
    is_optional: bool = False
    is_keyword: bool = False


class Program(msgspec.Struct, frozen=True):
    call: Callable[..., Any]
    arguments: list[Argument]
    description: str
    """What kind of file it is, for messages."""
    output_names: list[str] = []
    """Keys of the dictionary that it returns, or names made up for a tuple; empty when not
    known."""
    signature: Signature | None = None
    """None when the file does not tell the shapes of its tensors."""
    layers: list[list[int]] = []
    """Shapes of its parameters, in order: enough for a guess at its inputs and outputs."""


class Calling(msgspec.Struct, frozen=True):
    """How the inputs of a config become a call."""

    positions: dict[str, int]
    """Input name -> index in `Program.arguments`."""
    dictionary: bool
    outputs: dict[str, int | str]
    """Output name -> index in a tuple, or key of a dictionary."""


def match(program: Program, config: ServedConfig) -> Calling:
    """Raises NaiadError when the names fit neither way."""
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
    arguments = {argument.name: at for at, argument in enumerate(program.arguments)}
    by_index = [_index(name, arguments) for name in names]
    if all(name in arguments for name in names):
        found = {name: arguments[name] for name in names}
    elif all(index is not None for index in by_index):
        found = {
            name: index for name, index in zip(names, by_index, strict=True) if index is not None
        }
    else:
        found = {name: at for at, name in enumerate(names)}
    allowed = ", ".join([argument.name for argument in program.arguments])
    for name, at in found.items():
        if at >= len(program.arguments):
            raise invalid_arg(f"unexpected inference input '{name}', allowed inputs are: {allowed}")
    if len(set(found.values())) < len(found):
        raise invalid_arg(
            f"two inputs of model '{config.name}' stand for the same argument of the model, whose arguments are: {allowed}"
        )
    missing = [
        argument.name
        for at, argument in enumerate(program.arguments)
        if at not in found.values() and not argument.is_optional
    ]
    if missing:
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {len(names)} inputs, model provides {len(program.arguments)}: "
            f"no input for {', '.join(missing)}"
        )
    return found


def _index(name: str, arguments: dict[str, int]) -> int | None:
    if found := _NAMED_INDEX.fullmatch(name) or _POSITION.fullmatch(name):
        return int(found[1])
    if found := _KEY.fullmatch(name):
        return arguments.get(found[1])
    return None


def _match_outputs(
    program: Program, config: ServedConfig, names: list[str]
) -> dict[str, int | str]:
    known = program.output_names
    keys = [_output_key(name, known) for name in names]
    if all(key is not None for key in keys):
        found = {name: key for name, key in zip(names, keys, strict=True) if key is not None}
    else:
        found = dict(zip(names, range(len(names)), strict=True))
    for name, key in found.items():
        if known and (key not in known if isinstance(key, str) else key >= len(known)):
            raise invalid_arg(
                f"unexpected inference output '{name}', allowed outputs are: {', '.join(known)}"
            )
    return found


def _output_key(name: str, known: list[str]) -> int | str | None:
    if name in known:
        return name
    if found := _NAMED_INDEX.fullmatch(name) or _POSITION.fullmatch(name):
        return int(found[1])
    if found := _KEY.fullmatch(name):
        return found[1]
    return None
