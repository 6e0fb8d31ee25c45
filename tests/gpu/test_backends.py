"""Framework backends on a GPU behind a real server: results, freed memory, metrics, out of memory.

Workers are forked from a template process that has imported torch. These tests also show that CUDA
can be initialized in such a child.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import onnx_file
from tests.server.harness import Server, naiad

pytest.importorskip("torch", reason="needs torch")
pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (the gpu extra)")

import torch

CLASS = """
import torch

class Model(torch.nn.Module):
    def forward(self, count):
        # So many MiB on the device.
        block = torch.ones(int(count.max().item()) << 18, device=count.device)
        return block[:1].repeat(count.shape[0], 1)
"""
CLASS_CONFIG = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ { name: "count" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { }
"""
SCRIPT_CONFIG = """
backend: "pytorch"
max_batch_size: 32
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1024 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1024 ] } ]
dynamic_batching { }
"""
HEAVY_MIB = 2048


@pytest.fixture(scope="module")
def gpu() -> Any:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


def used_mib(gpu: Any) -> float:
    return float(pynvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**20)


@pytest.fixture(scope="module")
def linear() -> Any:
    torch.manual_seed(1)
    return torch.nn.Linear(1024, 1024).eval()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, linear: Any, gpu: Any) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("gpu")
    for name in ("script", "exported", "blocks", "heavy", "onnx"):
        (repository / name / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jit: Any = torch.jit
        jit.script(linear).save(str(repository / "script/1/model.pt"))
        shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
        torch.export.save(
            torch.export.export(linear, (torch.ones(2, 1024),), dynamic_shapes=shapes),
            str(repository / "exported/1/model.pt2"),
        )
        big = torch.nn.Linear(1024, HEAVY_MIB * 256, bias=False)
        jit.script(big).save(str(repository / "heavy/1/model.pt"))
    (repository / "script/config.pbtxt").write_text(SCRIPT_CONFIG)
    (repository / "heavy/config.pbtxt").write_text(
        SCRIPT_CONFIG.replace("dims: [ 1024 ] } ]\ndyn", f"dims: [ {HEAVY_MIB * 256} ] }} ]\ndyn")
    )
    (repository / "blocks/1/model.py").write_text(CLASS)
    (repository / "blocks/config.pbtxt").write_text(CLASS_CONFIG)
    (repository / "onnx/1/model.onnx").write_bytes(onnx_file.identity("FP32", ["N", 4]))
    flags = ["--model-control-mode=explicit", "--metrics-interval-ms=200"]
    with naiad([str(repository)], flags) as running:
        yield running


def load(server: Server, name: str) -> None:
    status, body = server.post(f"/v2/repository/models/{name}/load", {}, timeout_s=120)
    assert status == 200, body


def unload(server: Server, name: str) -> None:
    assert server.post(f"/v2/repository/models/{name}/unload", {}, timeout_s=60)[0] == 200


def infer(
    server: Server, model: str, name: str, array: np.ndarray[Any, Any], datatype: str
) -> tuple[int, Any]:
    tensor = {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.reshape(-1).tolist(),
    }
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]}, timeout_s=60)
    return status, json.loads(body)


def wait_unloaded(server: Server, name: str) -> None:
    def is_gone() -> bool:
        rows = json.loads(server.post("/v2/repository/index", {})[1])
        return all(row.get("state") != "UNLOADING" for row in rows if row["name"] == name)

    for _ in range(600):
        if is_gone():
            return
        server.get("/v2/health/live")
    raise AssertionError("still unloading")


@pytest.mark.parametrize(("model", "name"), [("script", "INPUT__0"), ("exported", "input")])
def test_models_use_the_gpu_by_default_and_compute_the_same(
    server: Server, linear: Any, model: str, name: str
) -> None:
    load(server, model)
    config = json.loads(server.get(f"/v2/models/{model}/config")[1])
    assert [(group["kind"], group["gpus"]) for group in config["instance_group"]] == [
        ("KIND_GPU", [0])
    ]
    x = np.random.default_rng(1).standard_normal((3, 1024), np.float32)
    status, response = infer(server, model, name, x, "FP32")
    assert status == 200, response
    expected = linear(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(
        np.array(response["outputs"][0]["data"]).reshape(3, 1024), expected, rtol=2e-3, atol=2e-3
    )
    unload(server, model)


def test_unloading_frees_all_gpu_memory(server: Server, gpu: Any) -> None:
    load(server, "script")  # The driver keeps some memory for the first process.
    before = used_mib(gpu)
    for _ in range(5):
        load(server, "heavy")
        status, response = infer(
            server, "heavy", "INPUT__0", np.ones((1, 1024), np.float32), "FP32"
        )
        assert status == 200, response
        assert used_mib(gpu) - before > HEAVY_MIB
        unload(server, "heavy")
        wait_unloaded(server, "heavy")
        assert used_mib(gpu) - before < 16
    unload(server, "script")


def test_metrics_equal_the_values_of_the_driver(server: Server, gpu: Any) -> None:
    load(server, "heavy")
    expected_mib = used_mib(gpu)
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    reported_mib = 0.0
    for _ in range(2000):
        page = server.get("/metrics", "metrics")[1].decode()
        line = re.search(rf'nv_gpu_memory_used_bytes{{gpu_uuid="{uuid}"}} ([\d.e+]+)', page)
        assert line is not None, page
        reported_mib = float(line[1]) / 2**20
        if abs(reported_mib - expected_mib) < 64:
            break
    assert reported_mib == pytest.approx(expected_mib, abs=64)
    total = re.search(rf'nv_gpu_memory_total_bytes{{gpu_uuid="{uuid}"}} ([\d.e+]+)', page)
    assert total is not None
    assert float(total[1]) == pynvml.nvmlDeviceGetMemoryInfo(gpu).total
    assert f'nv_gpu_utilization{{gpu_uuid="{uuid}"}}' in page
    assert f'nv_gpu_power_usage{{gpu_uuid="{uuid}"}}' in page
    unload(server, "heavy")


def test_out_of_memory_fails_only_the_request(server: Server, gpu: Any) -> None:
    load(server, "blocks")
    status, response = infer(server, "blocks", "count", np.array([[1 << 20]]), "INT64")
    assert status == 500
    assert "out of memory" in response["error"]
    assert infer(server, "blocks", "count", np.array([[16], [8]]), "INT64")[1]["outputs"][0][
        "data"
    ] == [1, 1]
    unload(server, "blocks")


def test_an_onnx_model_runs_on_the_cpu_with_a_warning_without_cuda(server: Server) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    load(server, "onnx")
    assert infer(server, "onnx", "x", np.ones((1, 4), np.float32), "FP32")[1]["outputs"][0][
        "data"
    ] == [1, 1, 1, 1]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        server.wait_for_line("it runs on the CPU")
    unload(server, "onnx")
