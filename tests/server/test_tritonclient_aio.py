"""Stock tritonclient on asyncio, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client
from tritonclient.utils import InferenceServerException

from tests.server.client_data import ARRAYS, add_sub_inputs, is_same, text_input, typed_input
from tests.server.harness import Endpoints


@pytest.fixture(params=["http", "grpc"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = http_client if request.param == "http" else grpc_client
    return chosen


@pytest.fixture
async def client(module: ModuleType, main_server: Endpoints) -> AsyncIterator[Any]:
    address = main_server.http if module is http_client else main_server.grpc
    one = module.InferenceServerClient(address)
    yield one
    await one.close()


async def test_health_and_metadata(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("add_sub")
    assert not await client.is_model_ready("nowhere")
    assert await client.get_model_metadata("add_sub")
    assert await client.get_model_config("add_sub")
    assert await client.get_inference_statistics("add_sub")
    assert await client.get_model_repository_index()


async def test_returns_every_datatype(module: ModuleType, client: Any) -> None:
    results = await asyncio.gather(
        *(client.infer("types", [typed_input(module, datatype)]) for datatype in ARRAYS)
    )
    for result, (datatype, array) in zip(results, ARRAYS.items(), strict=True):
        assert is_same(result.as_numpy(f"OUT_{datatype}"), array)


async def test_many_concurrent_requests(module: ModuleType, client: Any) -> None:
    arrays = [np.full((1, 16), value, np.float32) for value in range(64)]
    results = await asyncio.gather(
        *(client.infer("add_sub", add_sub_inputs(module, array, array)) for array in arrays)
    )
    assert all(
        is_same(result.as_numpy("OUTPUT0"), array + array)
        for result, array in zip(results, arrays, strict=True)
    )


async def test_errors_have_the_servers_message(module: ModuleType, client: Any) -> None:
    with pytest.raises(InferenceServerException, match="boom"):
        await client.infer("failing", [text_input(module, "KIND", "raise")])
    with pytest.raises(InferenceServerException, match="is not found"):
        await client.infer("nowhere", [])
    with pytest.raises(
        InferenceServerException, match="explicit model load / unload is not allowed"
    ):
        await client.load_model("add_sub")
