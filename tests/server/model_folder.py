"""Writes small Python models into a test's own repository, and controls them over HTTP.

The output of such a model is a word that identifies its files, its process id and its instance.
"""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import Any

from tests.server.harness import Endpoints

CONFIG = """backend: "python"
input [ {{ name: "ANY" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }} ]
{extra}
"""
ENSEMBLE = """platform: "ensemble"
input [ {{ name: "ANY" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }} ]
ensemble_scheduling {{ step [ {{ model_name: "{part}" model_version: -1
  input_map {{ key: "ANY" value: "ANY" }} output_map {{ key: "WORD" value: "WORD" }} }} ] }}
"""
MODEL = """
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        {initialize}

    def execute(self, requests):
        {execute}
        output = np.array([f"{word} {{os.getpid()}} {{self.name}}"], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORD", output)]) for _ in requests]
"""
CONFIG_JSON: dict[str, Any] = {
    "backend": "python",
    "input": [{"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "WORD", "data_type": "TYPE_STRING", "dims": [1]}],
}
ANY = {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]}


def model_code(word: str, *, initialize: str = "pass", execute: str = "pass") -> str:
    return MODEL.format(word=word, initialize=initialize, execute=execute)


def write_model(
    repository: Path,
    name: str,
    word: str = "",
    *,
    versions: tuple[int, ...] = (1,),
    extra: str = "",
    **code: str,
) -> Path:
    """Writes a model. Files are replaced, never changed in place, so that a running server sees the
    old or the new one."""
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / "config.pbtxt", CONFIG.format(extra=extra))
    for version in versions:
        (folder / str(version)).mkdir(exist_ok=True)
        put(folder / str(version) / "model.py", model_code(word or name, **code))
    return folder


def write_ensemble(repository: Path, name: str, part: str) -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    put(folder / "config.pbtxt", ENSEMBLE.format(part=part))
    return folder


def put(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _quoted(model: str) -> str:
    return urllib.parse.quote(model, safe="")


class Control:
    """The requests of tests of model control."""

    def __init__(self, server: Endpoints) -> None:
        self.server = server

    def load(self, model: str, **parameters: Any) -> tuple[int, str]:
        return self._post(f"/v2/repository/models/{_quoted(model)}/load", parameters)

    def unload(self, model: str, **parameters: Any) -> tuple[int, str]:
        return self._post(f"/v2/repository/models/{_quoted(model)}/unload", parameters)

    def _post(self, path: str, parameters: dict[str, Any]) -> tuple[int, str]:
        status, body = self.server.post(path, {"parameters": parameters} if parameters else b"", 60)
        return status, json.loads(body)["error"] if body else ""

    def get(self, model: str, rest: str) -> tuple[int, str]:
        status, body = self.server.get(f"/v2/models/{_quoted(model)}{rest}")
        return status, body.decode()

    def index(self, *models: str) -> list[tuple[str, str, str, str]]:
        rows = json.loads(self.server.post("/v2/repository/index", b"")[1])
        return [
            (row["name"], row.get("version", ""), row.get("state", ""), row.get("reason", ""))
            for row in rows
            if not models or row["name"] in models
        ]

    def infer(self, model: str, version: str = "") -> tuple[int, str]:
        """Returns the status, and the output of the model or the error."""
        path = f"/v2/models/{_quoted(model)}" + (f"/versions/{version}" if version else "")
        status, body = self.server.post(f"{path}/infer", ANY)
        response = json.loads(body)
        return status, response["outputs"][0]["data"][0] if status == 200 else response["error"]

    def word(self, model: str, version: str = "") -> str:
        status, output = self.infer(model, version)
        assert status == 200, output
        return output.split()[0]

    def pid(self, model: str, version: str = "") -> int:
        return int(self.infer(model, version)[1].split()[1])
