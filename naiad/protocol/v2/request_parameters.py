"""Request parameters: which of them Triton reserves, and which types the others may have.

Reserved parameters become fields of the InferRequest or choose the format of the response; all
others go to the model unchanged. `apply_parameters` knows the names; a ParameterReader knows how a
protocol writes values, and what Triton says there about a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from naiad.core.request import InferRequest, ParameterValue
from naiad.errors import NaiadError, invalid_arg, unsupported
from naiad.protocol.v2.json_access import (
    as_boolean,
    as_string,
    as_unsigned,
    clean_text,
    is_signed,
    is_unsigned,
)

_MAX_SEQUENCE_ID_CHARACTERS = 128
_MAX_DOUBLE = 1 << 1023

Written = TypeVar("Written", contravariant=True)


class ParameterReader(Protocol[Written]):
    """Reads parameters as one protocol writes them. Every method raises NaiadError."""

    @property
    def format_option(self) -> str:
        """The reserved parameter that chooses the format of the response."""
        ...

    def boolean(self, name: str, written: Written) -> bool: ...

    def unsigned(self, name: str, written: Written) -> int: ...

    def sequence_id(self, name: str, written: Written) -> int | str: ...

    def value(self, name: str, written: Written) -> ParameterValue:
        """A parameter of the model."""
        ...

    def reserved(self) -> NaiadError:
        """The error for other names that begin with `triton_`."""
        ...


def apply_parameters(
    request: InferRequest, parameters: Mapping[str, Written], reader: ParameterReader[Written]
) -> bool:
    """Returns the value of the reader's format option, or False. Raises NaiadError."""
    option, is_set = reader.format_option, False
    kept: dict[str, ParameterValue] = {}
    for name, written in parameters.items():
        match name:
            case "sequence_id":
                request.sequence_id = _checked_sequence_id(reader.sequence_id(name, written))
            case "sequence_start":
                request.sequence_start = reader.boolean(name, written)
            case "sequence_end":
                request.sequence_end = reader.boolean(name, written)
            case "priority":
                request.priority = reader.unsigned(name, written)
            case "timeout":
                request.timeout_us = reader.unsigned(name, written)
            case _ if name == option:
                is_set = reader.boolean(name, written)
            case _ if name.startswith("triton_"):
                raise reader.reserved()
            case _:
                kept[name] = reader.value(name, written)
    if kept:
        request.parameters = kept
    return is_set


def _checked_sequence_id(sequence_id: int | str) -> int | str:
    if isinstance(sequence_id, str) and len(sequence_id) > _MAX_SEQUENCE_ID_CHARACTERS:
        raise unsupported(
            f"string correlation ID cannot be longer than {_MAX_SEQUENCE_ID_CHARACTERS} characters"
        )
    return sequence_id


class JsonParameters:
    """Reads plain JSON values."""

    format_option = "binary_data_output"

    def boolean(self, name: str, written: Any) -> bool:
        return as_boolean(written, name)

    def unsigned(self, name: str, written: Any) -> int:
        return as_unsigned(written, name)

    def sequence_id(self, name: str, written: Any) -> int | str:
        return int(written) if is_unsigned(written) else as_string(written, name)

    def value(self, name: str, written: Any) -> ParameterValue:
        if isinstance(written, str):
            return clean_text(written)
        if isinstance(written, (bool, float)) or is_signed(written):
            return written  # type: ignore[no-any-return]
        if isinstance(written, int) and abs(written) < _MAX_DOUBLE:
            return float(written)  # beyond 64 bits: Triton reads such numbers as doubles
        raise invalid_arg(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )

    def reserved(self) -> NaiadError:
        return invalid_arg(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not "
            "be specified."
        )


JSON_PARAMETERS = JsonParameters()
