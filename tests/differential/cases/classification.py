"""The classification extension over HTTP, as JSON and as binary."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, infer, refused, tensor

NOTHING: dict[str, Any] = {}

ONE = tensor("FEATURES", "FP32", [1, 4], [0.5, 3, 1, -2])
TWO = tensor("FEATURES", "FP32", [2, 4], [0.5, 3, 1, -2, 7, 7, 0.125, 1e9])


def classify(
    name: str,
    k: Any,
    output: str = "SCORES",
    features: Any = ONE,
    options: dict[str, Any] = NOTHING,
    **parameters: Any,
) -> Case:
    requested = {"name": output, "parameters": {"classification": k, **parameters}}
    return infer(name, "classifier", {"inputs": [features], "outputs": [requested]}, **options)


CASES: list[Case] = [
    infer("scores themselves", "classifier", {"inputs": [ONE]}),
    classify("best class", 1),
    classify("best three classes", 3),
    classify("more classes than there are", 10),
    classify("no class", 0),
    classify("two rows", 2, features=TWO),
    classify("integers without labels", 2, "RANKS"),
    classify("as binary", 2, binary_data=True),
    classify(
        "of strings",
        1,
        "BEST",
        options={
            "is_ours_only": True,
            "expect": refused(
                400, "class result not available for output due to unsupported type 'BYTES'"
            ),
            "because": "the genuine server dies of it",
        },
    ),
    classify("k that is negative", -1),
    classify("k that is a string", "2"),
    classify("k that is a fraction", 1.5),
    classify("an unknown output", 1, "NOTHING"),
    infer(
        "one classified, one plain",
        "classifier",
        {
            "inputs": [TWO],
            "outputs": [{"name": "SCORES", "parameters": {"classification": 1}}, {"name": "BEST"}],
        },
    ),
]
