"""The RPCs that describe the server and its models: health, metadata, configuration, statistics."""

from __future__ import annotations

import asyncio

from naiad.core.identity import Identity
from naiad.core.model_spec import TensorSpec
from naiad.core.statistics import Duration, ModelStatistics
from naiad.frontends.core import Core
from naiad.frontends.grpc.unary import SlowCalls, unary
from naiad.frontends.visible import visible
from naiad.pb import grpc_service_pb2 as pb
from naiad.transport.grpc.method import UnaryHandler


class Information:
    def __init__(self, core: Core, slow: SlowCalls) -> None:
        self._core = core
        self._slow = slow

    def handlers(self) -> dict[str, UnaryHandler]:
        return {
            "ServerLive": unary(pb.ServerLiveRequest, self._server_live),
            "ServerReady": self._slow.unary(pb.ServerReadyRequest, self._server_ready),
            "ModelReady": self._slow.unary(pb.ModelReadyRequest, self._model_ready, _model_name),
            "ServerMetadata": unary(pb.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": unary(pb.ModelMetadataRequest, self._model_metadata, _model_name),
            "ModelConfig": unary(pb.ModelConfigRequest, self._model_config, _model_name),
            "ModelStatistics": unary(
                pb.ModelStatisticsRequest, self._model_statistics, _model_name
            ),
        }

    def _server_live(
        self, request: pb.ServerLiveRequest, identity: Identity | None
    ) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._core.is_live())

    async def _server_ready(
        self, request: pb.ServerReadyRequest, identity: Identity | None
    ) -> pb.ServerReadyResponse:
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._core.ask_ready(ready.set_result)
        return pb.ServerReadyResponse(ready=await ready)

    async def _model_ready(
        self, request: pb.ModelReadyRequest, identity: Identity | None
    ) -> pb.ModelReadyResponse:
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._core.ask_model_ready(request.name, request.version, ready.set_result)
        return pb.ModelReadyResponse(ready=await ready)

    def _server_metadata(
        self, request: pb.ServerMetadataRequest, identity: Identity | None
    ) -> pb.ServerMetadataResponse:
        metadata = self._core.metadata
        return pb.ServerMetadataResponse(
            name=metadata.name, version=metadata.version, extensions=metadata.extensions
        )

    def _model_metadata(
        self, request: pb.ModelMetadataRequest, identity: Identity | None
    ) -> pb.ModelMetadataResponse:
        spec = self._core.model_metadata(request.name, request.version)
        return pb.ModelMetadataResponse(
            name=spec.name,
            versions=[str(version) for version in spec.versions],
            platform=spec.platform,
            inputs=[_tensor(tensor) for tensor in spec.inputs.values()],
            outputs=[_tensor(tensor) for tensor in spec.outputs.values()],
        )

    def _model_config(
        self, request: pb.ModelConfigRequest, identity: Identity | None
    ) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=self._core.model_config(request.name, request.version))

    def _model_statistics(
        self, request: pb.ModelStatisticsRequest, identity: Identity | None
    ) -> pb.ModelStatisticsResponse:
        models = visible(self._core.statistics(request.name, request.version), identity)
        return pb.ModelStatisticsResponse(model_stats=[_statistics(model) for model in models])


def _model_name(
    request: pb.ModelReadyRequest
    | pb.ModelMetadataRequest
    | pb.ModelConfigRequest
    | pb.ModelStatisticsRequest,
) -> str:
    return request.name


def _tensor(tensor: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


def _statistics(model: ModelStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=model.name,
        version=str(model.version),
        last_inference=model.last_inference_ms,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(model.success),
            fail=_duration(model.fail),
            queue=_duration(model.queue),
            compute_input=_duration(model.compute_input),
            compute_infer=_duration(model.compute_infer),
            compute_output=_duration(model.compute_output),
            cache_hit=_duration(model.cache_hit),
            cache_miss=_duration(model.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for size, batch in sorted(model.batch.items())
        ],
        response_stats={
            str(index): pb.InferResponseStatistics(
                compute_infer=_duration(response.compute_infer),
                compute_output=_duration(response.compute_output),
                success=_duration(response.success),
                fail=_duration(response.fail),
                empty_response=_duration(response.empty_response),
                cancel=_duration(response.cancel),
            )
            for index, response in model.responses.items()
        },
    )
