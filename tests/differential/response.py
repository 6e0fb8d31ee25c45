"""Responses as plain JSON data, and the normalisation that makes two servers comparable.

In:  what exchange_http and exchange_grpc received.
Out: dictionaries, which are stored in the golden files and compared as text.
Rule: normalisation removes times, versions, paths and tracebacks. It never removes text that a
      client could match on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.differential.case import Case, Response

TRACEBACK = re.compile(r"\n\nAt:\n.*", re.DOTALL)
SERVER_VERSION = re.compile(r"^\d+\.\d+\.\d+\S*$")
MAPS = {"parameters", "metric_tags"}
TIMES = {"ns", "last_inference"}
COUNTS = {"ns", "last_inference", "count", "inference_count", "execution_count"}
FAMILIES = re.compile(
    r"^(nv_inference_(?!.*(histogram|summary))\w+|nv_cpu_\w+|observed_\w+|nv_pinned_memory_pool_\w+)$"
)


def normalised(response: Response, names: tuple[str, ...], repositories: list[str]) -> Response:
    result: Response = _walk(response, repositories)
    for name in names:
        result = NORMALISERS[name](result)
    return result


def _walk(value: Any, repositories: list[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: _walk(_sorted_map(item) if key in MAPS else item, repositories)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_walk(item, repositories) for item in value]
    if isinstance(value, str):
        for repository in repositories:
            value = value.replace(repository, "<repository>")
        return TRACEBACK.sub("", value)
    return value


def _sorted_map(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _each_dict(response: Response, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Response:
    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return _each_dict(value, change)
        if isinstance(value, list):
            return [changed(item) for item in value]
        return value

    return change({key: changed(item) for key, item in response.items()})


def _without_times(response: Response) -> Response:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: 0 if key in TIMES else item for key, item in fields.items()}

    return _each_dict(response, change)


def _without_counts(response: Response) -> Response:
    """Keeps the keys of the statistics but not the numbers, because other cases use the model
    too."""
    body = "json" if "json" in response else "response"

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        kept = {
            key: item
            for key, item in fields.items()
            if key not in ("batch_stats", "response_stats", "memory_usage")
        }
        return {
            key: 0 if key in COUNTS else item
            for key, item in kept.items()
            if body == "json" or key not in COUNTS
        }

    return {**response, body: _each_dict(response[body], change)}


def _without_version(response: Response) -> Response:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        version = fields.get("version")
        if isinstance(version, str) and SERVER_VERSION.match(version):
            return {**fields, "version": "<version>"}
        return fields

    return _each_dict(response, change)


def _parser_detail(response: Response) -> Response:
    """Removes the parser's explanation of broken JSON: each server's parser has its own text."""
    text = json.dumps(response)
    text = re.sub(
        r"(failed to parse the request JSON buffer:)[^\"\\]*(\\\"[^\"\\]*)*", r"\1 <detail>", text
    )
    changed: Response = json.loads(text)
    return changed


def _any_order(response: Response) -> Response:
    def sort(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: sort(item) for key, item in value.items()}
        if isinstance(value, list):
            return sorted(
                (sort(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True)
            )
        return value

    changed: Response = sort(response)
    return changed


def _metric_names(response: Response) -> Response:
    """Reduces a metrics page to the types and label names of Triton's own families of model
    metrics."""
    if "text" not in response:
        return response
    families: dict[str, Any] = {}
    for line in response.pop("text", "").splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            families[name] = {"type": kind, "labels": []}
        elif line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            family = re.sub(r"_(bucket|count|sum)$", "", name) if name not in families else name
            labels = sorted(set(re.findall(r'(\w+)="', rest)))
            if family in families and labels not in families[family]["labels"]:
                families[family]["labels"].append(labels)
    response["families"] = {
        name: {"type": family["type"], "labels": sorted(family["labels"])}
        for name, family in sorted(families.items())
        if FAMILIES.match(name)
    }
    return response


def _without_message(response: Response) -> Response:
    """Removes the message of an error, so that only the status and the shape of the error are
    compared."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: "<words>" if key in ("error", "message", "error_message") else item
            for key, item in fields.items()
        }

    return _each_dict(response, change)


