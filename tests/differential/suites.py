"""The suites: repositories, server flags, and the cases that are sent to such a server.

`main` has many models and no model control. In the other suites models are loaded and unloaded, so
the order of cases matters.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.differential.case import Case
from tests.differential.cases import (
    classification,
    compression,
    conversions,
    dependents,
    file_override,
    generate,
    grpc_infer,
    grpc_infer_errors,
    grpc_metadata,
    grpc_stream,
    health_metadata,
    http_wire,
    infer_binary,
    infer_errors,
    infer_json,
    model_control,
    model_errors,
    python_api,
    request_parameters,
    statistics_and_control,
    twice,
)

REPOSITORIES = Path(__file__).parents[1] / "repositories"


class Suite(msgspec.Struct, frozen=True):
    name: str
    repositories: list[str]
    flags: list[str]
    subjects: dict[str, list[Case]]

    def cases(self) -> list[tuple[str, Case]]:
        return [(subject, case) for subject, cases in self.subjects.items() for case in cases]


MAIN = Suite(
    name="main",
    repositories=[str(REPOSITORIES / "main")],
    flags=[],
    subjects={
        "health_metadata": health_metadata.CASES,
        "infer_json": infer_json.CASES,
        "infer_errors": infer_errors.CASES,
        "infer_binary": infer_binary.CASES,
        "request_parameters": request_parameters.CASES,
        "classification": classification.CASES,
        "compression": compression.CASES,
        "generate": generate.CASES,
        "model_errors": model_errors.CASES,
        "grpc_unary": [*grpc_metadata.CASES, *grpc_infer.CASES, *grpc_infer_errors.CASES],
        "grpc_stream": grpc_stream.CASES,
        "http_wire": http_wire.CASES,
        "statistics_and_control": statistics_and_control.CASES,
    },
)
CONTROL = Suite(
    name="control",
    repositories=[str(REPOSITORIES / "control")],
    flags=["--model-control-mode=explicit"],
    subjects={"model_control": model_control.CASES},
)
DEPENDENTS = Suite(
    name="dependents",
    repositories=[str(REPOSITORIES / "dependents")],
    flags=["--model-control-mode=explicit"],
    subjects={"dependents": dependents.CASES},
)
CONVERSIONS = Suite(
    name="conversions",
    repositories=[str(REPOSITORIES / "conversions")],
    flags=[],
    subjects={"conversions": conversions.CASES},
)
FILE_OVERRIDE = Suite(
    name="file_override",
    repositories=[str(REPOSITORIES / "control")],
    flags=["--model-control-mode=explicit"],
    subjects={"file_override": file_override.CASES},
)
PYTHON_API = Suite(
    name="python_api",
    repositories=[str(REPOSITORIES / "python_api")],
    flags=[],
    subjects={"python_api": python_api.CASES},
)
TWICE_FLAGS = ["--exit-on-error=false", "--strict-readiness=false"]
TWICE = Suite(
    name="twice",
    repositories=[str(REPOSITORIES / "twice" / "one"), str(REPOSITORIES / "twice" / "two")],
    flags=TWICE_FLAGS,
    subjects={"twice": twice.CASES},
)
NAMESPACES = Suite(
    name="namespaces",
    repositories=TWICE.repositories,
    flags=[*TWICE_FLAGS, "--model-namespacing=true"],
    subjects=TWICE.subjects,
)
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        MAIN,
        CONTROL,
        DEPENDENTS,
        FILE_OVERRIDE,
        CONVERSIONS,
        PYTHON_API,
        TWICE,
        NAMESPACES,
    )
}
