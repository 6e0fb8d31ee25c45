"""OpenVINO models behind a real server: a model.xml without a config, batches, and a bad file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.server import framework_repository as models
from tests.server.harness import Server, naiad

openvino = pytest.importorskip(
    "openvino", reason="OpenVINO is not installed (pip install '.[openvino]')"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("openvino")
    (folder / "linear.onnx").write_bytes(models.linear())
    repository = folder / "repository"
    (repository / "linear/1").mkdir(parents=True)
    openvino.save_model(
        openvino.Core().read_model(folder / "linear.onnx"),
        repository / "linear/1/model.xml",
        compress_to_fp16=False,
    )
    models.add(repository, "garbage", "model.xml", b"<net")
    with naiad([str(repository)], ["--exit-on-error=false", "--strict-readiness=false"]) as running:
        yield running


def test_a_model_without_a_config(server: Server) -> None:
    x = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    tensor = triton.InferInput("x", [3, 64], "FP32")
    tensor.set_data_from_numpy(x)
    with triton.InferenceServerClient(server.http) as client:
        np.testing.assert_allclose(
            client.infer("linear", [tensor]).as_numpy("y"), x @ models.WEIGHTS, rtol=1e-4, atol=1e-5
        )
        assert client.get_model_config("linear")["max_batch_size"] == 4


def test_a_bad_file_fails_alone(server: Server) -> None:
    index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", {})[1])}
    assert "failed to read 'garbage/1/model.xml'" in index["garbage"]["reason"]
    assert index["linear"]["state"] == "READY"


def test_messages_contain_no_paths(server: Server) -> None:
    assert str(Path("/tmp")) not in server.post("/v2/repository/index", {})[1].decode()
