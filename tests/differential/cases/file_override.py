"""Loads with files, and names of models. The order of these cases matters."""

from __future__ import annotations

import base64
import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case, infer
from tests.differential.cases.grpc_message import call
from tests.differential.cases.model_control import ANY, CONFIG, load, unload

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        word = pb_utils.Tensor("WORD", np.array(["from a file"], dtype=np.object_))
        return [pb_utils.InferenceResponse([word]) for _ in requests]
"""


def files(*paths: str, name: str = "new") -> dict[str, str]:
    content = base64.b64encode(CODE.encode()).decode()
    config = json.dumps({**CONFIG, "name": name})
    return {"config": config, **{f"file:{path}": content for path in paths}}


def round_trip(path: str) -> list[Case]:
    return [
        load(f"a file {path}", "new", files(path)),
        infer(f"infer with a file {path}", "new", ANY),
        unload(f"a file {path}", "new"),
    ]


def refused(path: str, *more: str, **options: Any) -> Case:
    return load(f"a file {path}", "new", files(path, *more), **options)


NEWER: dict[str, Any] = {"because": "names are checked since 2.73"}


def grpc_load(name: str, model: str, **options: Any) -> Case:
    message = pb.RepositoryModelLoadRequest(model_name=model)
    return call(name, "RepositoryModelLoad", message, **NEWER, **options)


def grpc_unload(name: str, model: str) -> Case:
    message = pb.RepositoryModelUnloadRequest(model_name=model)
    return call(name, "RepositoryModelUnload", message)


def shell(character: str) -> Case:
    """The genuine 2.51 would pass such a name to a shell."""
    name = f"a{character}b"
    parameters = {
        "config": pb.ModelRepositoryParameter(string_param=json.dumps({**CONFIG, "name": name})),
        "file:1/model.py": pb.ModelRepositoryParameter(bytes_param=CODE.encode()),
    }
    return call(
        f"a name with {character}",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name=name, parameters=parameters),
        is_ours_only=True,
        expect={
            "code": "INVALID_ARGUMENT",
            "message": f"load failed for model '{name}': version 1 is at UNAVAILABLE state: "
            "Invalid argument: Invalid stub name: contains invalid characters;\n",
        },
    )


CASES: list[Case] = [
    *round_trip("1/model.py"),
    *round_trip("/1/model.py"),
    *round_trip("./1//model.py"),
    *round_trip("1/../1/model.py"),
    refused("../1/model.py"),
    refused("1/../../new/1/model.py"),
    refused("/../1/model.py"),
    refused("1", "1/model.py"),
    refused(""),
    refused("."),
    *(shell(character) for character in ";|&$`<>()[]{}\"'*?~#!"),
    grpc_load(
        "a name of blanks",
        "  ",
        expect={
            "code": "INVALID_ARGUMENT",
            "message": "Model name cannot be empty. Please enter a valid name to deploy.",
        },
    ),
    grpc_load(
        "dots within blanks",
        " .. ",
        expect={
            "code": "INVALID_ARGUMENT",
            "message": "invalid model name ' .. ', model name must not contain path traversal "
            "characters",
        },
    ),
    grpc_load(
        "blanks around a name",
        " plain\t",
        expect={"code": "OK", "response": {}, "message": None},
    ),
    grpc_unload("an empty name", ""),
    grpc_unload("a name with a parent folder", "../plain"),
]
