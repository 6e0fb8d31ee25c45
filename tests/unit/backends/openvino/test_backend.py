"""The OpenVINO backend: results, types, batches of fixed and variable size, and parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.errors import NaiadError
from tests import onnx_file
from tests.onnx_file import Constant, Node, Value
from tests.unit.backends.framework import Loaded, arrays, bf16, load, parameters, request, tensor

openvino = pytest.importorskip(
    "openvino", reason="OpenVINO is not installed (pip install '.[openvino]')"
)

from naiad.backends.openvino.backend import OpenvinoBackend  # noqa: E402
from naiad.backends.openvino.options import compile_options  # noqa: E402
from naiad.backends.served_config import read_config  # noqa: E402
from tests.unit.backends import framework  # noqa: E402

WEIGHTS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
X, Y = tensor("x", "TYPE_FP32", [4]), tensor("y", "TYPE_FP32", [3])


def place(tmp_path: Path, model: bytes) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    source = tmp_path / "source.onnx"
    source.write_bytes(model)
    openvino.save_model(
        openvino.Core().read_model(source), tmp_path / "m/1/model.xml", compress_to_fp16=False
    )
    return tmp_path / "m"


def serve(tmp_path: Path, model: bytes, config: dict[str, Any] | None = None) -> Loaded:
    return load(OpenvinoBackend, place(tmp_path, model), config, "model.xml")


def linear(batch: int | str = "N") -> bytes:
    nodes, inputs = [Node("MatMul", ["x", "w"], ["y"])], [Value("x", "FP32", [batch, 4])]
    return onnx_file.model(
        nodes, inputs, [Value("y", "FP32", [batch, 3])], [Constant("w", WEIGHTS)]
    )


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [
        ("BOOL", np.bool_), ("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64),
        ("UINT8", np.uint8), ("UINT16", np.uint16), ("UINT32", np.uint32), ("UINT64", np.uint64),
        ("INT8", np.int8), ("INT16", np.int16), ("INT32", np.int32), ("INT64", np.int64),
    ],
)  # fmt: skip
def test_every_number_type(tmp_path: Path, datatype: str, dtype: Any) -> None:
    served = serve(tmp_path, onnx_file.identity(datatype, ["N", 2]))
    sent = np.array([[0, 1], [1, 1]]).astype(dtype)
    responses = served.execute(request(x=sent), request(x=sent[:1]))
    assert [response.outputs[0].datatype for response in responses] == [datatype, datatype]
    np.testing.assert_array_equal(arrays(responses[0])["y"], sent)
    np.testing.assert_array_equal(arrays(responses[1])["y"], sent[:1])


def test_bf16(tmp_path: Path) -> None:
    sent = bf16("x", [2, 2], [0x3F80, 0xC000, 1, 2])
    (response,) = serve(tmp_path, onnx_file.identity("BF16", ["N", 2])).execute(request(x=sent))
    assert (response.outputs[0].datatype, bytes(response.outputs[0].data)) == (
        "BF16",
        bytes(sent.data),
    )


def test_rejects_strings(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="unsupported datatype string for input 'x' for model 'm'"):
        serve(tmp_path, onnx_file.identity("BYTES", ["N", 2]))


def test_results_equal_openvino_called_directly(tmp_path: Path) -> None:
    served = serve(tmp_path, linear())
    assert served.config == {
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [X],
        "output": [Y],
    }
    # By default, OpenVINO computes in bfloat16 if the CPU supports it.
    direct = openvino.Core().compile_model(
        tmp_path / "m/1/model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    batches = [
        np.random.default_rng(1).standard_normal((size, 4), np.float32) for size in (1, 3, 2)
    ]
    for response, batch in zip(
        served.execute(*(request(x=batch) for batch in batches)), batches, strict=True
    ):
        np.testing.assert_allclose(arrays(response)["y"], direct([batch])[0], rtol=1e-6)


def test_responses_survive_the_next_run(tmp_path: Path) -> None:
    served = serve(tmp_path, linear())
    first = served.infer(x=np.ones((1, 4), np.float32))["y"]
    kept = first.copy()
    served.infer(x=np.zeros((1, 4), np.float32))
    np.testing.assert_array_equal(first, kept)


def test_writes_large_outputs_to_shared_memory(tmp_path: Path) -> None:
    served = serve(tmp_path, onnx_file.identity("FP32", ["N", 10_000]))
    x = np.random.default_rng(1).standard_normal((2, 10_000), np.float32)
    np.testing.assert_array_equal(served.infer(x=x)["y"], x)
    assert served.runtime.allocated == [80_000]


def test_scalars(tmp_path: Path) -> None:
    assert serve(tmp_path, onnx_file.identity("INT64", [])).infer(x=[7])["y"].tolist() == [7]


def test_accepts_any_batch_size_for_a_fixed_batch(tmp_path: Path) -> None:
    served = serve(tmp_path, linear(batch=1), {"max_batch_size": 8, "input": [X], "output": [Y]})
    np.testing.assert_allclose(
        served.infer(x=np.ones((5, 4), np.float32))["y"], [WEIGHTS.sum(axis=0)] * 5, rtol=1e-6
    )


FIXED = {"max_batch_size": 3, "input": [X], "output": [Y]}


def test_rejects_other_batch_sizes_if_the_batch_stays_fixed(tmp_path: Path) -> None:
    served = serve(
        tmp_path,
        linear(batch=3),
        {**FIXED, "parameters": parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")},
    )
    assert served.infer(x=np.ones((3, 4), np.float32))["y"].shape == (3, 3)
    (response,) = served.execute(request(x=np.ones((2, 4), np.float32)))
    assert response.error is not None
    assert response.error.message == (
        "the model takes batches of exactly 3, got 2; set ENABLE_BATCH_PADDING to YES to "
        "have them filled up"
    )


def test_pads_batches_if_the_batch_stays_fixed(tmp_path: Path) -> None:
    given = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES", ENABLE_BATCH_PADDING="YES")
    served = serve(tmp_path, linear(batch=3), {**FIXED, "parameters": given})
    np.testing.assert_allclose(
        served.infer(x=np.ones((2, 4), np.float32))["y"], [WEIGHTS.sum(axis=0)] * 2, rtol=1e-6
    )


def test_rejects_a_fixed_batch_other_than_max_batch_size(tmp_path: Path) -> None:
    with pytest.raises(
        NaiadError, match="input 'x' has a fixed batch of 2 and SKIP_OV_DYNAMIC_BATCHSIZE is set"
    ):
        serve(
            tmp_path,
            linear(batch=2),
            {**FIXED, "parameters": parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")},
        )


def test_reshapes_the_model_to_the_config(tmp_path: Path) -> None:
    config = {
        "input": [tensor("x", "TYPE_FP32", [-1, 4])],
        "output": [tensor("y", "TYPE_FP32", [-1, 3])],
        "parameters": parameters(RESHAPE_IO_LAYERS="yes"),
    }
    assert serve(tmp_path, linear(batch=1), config).infer(x=np.ones((6, 4), np.float32))[
        "y"
    ].shape == (6, 3)


def test_rejects_a_config_that_contradicts_the_model(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="unexpected inference input 'a', allowed inputs are: x"):
        serve(tmp_path, linear(), {**FIXED, "input": [tensor("a", "TYPE_FP32", [4])]})


def test_loads_other_files_that_openvino_can_read(tmp_path: Path) -> None:
    onnx_file.write(
        tmp_path / "m/1/model.onnx",
        [Node("Relu", ["x"], ["y"])],
        [Value("x", "FP32", [2])],
        [Value("y", "FP32", [2])],
    )
    assert load(OpenvinoBackend, tmp_path / "m", file="model.onnx").infer(
        x=np.array([-1, 1], np.float32)
    )["y"].tolist() == [0, 1]


@pytest.mark.parametrize("content", ["", "no xml", "<net"], ids=["empty", "garbage", "truncated"])
def test_rejects_invalid_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m/1/model.xml").write_text(content)
    with pytest.raises(NaiadError) as caught:
        load(OpenvinoBackend, tmp_path / "m", file="model.xml")
    assert caught.value.message.startswith("failed to read 'm/1/model.xml': ")
    assert str(tmp_path) not in caught.value.message


def test_rejects_a_missing_weights_file(tmp_path: Path) -> None:
    model_dir = place(tmp_path, linear())
    (model_dir / "1" / "model.bin").unlink()
    with pytest.raises(NaiadError) as caught:
        load(OpenvinoBackend, model_dir, file="model.xml")
    assert str(tmp_path) not in caught.value.message


def test_rejects_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(
        NaiadError, match=r"unable to find 'm/1/model\.xml' for model 'm': no such file"
    ):
        load(OpenvinoBackend, tmp_path / "m", file="model.xml")


def options(**given: str) -> dict[str, Any]:
    return compile_options(
        read_config(framework.arguments(Path("m"), {"parameters": parameters(**given)}))
    )


def test_applies_the_parameters_of_triton() -> None:
    made = options(
        INFERENCE_NUM_THREADS="3",
        NUM_STREAMS="auto",
        PERFORMANCE_HINT="throughput",
        HINT_BF16="YES",
        COMPILATION_NUM_THREADS="2",
    )
    assert made == {
        "INFERENCE_NUM_THREADS": 3,
        "NUM_STREAMS": "AUTO",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "bf16",
        "COMPILATION_NUM_THREADS": 2,
    }
    assert options()["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.parametrize(
    ("name", "value"),
    [("PERFORMANCE_HINT", "FAST"), ("NUM_STREAMS", "-1"), ("INFERENCE_NUM_THREADS", "x")],
)
def test_rejects_invalid_parameters(name: str, value: str) -> None:
    with pytest.raises(NaiadError, match=f"parameter '{name}'"):
        options(**{name: value})
