"""Control over gRPC. Converts responses to the same dictionaries as control over HTTP."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from naiad.pb import grpc_service_pb2 as pb
from naiad.perf.channels.address import Address
from naiad.perf.channels.call import Call
from naiad.perf.channels.control import ControlError
from naiad.perf.channels.control_http import (
    LOAD_LIMIT_S,
    RESPONSE_LIMIT_S,
    STATISTICS_LIMIT_S,
)
from naiad.perf.channels.grpc_channel import GrpcChannel
from naiad.perf.channels.grpc_connection import SharedConnection
from naiad.perf.channels.grpc_head import request_block
from naiad.perf.channels.grpc_message import frame
from naiad.repository.config.config_json import config_to_dict

M = TypeVar("M", bound=Message)

_DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


class GrpcControl:
    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._address = address
        self._metadata = metadata
        self._connection = SharedConnection(address, tls)

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        limit_s: float = RESPONSE_LIMIT_S,
    ) -> M:
        """Makes a unary call. Raises ControlError."""
        listener = _ResponseListener(asyncio.get_running_loop().create_future())
        block = request_block(self._address, method, metadata=self._metadata)
        channel = GrpcChannel(self._connection, block, listener, should_keep_body=True)
        channel.send(frame(request.SerializeToString()), Call(0, 0, 0))
        try:
            async with asyncio.timeout(limit_s):
                return response_type.FromString(await listener.response)
        except TimeoutError:
            channel.close()
            raise ControlError(
                f"{self._address.authority} did not respond to {method} within {limit_s:g} s"
            ) from None
        except DecodeError:
            raise ControlError(
                f"{self._address.authority} sent a response to {method} that cannot be decoded"
            ) from None

    async def close(self) -> None:
        self._connection.close()

    async def server_metadata(self) -> dict[str, Any]:
        response = await self.call(
            "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse
        )
        return {
            "name": response.name,
            "version": response.version,
            "extensions": list(response.extensions),
        }

    async def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        response = await self.call(
            "ModelMetadata",
            pb.ModelMetadataRequest(name=model, version=version),
            pb.ModelMetadataResponse,
        )
        inputs, outputs = (
            [
                {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
                for tensor in tensors
            ]
            for tensors in (response.inputs, response.outputs)
        )
        return {
            "name": response.name,
            "versions": list(response.versions),
            "platform": response.platform,
            "inputs": inputs,
            "outputs": outputs,
        }

    async def model_config(self, model: str, version: str) -> dict[str, Any]:
        response = await self.call(
            "ModelConfig",
            pb.ModelConfigRequest(name=model, version=version),
            pb.ModelConfigResponse,
        )
        return config_to_dict(response.config)

    async def model_statistics(self, model: str, version: str) -> list[dict[str, Any]]:
        response = await self.call(
            "ModelStatistics",
            pb.ModelStatisticsRequest(name=model, version=version),
            pb.ModelStatisticsResponse,
            limit_s=STATISTICS_LIMIT_S,
        )
        return [_statistics(entry) for entry in response.model_stats]

    async def model_names(self) -> list[str]:
        response = await self.call(
            "RepositoryIndex",
            pb.RepositoryIndexRequest(ready=True),
            pb.RepositoryIndexResponse,
        )
        return [model.name for model in response.models]

    async def is_model_ready(self, model: str, version: str = "") -> bool:
        try:
            response = await self.call(
                "ModelReady",
                pb.ModelReadyRequest(name=model, version=version),
                pb.ModelReadyResponse,
            )
        except ControlError:
            return False
        return response.ready

    async def load_model(self, model: str, config: str = "") -> None:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config:
            request.parameters["config"].string_param = config
        await self.call(
            "RepositoryModelLoad", request, pb.RepositoryModelLoadResponse, limit_s=LOAD_LIMIT_S
        )

    async def unload_model(self, model: str) -> None:
        request = pb.RepositoryModelUnloadRequest(model_name=model)
        await self.call(
            "RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse, limit_s=LOAD_LIMIT_S
        )

    async def set_trace(self, model: str, settings: dict[str, list[str]]) -> None:
        request = pb.TraceSettingRequest(model_name=model)
        for name, values in settings.items():
            request.settings[name].value.extend(values)
        await self.call("TraceSetting", request, pb.TraceSettingResponse)

    async def register_memory(self, kind: str, name: str, document: dict[str, Any]) -> None:
        if kind == "system":
            system = pb.SystemSharedMemoryRegisterRequest(name=name, **document)
            await self.call(
                "SystemSharedMemoryRegister", system, pb.SystemSharedMemoryRegisterResponse
            )
            return
        handle = base64.b64decode(document["raw_handle"]["b64"])
        cuda = pb.CudaSharedMemoryRegisterRequest(
            name=name,
            raw_handle=handle,
            device_id=document["device_id"],
            byte_size=document["byte_size"],
        )
        await self.call("CudaSharedMemoryRegister", cuda, pb.CudaSharedMemoryRegisterResponse)

    async def unregister_memory(self, kind: str) -> None:
        if kind == "system":
            await self.call(
                "SystemSharedMemoryUnregister",
                pb.SystemSharedMemoryUnregisterRequest(),
                pb.SystemSharedMemoryUnregisterResponse,
            )
        else:
            await self.call(
                "CudaSharedMemoryUnregister",
                pb.CudaSharedMemoryUnregisterRequest(),
                pb.CudaSharedMemoryUnregisterResponse,
            )


class _ResponseListener:
    """Listener of one call; completes the future `response`."""

    def __init__(self, response: asyncio.Future[bytes]) -> None:
        self.response = response

    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        raise AssertionError("control responses are not streams")

    def on_end(self, call: Call, error: str | None, payload: Any, now_ns: int) -> None:
        if self.response.done():
            return
        if error is None:
            self.response.set_result(payload or b"")
        else:
            self.response.set_exception(ControlError(error))


def _statistics(entry: pb.ModelStatistics) -> dict[str, Any]:
    stats = entry.inference_stats
    durations = {
        name: {"count": getattr(stats, name).count, "ns": getattr(stats, name).ns}
        for name in _DURATIONS
    }
    return {
        "name": entry.name,
        "version": entry.version,
        "inference_count": entry.inference_count,
        "execution_count": entry.execution_count,
        "inference_stats": durations,
    }
