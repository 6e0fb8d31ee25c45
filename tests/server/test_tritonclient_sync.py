"""Stock tritonclient without asyncio: the calls that HTTP and gRPC have in common, over both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.client_data import (
    ARRAYS,
    JSON_TYPES,
    ROW,
    add_sub_inputs,
    is_same,
    number_input,
    text_input,
    typed_input,
)
from tests.server.harness import Endpoints


@pytest.fixture(scope="module", params=["http", "grpc"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = http_client if request.param == "http" else grpc_client
    return chosen


@pytest.fixture(scope="module")
def client(module: ModuleType, main_server: Endpoints) -> Iterator[Any]:
    address = main_server.http if module is http_client else main_server.grpc
    one = module.InferenceServerClient(address)
    yield one
    one.close()


def as_dict(module: ModuleType, response: Any) -> dict[str, Any]:
    """Checks the type of a response: HTTP clients return dictionaries, gRPC clients do so if asked
    for JSON."""
    assert isinstance(response, dict)
    return response


def json_options(module: ModuleType) -> dict[str, Any]:
    return {"as_json": True} if module is grpc_client else {}


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("versions_latest", "2")
    assert not client.is_model_ready("versions_latest", "1")
    assert not client.is_model_ready("nowhere")


def test_server_metadata(module: ModuleType, client: Any) -> None:
    metadata = as_dict(module, client.get_server_metadata(**json_options(module)))
    assert metadata["name"] == "triton"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(metadata["extensions"])


def test_model_metadata(module: ModuleType, client: Any) -> None:
    metadata = as_dict(module, client.get_model_metadata("add_sub", **json_options(module)))
    assert metadata["versions"] == ["1"]
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 16]


def test_model_config(module: ModuleType, client: Any) -> None:
    config = as_dict(module, client.get_model_config("add_sub", **json_options(module)))
    config = config.get("config", config)
    assert config["max_batch_size"] == 64
    assert config["backend"] == "python"
    assert config["instance_group"][0]["name"] == "add_sub_0"


@pytest.mark.parametrize("datatype", list(ARRAYS))
def test_returns_every_datatype(module: ModuleType, client: Any, datatype: str) -> None:
    result = client.infer("types", [typed_input(module, datatype)])
    assert is_same(result.as_numpy(f"OUT_{datatype}"), ARRAYS[datatype])
    assert result.as_numpy("OUT_NOTHING") is None


@pytest.mark.parametrize("datatype", JSON_TYPES)
def test_returns_every_datatype_as_json(main_server: Endpoints, datatype: str) -> None:
    with http_client.InferenceServerClient(main_server.http) as client:
        output = http_client.InferRequestedOutput(f"OUT_{datatype}", binary_data=False)
        result = client.infer(
            "types", [typed_input(http_client, datatype, binary_data=False)], outputs=[output]
        )
        assert is_same(result.as_numpy(f"OUT_{datatype}"), ARRAYS[datatype])
        assert "data" in result.get_output(f"OUT_{datatype}")


def test_returns_strings_as_json(main_server: Endpoints) -> None:
    with http_client.InferenceServerClient(main_server.http) as client:
        tensor = http_client.InferInput("TEXT", [1, 2], "BYTES")
        tensor.set_data_from_numpy(
            np.array([["plain", "näiad"]], dtype=np.object_), binary_data=False
        )
        result = client.infer(
            "identity_bytes",
            [tensor],
            outputs=[http_client.InferRequestedOutput("SAME", binary_data=False)],
        )
        assert result.get_output("SAME")["data"] == ["plain", "näiad"]


def test_an_empty_tensor(module: ModuleType, client: Any) -> None:
    tensor = module.InferInput("IN_FP32", [0], "FP32")
    tensor.set_data_from_numpy(np.zeros(0, np.float32))
    assert client.infer("types", [tensor]).as_numpy("OUT_FP32").shape == (0,)


def test_infer_with_an_id_a_version_and_one_output(module: ModuleType, client: Any) -> None:
    outputs = [module.InferRequestedOutput("OUTPUT1")]
    result = client.infer(
        "add_sub", add_sub_inputs(module), model_version="1", outputs=outputs, request_id="seven"
    )
    assert is_same(result.as_numpy("OUTPUT1"), ROW - ROW)
    assert result.as_numpy("OUTPUT0") is None
    response = as_dict(module, result.get_response(**json_options(module)))
    assert response["id"] == "seven"
    assert response["model_version"] == "1"


def test_a_large_batch(module: ModuleType, client: Any) -> None:
    left = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    result = client.infer("add_sub", add_sub_inputs(module, left, left))
    assert is_same(result.as_numpy("OUTPUT0"), left + left)


def test_a_tensor_of_four_megabytes(module: ModuleType, client: Any) -> None:
    array = np.random.default_rng(1).random(1 << 20, np.float32)
    tensor = module.InferInput("INPUT0", [array.size], "FP32")
    tensor.set_data_from_numpy(array)
    assert is_same(client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0"), array)


def test_classification(module: ModuleType, client: Any) -> None:
    tensor = module.InferInput("FEATURES", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 4, 2, 3]], np.float32))
    result = client.infer(
        "classifier", [tensor], outputs=[module.InferRequestedOutput("SCORES", class_count=2)]
    )
    assert result.as_numpy("SCORES").tolist() == [[b"2.000000:1:pear", b"1.500000:3:fig"]]


def test_parameters_reach_the_model(module: ModuleType, client: Any) -> None:
    result = client.infer(
        "request_info",
        [number_input(module, "ANY", 1, 2)],
        request_id="r",
        parameters={"text": "a", "whole": 7, "sure": True},
    )
    facts = [fact.decode() for fact in result.as_numpy("FACTS")]
    assert facts[:2] == ["id=r", 'parameters={"sure": true, "text": "a", "whole": 7}']


def test_sequence_flags_reach_the_model(module: ModuleType, client: Any) -> None:
    result = client.infer(
        "request_info", [number_input(module, "ANY", 1)], sequence_id=42, sequence_start=True
    )
    assert [fact.decode() for fact in result.as_numpy("FACTS")][2:4] == [
        "correlation=42",
        "flags=1",
    ]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compression(module: ModuleType, client: Any, compression: str) -> None:
    if module is http_client:
        options = {
            "request_compression_algorithm": compression,
            "response_compression_algorithm": compression,
        }
    else:
        options = {"compression_algorithm": compression}
    left = np.zeros((8, 16), np.float32)
    result = client.infer("add_sub", add_sub_inputs(module, left, left), **options)
    assert is_same(result.as_numpy("OUTPUT0"), left)


def test_concurrent_requests_with_async_infer(module: ModuleType, client: Any) -> None:
    """Each of many requests in flight gets its own response."""
    arrays = [np.full((1, 16), value, np.float32) for value in range(32)]
    if module is http_client:
        calls = [
            client.async_infer("add_sub", add_sub_inputs(module, array, array)) for array in arrays
        ]
        results = [call.get_result() for call in calls]
    else:
        results = grpc_results(client, arrays)
    assert all(
        is_same(result.as_numpy("OUTPUT0"), array + array)
        for result, array in zip(results, arrays, strict=True)
    )


def grpc_results(client: Any, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    results: list[Any] = [None] * len(arrays)
    done = threading.Semaphore(0)

    def keep(index: int, result: Any, error: Any) -> None:
        results[index] = error or result
        done.release()

    for index, array in enumerate(arrays):
        client.async_infer(
            "add_sub",
            add_sub_inputs(grpc_client, array, array),
            callback=lambda result, error, i=index: keep(i, result, error),
        )
    for _ in arrays:
        assert done.acquire(timeout=30)
    return results


def test_statistics(module: ModuleType, client: Any) -> None:
    def counts() -> tuple[int, int]:
        response = as_dict(
            module, client.get_inference_statistics("versions_all", "1", **json_options(module))
        )
        stats = response["model_stats"][0]
        return int(stats.get("inference_count", 0)), int(
            stats["inference_stats"]["success"].get("count", 0)
        )

    before = counts()
    client.infer("versions_all", [number_input(module, "ANY", 0)], model_version="1")
    after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)


def test_statistics_of_all_models(module: ModuleType, client: Any) -> None:
    response = as_dict(module, client.get_inference_statistics(**json_options(module)))
    assert {"add_sub", "words"} <= {stats["name"] for stats in response["model_stats"]}


def test_repository_index(module: ModuleType, client: Any) -> None:
    response = client.get_model_repository_index(**json_options(module))
    models = response["models"] if isinstance(response, dict) else response
    assert {(model["name"], model["state"]) for model in models} >= {
        ("add_sub", "READY"),
        ("words", "READY"),
    }


def test_rejects_a_load_outside_of_explicit_mode(client: Any) -> None:
    with pytest.raises(
        InferenceServerException, match="explicit model load / unload is not allowed"
    ):
        client.load_model("add_sub")


@pytest.mark.parametrize(
    ("model", "code_http", "code_grpc", "message"),
    [
        ("nowhere", "404", "StatusCode.NOT_FOUND", "unknown model"),
        ("repeat", "501", "StatusCode.UNIMPLEMENTED", "decoupled transaction policy"),
    ],
)
def test_errors_before_the_model(
    module: ModuleType, client: Any, model: str, code_http: str, code_grpc: str, message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, [number_input(module, "COUNT", 1)])
    assert caught.value.status() in (code_http if module is http_client else code_grpc, None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("raise", "boom"), ("error", "refused by the model"), ("INVALID_ARG", "coded INVALID_ARG")],
)
def test_errors_of_the_model(module: ModuleType, client: Any, kind: str, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        client.infer("failing", [text_input(module, "KIND", kind)])


def test_rejects_a_wrong_shape(module: ModuleType, client: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'INPUT0'"):
        client.infer("add_sub", add_sub_inputs(module, ROW[:, :3]))


def test_rejects_a_wrong_datatype(module: ModuleType, client: Any) -> None:
    tensor = module.InferInput("INPUT0", [1, 16], "INT32")
    tensor.set_data_from_numpy(ROW.astype(np.int32))
    with pytest.raises(
        InferenceServerException, match=r"data-type is 'INT32', but model 'add_sub' expects 'FP32'"
    ):
        client.infer("add_sub", [tensor, add_sub_inputs(module)[1]])


def test_models_that_call_other_models(module: ModuleType, client: Any) -> None:
    tensor = module.InferInput("X", [1, 16], "FP32")
    tensor.set_data_from_numpy(ROW)
    assert is_same(client.infer("bls_sync", [tensor]).as_numpy("Y"), 3 * ROW)
    assert is_same(client.infer("bls_async", [tensor]).as_numpy("Y"), 3 * ROW * -ROW)


def test_many_threads_share_a_client(main_server: Endpoints) -> None:
    """Only tritonclient's gRPC client may be used by several threads."""
    errors: list[Exception] = []
    with grpc_client.InferenceServerClient(main_server.grpc) as client:

        def work(value: int) -> None:
            array = np.full((1, 16), value, np.float32)
            for _ in range(20):
                result = client.infer("add_sub", add_sub_inputs(grpc_client, array, array))
                if not is_same(result.as_numpy("OUTPUT0"), array + array):
                    errors.append(AssertionError(value))

        threads = [threading.Thread(target=work, args=(value,)) for value in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
