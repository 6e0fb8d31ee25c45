"""Parameters of requests and responses. As in Triton, models set a dict and read a JSON string."""

from __future__ import annotations

import json
from typing import Any

from naiad.backends.python.error import TritonModelException
from naiad.backends.python.wire_text import wire_text
from naiad.core.request import ParameterValue

_MIN_INTEGER = -(2**63)
_MAX_INTEGER = 2**63 - 1

Parameters = dict[str, ParameterValue]


def check_parameters(parameters: Any) -> Parameters:
    """Returns a copy of the parameters. Raises TritonModelException if they are invalid."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
        if not isinstance(value, str) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise TritonModelException(f"Expect parameters values to fit 64 bits, found {value}")
    return {
        wire_text(key): wire_text(value) if isinstance(value, str) else value
        for key, value in parameters.items()
    }


def encode_parameters(parameters: Parameters) -> str:
    return json.dumps(parameters) if parameters else "{}"
