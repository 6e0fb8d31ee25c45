"""What clients see when a model fails or uses the Python backend wrongly."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, infer, refused, tensor

KINDS = (
    "good",
    "raise",
    "raise model exception",
    "error",
    "error with outputs",
    "empty error",
    "not a list",
    "too many",
    "too few",
    "not a response",
    "unknown output",
    "no outputs",
    "wrong type",
    "wrong shape",
    "type without a name",
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)
BLS = (
    "good",
    "unknown model",
    "unknown version",
    "known version",
    "missing input",
    "unknown output",
    "wrong type",
    "wrong shape",
    "failing model",
    "decoupled without decoupled=True",
    "empty model name",
    "empty tensor name",
    "correlation id of a wrong type",
    "parameter key of a wrong type",
    "parameter value of a wrong type",
    "is ready",
    "is version ready",
)


NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


def answered(message: str) -> dict[str, Any]:
    output = tensor("FOUND", "BYTES", [2], ["raised TritonModelException", message])
    fields = {"model_name": "bls_probe", "model_version": "1", "outputs": [output]}
    return {"status": 200, "headers": {"Content-Type": "application/json"}, "json": fields}


def of_kind(model: str, input_name: str, kind: str, **options: Any) -> Case:
    return infer(
        f"{model}: {kind}", model, {"inputs": [tensor(input_name, "BYTES", [1], [kind])]}, **options
    )


CASES: list[Case] = [
    *(of_kind("failing", "KIND", kind) for kind in KINDS),
    *(
        of_kind("sender", "KIND", kind)
        for kind in ("plain", "flag alone", "unknown flag", "nothing", "final first")
    ),
    *(of_kind("bls_probe", "CASE", kind) for kind in BLS),
    *(
        of_kind("failing", "KIND", kind, normalise=("message",))
        for kind in ("raise without words", "tensor of a list")
    ),
    *(
        of_kind(
            "failing",
            "KIND",
            kind,
            normalise=("message",),
            is_ours_only=True,
            expect=refused(500, "<words>"),
            because="the genuine server never responds",
        )
        for kind in ("none", "none in the list")
    ),
    *(
        of_kind(
            "bls_probe",
            "CASE",
            f"{verb} in mode none",
            is_ours_only=True,
            because="the genuine server sometimes crashes",
            expect=answered(
                f"Failed to {verb} model: Failed to process the request for model 'bls_probe_0', "
                f"message: {NOT_EXPLICIT}"
            ),
        )
        for verb in ("load", "unload")
    ),
    infer(
        "async execute that raises", "async_execute", {"inputs": [tensor("X", "INT32", [1], [-1])]}
    ),
    infer(
        "a requested output that the model leaves out",
        "failing",
        {"inputs": [tensor("KIND", "BYTES", [1], ["no outputs"])], "outputs": [{"name": "OUT"}]},
    ),
]
