"""Sampling parameters by their names, from JSON or from request parameters -> SamplingParameters.

Rule: an unknown name or a value of the wrong kind is the request's INVALID_ARG, with the name.
      Ranges are checked by the engine.
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
_FORWARDED = frozenset({"authorization", "traceparent", "tracestate"})


def read_sampling(values: Mapping[str, Any]) -> SamplingParameters:
    """Numbers may come as text; a single string may stand for a list of one."""
    for name in values:
        if name not in NAMES:
            raise unknown_parameter(name, NAMES)
    given = {name: value for name, value in values.items() if value is not None}
    for name in _LISTS:
        if name in given and not isinstance(given[name], (list, tuple)):
            given[name] = [given[name]]
    if isinstance(given.get("logit_bias"), str):  # request parameters cannot hold objects
        given["logit_bias"] = read_json_object("logit_bias", given["logit_bias"])
    try:
        return msgspec.convert(given, SamplingParameters, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise _bad_value(given, error) from None


def _bad_value(given: Mapping[str, Any], error: msgspec.ValidationError) -> NaiadError:
    """msgspec tells the place as `$.name`; the name and what came are what a client needs."""
    words, _, place = str(error).partition(" - at `$.")
    name = place.rstrip("`").split("[")[0]
    shown = json.dumps(given.get(name), default=str)
    return invalid_arg(
        f"sampling parameter '{name}' is {shown[:80]}: {words[:1].lower()}{words[1:]}"
    )


def unknown_parameter(name: str, known: Iterable[str]) -> NaiadError:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    hint = f"; did you mean '{close[0]}'?" if close else ""
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
    """Request parameters also carry the HTTP headers that --http-header-forward-pattern lets
    through; they are no mistake."""
    return "-" in name or name.lower() in _FORWARDED or name.startswith("triton_")
