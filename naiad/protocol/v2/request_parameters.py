"""Request parameters: which of them Triton reserves, and which types the others may have.

Reserved parameters become fields of the InferRequest or choose the format of the response; all
others go to the model unchanged.
"""

from __future__ import annotations

from typing import Any

from naiad.core.request import InferRequest, ParameterValue
from naiad.errors import invalid_arg, unsupported
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


def apply_parameters(request: InferRequest, parameters: dict[str, Any]) -> bool:
    """Returns `binary_data_output`. Raises NaiadError."""
    is_binary = False
    kept: dict[str, ParameterValue] = {}
    for name, value in parameters.items():
        match name:
            case "sequence_id":
                request.sequence_id = _sequence_id(value)
            case "sequence_start":
                request.sequence_start = as_boolean(value, name)
            case "sequence_end":
                request.sequence_end = as_boolean(value, name)
            case "priority":
                request.priority = as_unsigned(value, name)
            case "timeout":
                request.timeout_us = as_unsigned(value, name)
            case "binary_data_output":
                is_binary = as_boolean(value, name)
            case _ if name.startswith("triton_"):
                raise invalid_arg(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and "
                    "should not be specified."
                )
            case _:
                kept[name] = parameter_value(name, value)
    if kept:
        request.parameters = kept
    return is_binary


def parameter_value(name: str, value: Any) -> ParameterValue:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (bool, float)) or is_signed(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, int) and abs(value) < _MAX_DOUBLE:
        return float(value)  # beyond 64 bits: Triton reads such numbers as doubles
    raise invalid_arg(
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


def _sequence_id(value: Any) -> int | str:
    if is_unsigned(value):
        return int(value)
    text = as_string(value, "sequence_id")
    if len(text) > _MAX_SEQUENCE_ID_CHARACTERS:
        raise unsupported(
            f"string correlation ID cannot be longer than {_MAX_SEQUENCE_ID_CHARACTERS} characters"
        )
    return text
