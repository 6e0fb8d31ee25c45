"""gRPC's standard health service: Check answers once, Watch whenever the answer changes.

The empty service name and the inference service stand for the server; a model's name stands for that model.
"""

from __future__ import annotations

import asyncio

from naiad.errors import NaiadError
from naiad.frontends.grpc_unary import parse, reply
from naiad.inference import InferenceCore
from naiad.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from naiad.transport.grpc_call import Call
from naiad.transport.grpc_message import Buffer
from naiad.transport.grpc_status import Status

WATCH_INTERVAL_S = 0.5
_SERVER_NAMES = frozenset(("", "inference.GRPCInferenceService", "grpc.health.v1.Health"))
_Serving = HealthCheckResponse.ServingStatus


class Health:
    def __init__(self, core: InferenceCore) -> None:
        self._core = core

    def check(self, call: Call, message: Buffer) -> None:
        status = self._status(parse(HealthCheckRequest, message).service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            call.finish(Status.NOT_FOUND, "unknown service")
        else:
            reply(call, HealthCheckResponse(status=status))

    def watch(self, call: Call, message: Buffer) -> None:
        _Watch(self, call, parse(HealthCheckRequest, message).service).look()

    def status(self, service: str) -> _Serving:
        return self._status(service)

    def _status(self, service: str) -> _Serving:
        if service in _SERVER_NAMES:
            return _serving(self._core.is_ready())
        try:
            if self._core.is_model_ready(service):
                return HealthCheckResponse.SERVING
            self._core.model(service)
        except NaiadError:
            pass
        is_known = any(row.name == service for row in self._core.repository_index(ready_only=False))
        return HealthCheckResponse.NOT_SERVING if is_known else HealthCheckResponse.SERVICE_UNKNOWN


def _serving(is_ready: bool) -> _Serving:
    return HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING


class _Watch:
    """One Watch call: looks every half second until the client goes away."""

    def __init__(self, health: Health, call: Call, service: str) -> None:
        self._health = health
        self._call = call
        self._service = service
        self._last: _Serving | None = None
        self._timer: asyncio.TimerHandle | None = None
        call.on_cancel = self._stop

    def look(self) -> None:
        if self._call.is_done:
            return
        status = self._health.status(self._service)
        if status != self._last:
            self._last = status
            data = HealthCheckResponse(status=status).SerializeToString()
            self._call.send([data], len(data))
        self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL_S, self.look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
