"""Reads sampling parameters by name, from JSON or from request parameters.

In:  names and values. Out: SamplingParameters.
Rule: an unknown name, a value of the wrong type or a value out of range is the request's
      INVALID_ARG, with the name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from naiad.errors import NaiadError, invalid_arg
from naiad.llm.parameters import SamplingParameters

NAMES = frozenset(field.name for field in msgspec.structs.fields(SamplingParameters))
_LISTS = ("stop", "bad_words", "stop_token_ids")
_OTHER_NAMES = {"prompt": "text_input", "max_new_tokens": "max_tokens", "inputs": "text_input"}
"""Names that other servers have for the same thing."""
_FORWARDED = frozenset({"authorization", "traceparent", "tracestate"})


def read_sampling(values: Mapping[str, Any]) -> SamplingParameters:
    """Accepts numbers as text, and a single string instead of a list with one string."""
    for name in values:
        if name not in NAMES:
            raise unknown_parameter(name, NAMES)
    fields = {name: value for name, value in values.items() if value is not None}
    for name in _LISTS:
        if name in fields:
            fields[name] = as_list(fields[name])
    if isinstance(fields.get("logit_bias"), str):  # request parameters cannot hold objects
        fields["logit_bias"] = read_json_object("logit_bias", fields["logit_bias"])
    try:
        parameters = msgspec.convert(fields, SamplingParameters, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise _bad_value(fields, error) from None
    except OverflowError:  # an integer that no float can hold
        raise invalid_arg("a sampling parameter is an integer beyond 64 bits") from None
    parameters.check_ranges()
    return parameters


def as_list(value: Any) -> list[Any]:
    """A single value stands for a list with one element."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _bad_value(fields: Mapping[str, Any], error: msgspec.ValidationError) -> NaiadError:
    """Replaces msgspec's path `$.name` with what a client needs: the name and the value."""
    reason, _, path = str(error).partition(" - at `$.")
    name = path.rstrip("`").split("[")[0]
    value = json.dumps(fields.get(name), default=str)
    return invalid_arg(
        f"sampling parameter '{name}' is {value[:80]}: {reason[:1].lower()}{reason[1:]}"
    )


def unknown_parameter(name: str, known: Iterable[str]) -> NaiadError:
    close = _OTHER_NAMES.get(name) or next(
        iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)), ""
    )
    hint = f"; did you mean '{close}'?" if close else ""
    return invalid_arg(f"unknown sampling parameter '{name}'{hint}")


def read_json_object(name: str, text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise invalid_arg(f"'{name}' is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid_arg(f"'{name}' is a JSON {type(value).__name__}, expected an object")
    return value


def is_forwarded_header(name: str) -> bool:
    """True for the HTTP headers that --http-header-forward-pattern adds to the request parameters.
    These are not sampling parameters."""
    return "-" in name or name.lower() in _FORWARDED or name.startswith("triton_")
