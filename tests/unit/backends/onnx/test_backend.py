"""The ONNX backend: results equal those of onnxruntime for every type and batch shape, and a bad
request fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.errors import NaiadError
from tests import onnx_file
from tests.onnx_file import Constant, Node, Value
from tests.unit.backends.framework import Loaded, arrays, bf16, load, parameters, request, tensor

onnxruntime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed (pip install '.[onnx]')"
)

from naiad.backends.onnx.backend import OnnxBackend  # noqa: E402
from naiad.backends.onnx.session import _finding, execution_providers, session_options  # noqa: E402
from naiad.backends.served_config import read_config  # noqa: E402
from tests.unit.backends import framework  # noqa: E402

NUMBERS: dict[str, type[np.generic]] = {
    "BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
}  # fmt: skip
WEIGHTS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def place(tmp_path: Path, model: bytes) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(model)
    return tmp_path / "m"


def serve(
    tmp_path: Path, model: bytes, config: dict[str, Any] | None = None, **more: Any
) -> Loaded:
    return load(OnnxBackend, place(tmp_path, model), config, "model.onnx", **more)


def linear(batch: int | str = "N", location: str = "") -> bytes:
    nodes = [
        Node("MatMul", ["x", "w"], ["y"]),
        Node("ReduceSum", ["y", "axis"], ["total"], {"keepdims": 0}),
    ]
    constants = [Constant("w", WEIGHTS, location), Constant("axis", np.array([1], np.int64))]
    return onnx_file.model(
        nodes,
        [Value("x", "FP32", [batch, 4])],
        [Value("y", "FP32", [batch, 3]), Value("total", "FP32", [batch])],
        constants,
    )


def lookup() -> bytes:
    """A model that fails for an index outside of its table."""
    table = Constant("table", np.arange(5, dtype=np.float32) * 10)
    return onnx_file.model(
        [Node("Gather", ["table", "x"], ["y"])],
        [Value("x", "INT64", ["N", "k"])],
        [Value("y", "FP32", ["N", "k"])],
        [table],
    )


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_number_type_alone_and_in_a_batch(tmp_path: Path, datatype: str) -> None:
    served = serve(tmp_path, onnx_file.identity(datatype, ["N", "k"]))
    first = np.array([[0, 1, 2], [3, 4, 1]]).astype(NUMBERS[datatype])
    second = np.array([[1, 1, 0]]).astype(NUMBERS[datatype])
    np.testing.assert_array_equal(served.infer(x=first)["y"], first)
    responses = served.execute(request(x=first), request(x=second))
    for response, sent in zip(responses, (first, second), strict=True):
        assert response.outputs[0].datatype == datatype
        np.testing.assert_array_equal(arrays(response)["y"], sent)


@pytest.mark.parametrize("shape", [["N", 4], ["N", "k"]], ids=["fixed", "variable"])
def test_bf16_values_are_bit_patterns(tmp_path: Path, shape: list[int | str]) -> None:
    served = serve(tmp_path, onnx_file.identity("BF16", shape))
    first, second = (
        bf16("x", [1, 4], [0x3F80, 0x4000, 0xBF80, 0x7F80]),
        bf16("x", [2, 4], list(range(8))),
    )
    responses = served.execute(request(x=first), request(x=second))
    outputs = [response.outputs[0] for response in responses]
    assert [(output.datatype, bytes(output.data)) for output in outputs] == [
        ("BF16", bytes(first.data)),
        ("BF16", bytes(second.data)),
    ]


def test_strings(tmp_path: Path) -> None:
    served = serve(tmp_path, onnx_file.identity("BYTES", ["N", 2]))
    first = np.array([["a", "Größe"], ["", "x" * 100]], object)
    second = np.array([["日本", "\0nul"]], object)
    responses = served.execute(request(x=first), request(x=second))
    assert [arrays(response)["y"].tolist() for response in responses] == [
        [[b"a", "Größe".encode()], [b"", b"x" * 100]], [["日本".encode(), b"\0nul"]]]  # fmt: skip


def test_a_string_that_is_not_utf8_fails_only_its_own_request(tmp_path: Path) -> None:
    served = serve(tmp_path, onnx_file.identity("BYTES", ["N", 1]))
    good, bad = served.execute(
        request(x=np.array([[b"ok"]], object)), request(x=np.array([[b"\xff\xfe"]], object))
    )
    assert arrays(good)["y"].tolist() == [[b"ok"]]
    assert bad.error is not None
    assert (
        bad.error.message
        == "input 'x': element 0 is not valid UTF-8 (invalid start byte at byte 0)"
    )


def test_results_equal_onnxruntime_called_directly(tmp_path: Path) -> None:
    served = serve(tmp_path, linear())
    direct = onnxruntime.InferenceSession(
        str(tmp_path / "m/1/model.onnx"), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    batches = [rng.standard_normal((size, 4), np.float32) for size in (1, 3, 2)]
    for response, batch in zip(
        served.execute(*(request(x=batch) for batch in batches)), batches, strict=True
    ):
        y, total = direct.run(["y", "total"], {"x": batch})
        np.testing.assert_allclose(arrays(response)["y"], y, rtol=1e-6)
        # A vector of scalars: dims [ 1 ] reshaped to [ ], so clients see a column.
        np.testing.assert_allclose(arrays(response)["total"], total[:, None], rtol=1e-6)


def test_each_request_gets_its_requested_outputs(tmp_path: Path) -> None:
    served = serve(tmp_path, linear())
    x = np.ones((1, 4), np.float32)
    responses = served.execute(request(["total"], x=x), request(["y"], x=x), request(x=x))
    assert [list(arrays(response)) for response in responses] == [["total"], ["y"], ["y", "total"]]
    assert list(served.infer(["total"], x=x)) == ["total"]


def test_a_request_that_fails_does_not_fail_its_batch(tmp_path: Path) -> None:
    served = serve(tmp_path, lookup())
    good, bad, other = served.execute(
        request(x=[[1, 2]]), request(x=[[4, 99]]), request(x=[[0, 3]])
    )
    np.testing.assert_array_equal(arrays(good)["y"], [[10, 20]])
    np.testing.assert_array_equal(arrays(other)["y"], [[0, 30]])
    assert bad.error is not None
    assert bad.error.code == "INTERNAL"
    assert bad.error.message.startswith("onnx runtime error: ")
    assert "indices element out of data bounds" in bad.error.message


def test_a_request_that_runs_out_of_memory_fails_alone(tmp_path: Path) -> None:
    """The request asks for a huge number of zeros."""
    inputs, outputs = [Value("x", "INT64", [1])], [Value("y", "FP32", ["k"])]
    served = serve(
        tmp_path, onnx_file.model([Node("ConstantOfShape", ["x"], ["y"])], inputs, outputs)
    )
    (response,) = served.execute(request(x=[1 << 50]))
    assert response.error is not None
    assert "onnx runtime error: " in response.error.message
    assert served.infer(x=[3])["y"].tolist() == [0, 0, 0]


def test_scalars_without_batch(tmp_path: Path) -> None:
    served = serve(tmp_path, onnx_file.identity("INT64", []))
    assert served.config["input"] == [tensor("x", "TYPE_INT64", [1])]
    assert served.infer(x=[7])["y"].tolist() == [7]


def test_reshape_both_ways(tmp_path: Path) -> None:
    reshape = {"reshape": {"shape": [2, 3]}}
    config = {
        "max_batch_size": 4,
        "input": [tensor("x", "TYPE_INT32", [6], **reshape)],
        "output": [tensor("y", "TYPE_INT32", [6], **reshape)],
    }
    served = serve(tmp_path, onnx_file.identity("INT32", ["N", 2, 3]), config)
    x = np.arange(12, dtype=np.int32).reshape(2, 6)
    np.testing.assert_array_equal(served.infer(x=x)["y"], x)


def test_writes_large_outputs_to_shared_memory(tmp_path: Path) -> None:
    served = serve(tmp_path, onnx_file.identity("FP32", ["N", 10_000]))
    x = np.random.default_rng(1).standard_normal((2, 10_000), np.float32)
    np.testing.assert_array_equal(served.infer(x=x)["y"], x)
    assert served.runtime.allocated == [80_000]
    first, second = served.execute(request(x=x[:1]), request(x=x[1:]))
    assert served.runtime.allocated == [80_000, 80_000]
    np.testing.assert_array_equal(arrays(first)["y"], x[:1])
    np.testing.assert_array_equal(arrays(second)["y"], x[1:])


def test_does_not_copy_inputs(tmp_path: Path) -> None:
    """Misaligned memory is copied, because it may be read with instructions that need alignment."""
    from naiad.backends.tensor_array import to_array

    memory = bytearray(64)
    assert np.shares_memory(to_array(memory, "FP32", [16]), np.frombuffer(memory, np.uint8))
    odd = to_array(memoryview(memory)[1:61], "FP32", [15])
    assert odd.flags.aligned
    assert not np.shares_memory(odd, np.frombuffer(memory, np.uint8))


# Files.


def test_loads_external_data(tmp_path: Path) -> None:
    model_dir = place(tmp_path, linear(location="weights.bin"))
    (model_dir / "1" / "weights.bin").write_bytes(WEIGHTS.tobytes())
    served = load(OnnxBackend, model_dir, file="model.onnx")
    np.testing.assert_allclose(
        served.infer(x=np.ones((1, 4), np.float32))["y"], [WEIGHTS.sum(axis=0)], rtol=1e-6
    )


def test_loads_a_folder_named_model_onnx(tmp_path: Path) -> None:
    onnx_file.write(
        tmp_path / "m/1/model.onnx/model.onnx",
        [Node("Identity", ["x"], ["y"])],
        [Value("x", "FP32", [2])],
        [Value("y", "FP32", [2])],
    )
    served = load(OnnxBackend, tmp_path / "m", file="model.onnx")
    assert served.infer(x=np.ones(2, np.float32))["y"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "onnx runtime error: "),
        (b"not a model at all", "onnx runtime error: "),
        (linear()[:-40], "onnx runtime error: "),
        (linear(location="nowhere.bin"), "onnx runtime error: "),
    ],
    ids=["empty", "garbage", "truncated", "missing external data"],
)
def test_rejects_invalid_files(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        serve(tmp_path, content)
    assert caught.value.message.startswith(message)
    assert str(tmp_path) not in caught.value.message


def test_rejects_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(
        NaiadError, match=r"unable to find 'm/1/model\.onnx' for model 'm': no such file"
    ):
        load(OnnxBackend, tmp_path / "m", file="model.onnx")


# Completing the config.


def test_completes_batching_if_all_tensors_have_a_batch_dimension(tmp_path: Path) -> None:
    served = serve(tmp_path, linear())
    assert served.config == {
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [tensor("x", "TYPE_FP32", [4])],
        "output": [
            tensor("y", "TYPE_FP32", [3]),
            tensor("total", "TYPE_FP32", [1], reshape={"shape": []}),
        ],
    }
    assert [(severity, text[:30]) for severity, text, _, _ in served.runtime.logged] == [
        ("WARNING", "autofilled max_batch_size to 4")
    ]


def test_completes_no_batching_for_a_fixed_first_dimension(tmp_path: Path) -> None:
    served = serve(tmp_path, linear(batch=2))
    assert served.config == {
        "input": [tensor("x", "TYPE_FP32", [2, 4])],
        "output": [tensor("y", "TYPE_FP32", [2, 3]), tensor("total", "TYPE_FP32", [2])],
    }
    assert served.infer(x=np.ones((2, 4), np.float32))["y"].shape == (2, 3)


def test_uses_the_default_batch_size_of_the_server(tmp_path: Path) -> None:
    assert (
        serve(tmp_path, linear(), backend_config={"default-max-batch-size": "16"}).config[
            "max_batch_size"
        ]
        == 16
    )


def test_completes_no_dynamic_batching_for_a_batch_size_of_one(tmp_path: Path) -> None:
    served = serve(tmp_path, linear(), backend_config={"default-max-batch-size": "1"})
    assert served.config["max_batch_size"] == 1
    assert "dynamic_batching" not in served.config


def test_keeps_the_fields_of_the_config(tmp_path: Path) -> None:
    given = {"max_batch_size": 8, "input": [tensor("x", "TYPE_FP32", [4])], "sequence_batching": {}}
    served = serve(tmp_path, linear(), given)
    assert served.config["max_batch_size"] == 8
    assert served.config["input"] == given["input"]
    assert "dynamic_batching" not in served.config


def test_rejects_batching_that_the_model_does_not_support(tmp_path: Path) -> None:
    message = (
        "autofill failed for model 'm': model does not support batching while non-zero "
        "max_batch_size is specified"
    )
    with pytest.raises(NaiadError, match=message):
        serve(tmp_path, linear(batch=1), {"max_batch_size": 8})


# A config that does not describe the model.

X, Y = tensor("x", "TYPE_FP32", [4]), tensor("y", "TYPE_FP32", [3])


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (
            [tensor("a", "TYPE_FP32", [4])],
            [Y],
            "unexpected inference input 'a', allowed inputs are: x",
        ),
        (
            [X],
            [tensor("b", "TYPE_FP32", [3])],
            "unexpected inference output 'b', allowed outputs are: y, total",
        ),
        (
            [tensor("x", "TYPE_FP64", [4])],
            [Y],
            "unable to load model 'm', configuration expects datatype TYPE_FP64 for input 'x', "
            "model provides TYPE_FP32",
        ),
        (
            [X],
            [tensor("y", "TYPE_INT32", [3])],
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for output 'y', "
            "model provides TYPE_FP32",
        ),
        (
            [tensor("x", "TYPE_FP32", [5])],
            [Y],
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model "
            "configuration specifies 2 dimensions (an "
            "initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            "shape, making complete shape [-1,5])",
        ),
        ([X, X], [Y], "unable to load model 'm', configuration expects 2 inputs, model provides 1"),
        (  # the number of inputs is judged before their names
            [tensor("a", "TYPE_FP32", [4]), X],
            [Y],
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            [tensor("x", "TYPE_FP32", [4], allow_ragged_batch=True)],
            [Y],
            "unable to load model 'm', configuration expects model provides input with shape "
            "[-1]  for ragged input 'x', model provides "
            "[-1,4]",
        ),
    ],
)
def test_rejects_configs_that_contradict_the_model(
    tmp_path: Path, inputs: list[Any], outputs: list[Any], message: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        serve(tmp_path, linear(), {"max_batch_size": 8, "input": inputs, "output": outputs})
    assert caught.value.message == message


def test_rejects_wrong_dims_without_batching(tmp_path: Path) -> None:
    with pytest.raises(NaiadError) as caught:
        serve(
            tmp_path, linear(batch=1), {"input": [X], "output": [tensor("y", "TYPE_FP32", [1, 3])]}
        )
    assert caught.value.message == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [1,4]) but the model "
        "configuration specifies 1 dimensions (shape [4])"
    )


def test_rejects_a_max_batch_size_for_a_model_with_a_fixed_batch(tmp_path: Path) -> None:
    with pytest.raises(NaiadError) as caught:
        serve(tmp_path, linear(batch=1), {"max_batch_size": 8, "input": [X], "output": [Y]})
    assert caught.value.message == (
        "model 'm', tensor 'x': for the model to support batching the shape should have at least "
        "1 dimension and the first dimension "
        "must be -1; but shape expected by the model is [1,4]"
    )


# Options.


def options(
    config: dict[str, Any], backend_config: dict[str, str] | None = None, **arguments: Any
) -> Any:
    given = framework.arguments(Path("m"), config, backend_config=backend_config)
    return session_options(read_config(given), given)


def test_applies_options_with_the_names_of_triton() -> None:
    made = options(
        {
            "optimization": {"graph": {"level": 1}},
            "parameters": parameters(
                intra_op_thread_count="3",
                inter_op_thread_count="2",
                execution_mode="1",
                enable_mem_arena="0",
                enable_mem_pattern="0",
            )
            | {"session.use_device_allocator_for_initializers": {"string_value": "1"}},
        }
    )
    assert made.intra_op_num_threads == 3
    assert made.inter_op_num_threads == 2
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert made.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert not made.enable_cpu_mem_arena
    assert not made.enable_mem_pattern
    assert made.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (-1, "ORT_ENABLE_BASIC"),
        (0, "ORT_ENABLE_ALL"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
    ],
)
def test_graph_levels(level: int, expected: str) -> None:
    assert (
        options({"optimization": {"graph": {"level": level}}}).graph_optimization_level.name
        == expected
    )


def test_number_of_threads_is_that_of_the_config_the_server_or_the_cores() -> None:
    groups = {"instance_group": [{"kind": "KIND_CPU", "count": 64}]}
    assert options(groups).intra_op_num_threads == 1
    assert options({}, {"intra_op_thread_count": "5"}).intra_op_num_threads == 5
    assert (
        options(
            {"parameters": parameters(intra_op_thread_count="7")}, {"intra_op_thread_count": "5"}
        ).intra_op_num_threads
        == 7
    )


def test_threads_do_not_spin_by_default() -> None:
    spinning = "session.intra_op.allow_spinning"
    assert options({}).get_session_config_entry(spinning) == "0"
    assert (
        options({"parameters": {spinning: {"string_value": "1"}}}).get_session_config_entry(
            spinning
        )
        == "1"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"parameters": parameters(intra_op_thread_count="many")},
            "parameter 'intra_op_thread_count' is 'many', expected a whole number",
        ),
        (
            {"parameters": parameters(enable_mem_arena="perhaps")},
            "parameter 'enable_mem_arena' of model 'm' is 'perhaps', expected true or false",
        ),
        ({"parameters": parameters(execution_mode="2")}, "expected 0 (sequential) or 1 (parallel)"),
        (
            {"optimization": {"graph": {"level": 9}}},
            "unexpected optimization.graph.level 9 for model 'm', expected -1, 0, 1 or 2",
        ),
        (
            {"model_operations": {"op_library_filename": ["no.so"]}},
            "failed to load custom operators 'no.so'",
        ),
    ],
)
def test_rejects_invalid_options(config: dict[str, Any], message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        options(config)
    assert message in caught.value.message


def providers(
    config: dict[str, Any], kind: str, available: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], list[str]]:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    given = framework.arguments(Path("m"), config)
    given.instance_kind, given.device_id = kind, 1
    warnings: list[str] = []
    return execution_providers(read_config(given), given, warnings), warnings


def test_providers_of_a_gpu_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerators = {
        "gpu_execution_accelerator": [
            {
                "name": "tensorrt",
                "parameters": {"precision_mode": "FP16", "max_workspace_size_bytes": "1024"},
            },
            {"name": "cuda", "parameters": {"cudnn_conv_use_max_workspace": "0"}},
        ]
    }
    config = {
        "optimization": {"execution_accelerators": accelerators},
        "parameters": parameters(cudnn_conv_algo_search="1"),
    }
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    found, warnings = providers(config, "GPU", available, monkeypatch)
    assert warnings == []
    assert found == [
        (
            "TensorrtExecutionProvider",
            {"device_id": "1", "trt_fp16_enable": "1", "trt_max_workspace_size": "1024"},
        ),
        (
            "CUDAExecutionProvider",
            {
                "cudnn_conv_algo_search": "HEURISTIC",
                "arena_extend_strategy": "kNextPowerOfTwo",
                "do_copy_in_default_stream": "1",
                "cudnn_conv_use_max_workspace": "0",
                "device_id": "1",
            },
        ),
        "CPUExecutionProvider",
    ]


def test_a_gpu_instance_without_cuda_runs_on_the_cpu_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, warnings = providers({}, "GPU", ["CPUExecutionProvider"], monkeypatch)
    assert found == ["CPUExecutionProvider"]
    assert "it runs on the CPU" in warnings[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "openvino",
            "Execution Accelerator 'openvino' is requested, but this onnxruntime has no "
            "OpenVINOExecutionProvider",
        ),
        ("quantum", "unknown Execution Accelerator 'quantum' is requested"),
    ],
)
def test_rejects_unavailable_accelerators(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{"name": name}]}}
    }
    with pytest.raises(NaiadError) as caught:
        providers(config, "CPU", ["CPUExecutionProvider"], monkeypatch)
    assert caught.value.message.startswith(message)


def test_arena_shrinkage_is_an_option_of_the_run(tmp_path: Path) -> None:
    config = {"parameters": {"memory.enable_memory_arena_shrinkage": {"string_value": "cpu:0"}}}
    assert serve(tmp_path, linear(), config).infer(x=np.ones((1, 4), np.float32))["y"].shape == (
        1,
        3,
    )


# Ragged batches and initializers.


def test_ragged_inputs_with_their_sizes(tmp_path: Path) -> None:
    """The model gets all elements concatenated, and the count of each request."""
    nodes = [Node("Identity", ["x"], ["flat"]), Node("Identity", ["sizes"], ["counts"])]
    inputs = [Value("x", "FP32", ["n"]), Value("sizes", "INT32", ["r"])]
    outputs = [Value("flat", "FP32", ["n"]), Value("counts", "INT32", ["r"])]
    config = {
        "max_batch_size": 8,
        "input": [tensor("x", "TYPE_FP32", [-1], allow_ragged_batch=True)],
        "output": [
            tensor("flat", "TYPE_FP32", [-1]),
            tensor("counts", "TYPE_INT32", [1], reshape={"shape": []}),
        ],
        "batch_input": [
            {
                "kind": "BATCH_ELEMENT_COUNT",
                "target_name": ["sizes"],
                "data_type": "TYPE_INT32",
                "source_input": ["x"],
            }
        ],
        "batch_output": [
            {
                "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
                "target_name": ["flat"],
                "source_input": ["x"],
            }
        ],
    }
    served = serve(tmp_path, onnx_file.model(nodes, inputs, outputs), config)
    first, second = np.array([[1, 2, 3]], np.float32), np.array([[4]], np.float32)
    responses = served.execute(request(x=first), request(x=second))
    assert [arrays(response)["flat"].tolist() for response in responses] == [[[1, 2, 3]], [[4]]]
    assert [arrays(response)["counts"].tolist() for response in responses] == [[[3]], [[1]]]


def test_an_initializer_may_be_an_optional_input(tmp_path: Path) -> None:
    scale = Constant("scale", np.array([2], np.float32))
    inputs = [Value("x", "FP32", [3]), Value("scale", "FP32", [1])]
    model = onnx_file.model(
        [Node("Mul", ["x", "scale"], ["y"])], inputs, [Value("y", "FP32", [3])], [scale]
    )
    config = {
        "input": [tensor("x", "TYPE_FP32", [3]), tensor("scale", "TYPE_FP32", [1], optional=True)],
        "output": [tensor("y", "TYPE_FP32", [3])],
    }
    served = serve(tmp_path, model, config)
    x = np.array([1, 2, 3], np.float32)
    assert served.infer(x=x)["y"].tolist() == [2, 4, 6]
    assert served.infer(x=x, scale=np.array([10], np.float32))["y"].tolist() == [10, 20, 30]


def test_rejects_a_type_without_a_triton_datatype(tmp_path: Path) -> None:
    from naiad.backends.signature import Signature, TensorSignature, complete

    found = TensorSignature("probabilities", "", None, "seq(map(int64,tensor(float)))")
    given = framework.arguments(tmp_path / "m", {})
    with pytest.raises(NaiadError, match="zipmap"):
        complete(read_config(given), Signature([TensorSignature("x", "FP32", [1])], [found]), 4)


def test_the_log_gets_what_check_finds_in_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx_file.identity("FP32", [-1, 4])[:-9])
    assert _finding(str(tmp_path / "model.onnx")) == (
        "found: it ends too early: 5 bytes are missing; export or copy the model again"
    )
    assert _finding(str(tmp_path)) == ""
    (tmp_path / "model.onnx").write_bytes(onnx_file.identity("FP32", [-1, 4]))
    assert _finding(str(tmp_path / "model.onnx")) == ""
