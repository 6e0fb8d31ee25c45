"""Request parameters over HTTP: reserved ones, the model's own, and values of wrong types."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, infer, tensor

ANY = tensor("ANY", "INT32", [2], [1, 2])


def with_parameters(name: str, parameters: Any, **fields: Any) -> Case:
    return infer(name, "request_info", {"inputs": [ANY], "parameters": parameters, **fields})


CASES: list[Case] = [
    infer("no parameters", "request_info", {"inputs": [ANY]}),
    with_parameters("empty parameters", {}),
    with_parameters("one of each type", {"text": "abc", "whole": 7, "truth": True, "negative": -1}),
    with_parameters("a fraction", {"fraction": 1.5}),
    with_parameters("a large number", {"large": 2**63 - 1}),
    with_parameters("a number beyond 63 bits", {"large": 2**63}),
    with_parameters("a null", {"nothing": None}),
    with_parameters("a list", {"list": [1]}),
    with_parameters("an object", {"object": {}}),
    with_parameters("an empty key", {"": 1}),
    with_parameters("a reserved prefix", {"triton_x": 1}),
    with_parameters("parameters that are a list", [1]),
    with_parameters("parameters that are a string", "a"),
    with_parameters("parameters that are null", None),
    with_parameters("an id and an output", {}, id="id 1", outputs=[{"name": "FACTS"}]),
    with_parameters("an empty id", {}, id=""),
    with_parameters("sequence of a number", {"sequence_id": 42, "sequence_start": True}),
    with_parameters("sequence of a string", {"sequence_id": "walk", "sequence_end": True}),
    with_parameters(
        "sequence start and end", {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    ),
    with_parameters("sequence id zero", {"sequence_id": 0}),
    with_parameters("sequence id that is a fraction", {"sequence_id": 1.5}),
    with_parameters("sequence id that is negative", {"sequence_id": -1}),
    with_parameters("sequence start that is a number", {"sequence_start": 1}),
    with_parameters("sequence end that is a string", {"sequence_end": "true"}),
    with_parameters("priority", {"priority": 3}),
    with_parameters("priority that is a string", {"priority": "high"}),
    with_parameters("priority that is negative", {"priority": -3}),
    with_parameters("timeout", {"timeout": 1000000}),
    with_parameters("timeout that is a string", {"timeout": "soon"}),
    with_parameters("timeout that is negative", {"timeout": -1}),
    with_parameters("headers", {"headers": {"a": "b"}}),
]