def _key_order(response: Response) -> Response:
    """Sorts the keys of generate's flat responses. The genuine server sorts them; no client relies
    on it."""
    return _each_dict(response, lambda fields: dict(sorted(fields.items())))


def _output_order(response: Response) -> Response:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: sorted(item, key=lambda one: one["name"]) if key == "outputs" else item
            for key, item in fields.items()
        }

    return _each_dict(response, change)


def _input_names(response: Response) -> Response:
    """Sorts the names of inputs and repairs a bracket. The genuine server lists the inputs in the
    order of a hash table, and loses a bracket if none is missing."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: _sorted_names(item) if key in ("error", "message", "error_message") else item
            for key, item in fields.items()
        }

    return _each_dict(response, change)


def _sorted_names(message: str) -> str:
    def names(match: re.Match[str]) -> str:
        return f"[{','.join(sorted(match.group(1).split(',')))}]"

    return re.sub(r"\[('[^\]]*)\]", names, message).replace("input(s) ].", "input(s) [].")


def _empty_version(response: Response) -> Response:
    """Removes the model's version from a streamed response without outputs: releases of Triton
    differ in whether they repeat it."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        if "outputs" in fields:
            return fields
        return {key: item for key, item in fields.items() if key != "model_version"}

    return _each_dict(response, change)


def _error_type(response: Response) -> Response:
    """Drops the headers: the metrics page is text, and so may be its errors."""
    return {**reference(response), "headers": {}}


def _which_input(response: Response) -> Response:
    """Hides which of two inputs with different batch sizes is named. The genuine server checks them
    in the order of a hash table."""
    changed: Response = json.loads(
        re.sub(
            r"input 'INPUT\d' batch size", "input <one of them> batch size", json.dumps(response)
        )
    )
    return changed


def _load_reason(response: Response) -> Response:
    """Removes the reason of a failed load, because each server has its own text. The failure and
    its error code are still compared."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: _without_reason(item) if key in ("error", "reason") else item
            for key, item in fields.items()
        }

    return _each_dict(response, change)


def _without_reason(message: str) -> str:
    return re.sub(
        r"(^|is at UNAVAILABLE state: )(Internal|Invalid argument|Not found|Unsupported): .*",
        r"\1\2: <reason>",
        message,
        flags=re.DOTALL,
    )


NORMALISERS: dict[str, Callable[[Response], Response]] = {
    "times": _without_times,
    "counts": _without_counts,
    "version": _without_version,
    "parser": _parser_detail,
    "any order": _any_order,
    "metric names": _metric_names,
    "message": _without_message,
    "key order": _key_order,
    "output order": _output_order,
    "input names": _input_names,
    "load reason": _load_reason,
    "which input": _which_input,
    "error type": _error_type,
    "empty version": _empty_version,
}


def reference(response: Response) -> Response:
    """Converts an error body of Triton 2.51 to the format of 2.73, which declares every error body
    as JSON."""
    text = response.get("text", "")
    if response.get("status", 0) >= 400 and text.startswith('{"error"'):
        kept = {key: item for key, item in response.items() if key != "text"}
        return {
            **kept,
            "headers": {**response["headers"], "Content-Type": "application/json"},
            "json": json.loads(text),
        }
    return response


def expected(golden: Response, case: Case) -> Response:
    """Returns the recorded response with the changes of `case.expect`. A None there removes the
    key."""
    merged = {**golden, **case.expect}
    return normalised(
        {key: item for key, item in merged.items() if item is not None or key not in case.expect},
        case.normalise,
        [],
    )


def difference(expected_response: Response, got: Response) -> str:
    """Returns a description of the difference, or "" if the responses are equal. The order of keys
    inside JSON counts, because it is part of what Triton sends."""
    expected_text, got_text = (
        json.dumps(dict(sorted(response.items())), ensure_ascii=False)
        for response in (expected_response, got)
    )
    if expected_text == got_text:
        return ""
    return f"expected {expected_text}\n     got {got_text}"
