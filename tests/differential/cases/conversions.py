"""Ensembles of models with and without a batch dimension, and the labels of their outputs."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, get, infer, tensor

ENSEMBLES = (
    "batched_of_plain",
    "batched_of_rows",
    "plain_of_batched",
    "rows_of_batched",
    "any_of_batched",
    "plain_of_three",
    "batched_of_three",
    "batched_of_two",
)
SHAPES: tuple[list[int], ...] = ([2], [1, 2], [2, 2], [1, 1, 2], [1, 3])


def request(shape: list[int]) -> dict[str, Any]:
    size = 1
    for dim in shape:
        size *= dim
    return {"inputs": [tensor("IN", "FP32", shape, list(range(size)))]}


def classified(ensemble: str) -> Case:
    outputs = [{"name": "OUT", "parameters": {"classification": 2}}]
    return infer(f"labels of {ensemble}", ensemble, {**request([1, 2]), "outputs": outputs})


CASES: list[Case] = [
    *(get(f"metadata of {ensemble}", f"/v2/models/{ensemble}") for ensemble in ENSEMBLES),
    *(
        infer(f"{ensemble} with {shape}", ensemble, request(shape), normalise=("output order",))
        for ensemble in ENSEMBLES
        for shape in SHAPES
    ),
    classified("batched_of_plain"),
    classified("own_labels"),
    classified("batched_of_two"),
]
