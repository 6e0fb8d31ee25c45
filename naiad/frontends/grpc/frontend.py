"""The gRPC endpoint: a table of every RPC, and what the server needs to run it.

In:  the core and GrpcOptions. Out: `protocol_factory` for loop.create_server, `stop` for the
     shutdown, `counters` for metrics.
Rule: this file has no inference logic; the handler of each RPC is in the file named after it.
"""

from __future__ import annotations

from functools import partial

from naiad.fastpath.grpc_connection import GrpcFastPath
from naiad.fastpath.grpc_plan import MessagePlans
from naiad.frontends.core import Core
from naiad.frontends.grpc.extension import Extensions
from naiad.frontends.grpc.health import Health
from naiad.frontends.grpc.infer import ModelInfer, fast_path_responder
from naiad.frontends.grpc.information import Information
from naiad.frontends.grpc.reflection import Reflection
from naiad.frontends.grpc.repository import RepositoryControl
from naiad.frontends.grpc.response import fail
from naiad.frontends.grpc.restriction import build_restriction
from naiad.frontends.grpc.stream_infer import ModelStreamInfer
from naiad.frontends.grpc.unary import SlowCalls
from naiad.frontends.header_forward import HeaderForward
from naiad.frontends.lost_sequence import lose_message
from naiad.frontends.side_thread import SideThread
from naiad.keys import api_class
from naiad.keys.guard import Entrance, Guard, read_text
from naiad.protocol.v2.grpc_codec import decode_small_request
from naiad.transport.grpc.endpoint import GrpcEndpoint
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.protocol import GrpcProtocol
from naiad.transport.http2.limits import Http2Counters

__all__ = ["GrpcFrontend", "GrpcOptions"]

SERVICE = "/inference.GRPCInferenceService/"
MODEL_INFER = f"{SERVICE}ModelInfer"
MODEL_STREAM_INFER = f"{SERVICE}ModelStreamInfer"
HEALTH_SERVICE = "/grpc.health.v1.Health/"
API_CLASSES = {
    **dict.fromkeys(("ServerLive", "ServerReady"), api_class.HEALTH),
    "ModelReady": api_class.MODEL_READINESS,
    **dict.fromkeys(("ServerMetadata", "ModelMetadata"), api_class.METADATA),
    "ModelConfig": api_class.MODEL_CONFIG,
    "ModelStatistics": api_class.STATISTICS,
    **dict.fromkeys(
        ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
        api_class.MODEL_REPOSITORY,
    ),
    **dict.fromkeys(
        (
            f"{kind}SharedMemory{verb}"
            for kind in ("System", "Cuda")
            for verb in ("Status", "Register", "Unregister")
        ),
        api_class.SHARED_MEMORY,
    ),
    "TraceSetting": api_class.TRACE,
    "LogSettings": api_class.LOGGING,
}
"""The API class of every RPC that is a plain function. One that is missing here fails the start."""


class GrpcFrontend:
    def __init__(
        self, core: Core, options: GrpcOptions | None = None, guard: Guard | None = None
    ) -> None:
        """`guard` is None where nobody needs an API key."""
        self.options = options or GrpcOptions()
        self._guard = guard
        self._core = core
        self._slow = SlowCalls()
        self._side_thread = SideThread()
        self._headers = HeaderForward(
            self.options.header_forward_pattern, () if guard is None else guard.header_names
        )
        self.plans = MessagePlans(core) if self.options.fast_paths else None
        # Forwarded headers become parameters of the request, so the full path must see them.
        has_fast_path = self.plans is not None and not self._headers.is_on
        self._endpoint = GrpcEndpoint(
            self._methods(),
            self.options,
            restrict=build_restriction(self.options.restricted_protocols),
            make_gate=None if guard is None else self._make_gate,
            make_fast_path=self._make_fast_path if has_fast_path else None,
            budget=core.budget,
        )

    def _make_fast_path(self, protocol: GrpcProtocol) -> GrpcFastPath:
        assert self.plans is not None
        return GrpcFastPath(protocol, self.plans, MODEL_INFER, fast_path_responder, fail)

    def _make_gate(self, method: Method, metadata: dict[str, str]) -> Entrance | None:
        assert self._guard is not None
        return self._guard.gate(method.api, read_text(metadata))

    def protocol_factory(self) -> GrpcProtocol:
        return self._endpoint.protocol_factory()

    async def stop(self, grace_s: float) -> None:
        """Ends every connection; calls in flight may finish within `grace_s`. The caller has closed
        the listening sockets."""
        await self._endpoint.stop(grace_s)
        await self._slow.stop()
        self._side_thread.stop()

    @property
    def counters(self) -> Http2Counters:
        return self._endpoint.counters

    @property
    def endpoint(self) -> GrpcEndpoint:
        return self._endpoint

    @property
    def num_connections(self) -> int:
        return len(self._endpoint.connections)

    def _methods(self) -> list[Method]:
        core = self._core
        headers = self._headers
        decode = decode_small_request if self.plans is None else self.plans.decode
        infer = ModelInfer(core, headers, self._side_thread, decode)
        stream = ModelStreamInfer(
            core,
            headers,
            self.options.max_stream_request_bytes,
            lambda: self._endpoint.is_stopping,
            self._side_thread,
            decode,
        )
        health = Health(core, self.options, self._guard)
        reflection = Reflection()
        plain = {
            **Information(core, self._slow).handlers(),
            **RepositoryControl(core, self._slow).handlers(),
            **Extensions(core, self._slow).handlers(),
        }
        on_lost = partial(lose_message, core)
        return [
            Method(
                MODEL_INFER,
                api_class.INFERENCE,
                unary=infer.infer,
                allocate=infer.allocate,
                on_lost=on_lost,
                is_compressed=True,
            ),
            Method(
                MODEL_STREAM_INFER,
                api_class.INFERENCE,
                stream=stream.open,
                allocate=infer.allocate,
                on_lost=on_lost,
                is_compressed=True,
            ),
            *(
                Method(f"{SERVICE}{name}", API_CLASSES[name], unary=handler)
                for name, handler in plain.items()
            ),
            Method(f"{HEALTH_SERVICE}Check", api_class.HEALTH, unary=health.check),
            Method(f"{HEALTH_SERVICE}Watch", api_class.HEALTH, unary=health.watch),
            *(
                Method(
                    f"/grpc.reflection.{v}.ServerReflection/ServerReflectionInfo",
                    api_class.UNCLASSIFIED,
                    stream=reflection.open,
                )
                for v in ("v1", "v1alpha")
            ),
        ]
