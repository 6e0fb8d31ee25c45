"""Custom backends behind a real server: from an installed package, and from a backend directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, naiad

EXAMPLE = Path(__file__).parents[2] / "examples/custom_backend"
SHOUTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LOUD", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        self.mark = json.loads(args["model_config"])["parameters"]["mark"]["string_value"]

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        words = [word.decode().upper() + self.mark for word in text.reshape(-1)]
        loud = np.array(words, object).reshape(text.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("LOUD", loud)])
"""
CONFIG = """
backend: "shouting"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "LOUD" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "mark" value { string_value: "%s" } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("custom")
    # The files that pip would install for examples/custom_backend.
    info = folder / "site" / "linear_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linear-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[naiad.backends]\nlinear = linear_backend:LinearBackend\n"
    )
    (folder / "backends/shouting").mkdir(parents=True)
    (folder / "backends/shouting/model.py").write_text("import json\n" + SHOUTING)
    for name, mark in (("loud", "!"), ("louder", "!!!")):
        (folder / "repository" / name / "1").mkdir(parents=True)
        # The backend completes the tensors of the second model.
        config = (
            CONFIG
            if name == "loud"
            else "\n".join(line for line in CONFIG.splitlines() if "put" not in line)
        )
        (folder / "repository" / name / "config.pbtxt").write_text(config % mark)
    (folder / "repository/unheard-of/1").mkdir(parents=True)
    (folder / "repository/unheard-of/config.pbtxt").write_text(
        CONFIG.replace("shouting", "whispering") % ""
    )
    paths = os.pathsep.join(
        [str(EXAMPLE), str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    flags = [f"--backend-directory={folder / 'backends'}", "--exit-on-error=false"]
    with naiad(
        [str(EXAMPLE / "repository"), str(folder / "repository")], flags, {"PYTHONPATH": paths}
    ) as running:
        yield running


def test_a_backend_from_a_package(server: Server) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]}
    status, response = server.post("/v2/models/line/infer", body)
    assert (status, json.loads(response)["outputs"][0]["data"]) == (200, [0.5, 2.5])


def test_a_backend_from_a_folder_serves_several_models(server: Server) -> None:
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["hear"]}]}
    for name, expected in (("loud", "HEAR!"), ("louder", "HEAR!!!")):
        assert json.loads(server.post(f"/v2/models/{name}/infer", body)[1])["outputs"][0][
            "data"
        ] == [expected]


def test_rejects_an_unknown_backend(server: Server) -> None:
    index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", {})[1])}
    assert (
        "unable to find backend library for backend 'whispering'" in index["unheard-of"]["reason"]
    )
