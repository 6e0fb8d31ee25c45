"""Writes small Python models into a test's own repository: what they answer tells which files,
process and instance they are."""

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
        words = [f"{word} {{os.getpid()}} {{self.name}}"]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array(words, dtype=np.object_))]) for _ in requests]
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
    """Files are replaced, never written in place: a server that looks meanwhile sees the old or the
    new one."""
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


class Control:
    """What tests of model control ask of a server."""

    def __init__(self, server: Endpoints) -> None:
        self.server = server

    def load(self, model: str, **parameters: Any) -> tuple[int, str]:
        return self._post(
            f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/load", parameters
        )

    def unload(self, model: str, **parameters: Any) -> tuple[int, str]:
        return self._post(
            f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/unload", parameters
        )

    def _post(self, path: str, parameters: dict[str, Any]) -> tuple[int, str]:
        status, body = self.server.post(path, {"parameters": parameters} if parameters else b"", 60)
        return status, json.loads(body)["error"] if body else ""

    def get(self, model: str, rest: str) -> tuple[int, str]:
        status, body = self.server.get(f"/v2/models/{urllib.parse.quote(model, safe='')}{rest}")
        return status, body.decode()

    def index(self, *models: str) -> list[tuple[str, str, str, str]]:
        rows = json.loads(self.server.post("/v2/repository/index", b"")[1])
        found = [
            (row["name"], row.get("version", ""), row.get("state", ""), row.get("reason", ""))
            for row in rows
        ]
        return [row for row in found if not models or row[0] in models]

    def infer(self, model: str, version: str = "") -> tuple[int, str]:
        """(status, the model's words or the error)"""
        name = urllib.parse.quote(model, safe="")
        path = (
            f"/v2/models/{name}/versions/{version}/infer" if version else f"/v2/models/{name}/infer"
        )
        status, body = self.server.post(path, ANY)
        answer = json.loads(body)
        return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]

    def word(self, model: str, version: str = "") -> str:
        status, words = self.infer(model, version)
        assert status == 200, words
        return words.split()[0]

    def pid(self, model: str, version: str = "") -> int:
        return int(self.infer(model, version)[1].split()[1])
