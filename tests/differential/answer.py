"""Answers as plain JSON data: what is kept of them, and what is made equal because it must differ
between two servers.

In:  what exchange_http and exchange_grpc saw. Out: dictionaries that golden files hold and that are
     compared as text.
Rule: normalising removes times, versions, paths and tracebacks; never a word that a client could
      match on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.differential.case import Answer, Case

TRACEBACK = re.compile(r"\n\nAt:\n.*", re.DOTALL)
SERVER_VERSION = re.compile(r"^\d+\.\d+\.\d+\S*$")
MAPS = {"parameters", "metric_tags"}
TIMES = {"ns", "last_inference"}
COUNTS = {"ns", "last_inference", "count", "inference_count", "execution_count"}
FAMILIES = re.compile(
    r"^(nv_inference_(?!.*(histogram|summary))\w+|nv_cpu_\w+|observed_\w+|nv_pinned_memory_pool_\w+)$"
)


def normalised(answer: Answer, names: tuple[str, ...], repositories: list[str]) -> Answer:
    result: Answer = _walk(answer, repositories)
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


def _each_dict(answer: Answer, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Answer:
    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return _each_dict(value, change)
        if isinstance(value, list):
            return [changed(item) for item in value]
        return value

    return change({key: changed(item) for key, item in answer.items()})


def _without_times(answer: Answer) -> Answer:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: 0 if key in TIMES else item for key, item in fields.items()}

    return _each_dict(answer, change)


def _without_counts(answer: Answer) -> Answer:
    """Statistics of a model that other cases use too: its keys, not its numbers."""
    body = "json" if "json" in answer else "response"

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

    return {**answer, body: _each_dict(answer[body], change)}


def _without_version(answer: Answer) -> Answer:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: "<version>"
            if key == "version" and isinstance(item, str) and SERVER_VERSION.match(item)
            else item
            for key, item in fields.items()
        }

    return _each_dict(answer, change)


def _parser_detail(answer: Answer) -> Answer:
    """What is wrong with broken JSON is said in the words of each server's parser; only that it is
    broken is compared."""
    text = json.dumps(answer)
    text = re.sub(
        r"(failed to parse the request JSON buffer:)[^\"\\]*(\\\"[^\"\\]*)*", r"\1 <detail>", text
    )
    changed: Answer = json.loads(text)
    return changed


def _any_order(answer: Answer) -> Answer:
    def sort(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: sort(item) for key, item in value.items()}
        if isinstance(value, list):
            return sorted(
                (sort(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True)
            )
        return value

    changed: Answer = sort(answer)
    return changed


def _metric_names(answer: Answer) -> Answer:
    """Of a metrics page: Triton's own families with their type and label names, for the models
    only."""
    if "text" not in answer:
        return answer
    families: dict[str, Any] = {}
    for line in answer.pop("text", "").splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            families[name] = {"type": kind, "labels": []}
        elif line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            family = re.sub(r"_(bucket|count|sum)$", "", name) if name not in families else name
            labels = sorted(set(re.findall(r'(\w+)="', rest)))
            if family in families and labels not in families[family]["labels"]:
                families[family]["labels"].append(labels)
    answer["families"] = {
        name: {"type": found["type"], "labels": sorted(found["labels"])}
        for name, found in sorted(families.items())
        if FAMILIES.match(name)
    }
    return answer


def _words_only(answer: Answer) -> Answer:
    """Only that it failed, and how: the message is left to each server."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: "<words>" if key in ("error", "message", "error_message") else item
            for key, item in fields.items()
        }

    return _each_dict(answer, change)


def _key_order(answer: Answer) -> Answer:
    """generate's flat answers: the genuine server sorts their keys, which nobody can rely on."""
    return _each_dict(answer, lambda fields: dict(sorted(fields.items())))


def _output_order(answer: Answer) -> Answer:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: sorted(item, key=lambda one: one["name"]) if key == "outputs" else item
            for key, item in fields.items()
        }

    return _each_dict(answer, change)


def _input_names(answer: Answer) -> Answer:
    """The genuine server lists inputs in the order of a hash table and loses a bracket when none is
    missing."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: _sorted_names(item) if key in ("error", "message", "error_message") else item
            for key, item in fields.items()
        }

    return _each_dict(answer, change)


def _sorted_names(message: str) -> str:
    def names(found: re.Match[str]) -> str:
        return f"[{','.join(sorted(found.group(1).split(',')))}]"

    return re.sub(r"\[('[^\]]*)\]", names, message).replace("input(s) ].", "input(s) [].")


def _empty_version(answer: Answer) -> Answer:
    """A streamed response without outputs: whether it repeats the model's version is not settled
    between releases."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return (
            fields
            if "outputs" in fields
            else {key: item for key, item in fields.items() if key != "model_version"}
        )

    return _each_dict(answer, change)


def _error_type(answer: Answer) -> Answer:
    """The metrics page is text, and so may be its errors."""
    return {**reference(answer), "headers": {}}


def _which_input(answer: Answer) -> Answer:
    """Of two inputs whose batch sizes differ, either can be named: the genuine server looks at them
    in a hash table's order."""
    changed: Answer = json.loads(
        re.sub(r"input 'INPUT\d' batch size", "input <one of them> batch size", json.dumps(answer))
    )
    return changed


def _load_reason(answer: Answer) -> Answer:
    """Why a load failed is told in each server's own words; that it failed, and in which words that
    begins, is compared."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: _first_words(item) if key in ("error", "reason") else item
            for key, item in fields.items()
        }

    return _each_dict(answer, change)


def _first_words(message: str) -> str:
    return re.sub(
        r"(^|is at UNAVAILABLE state: )(Internal|Invalid argument|Not found|Unsupported): .*",
        r"\1\2: <reason>",
        message,
        flags=re.DOTALL,
    )


NORMALISERS: dict[str, Callable[[Answer], Answer]] = {
    "times": _without_times,
    "counts": _without_counts,
    "version": _without_version,
    "parser": _parser_detail,
    "any order": _any_order,
    "metric names": _metric_names,
    "words": _words_only,
    "key order": _key_order,
    "output order": _output_order,
    "input names": _input_names,
    "load reason": _load_reason,
    "which input": _which_input,
    "error type": _error_type,
    "empty version": _empty_version,
}


def reference(answer: Answer) -> Answer:
    """What 2.51 answers, as 2.73 would: there every error body is declared as JSON."""
    text = answer.get("text", "")
    if answer.get("status", 0) >= 400 and text.startswith('{"error"'):
        kept = {key: item for key, item in answer.items() if key != "text"}
        return {
            **kept,
            "headers": {**answer["headers"], "Content-Type": "application/json"},
            "json": json.loads(text),
        }
    return answer


def expected(golden: Answer, case: Case) -> Answer:
    """The recorded answer with what the case knows better. A None in its `expect` removes the
    key."""
    merged = {**golden, **case.expect}
    return normalised(
        {key: item for key, item in merged.items() if item is not None or key not in case.expect},
        case.normalise,
        [],
    )


def difference(expected_answer: Answer, got: Answer) -> str:
    """Empty when alike. The order of keys inside JSON counts: it is part of what Triton sends."""
    want, have = (
        json.dumps(dict(sorted(answer.items())), ensure_ascii=False)
        for answer in (expected_answer, got)
    )
    return "" if want == have else f"expected {want}\n     got {have}"
