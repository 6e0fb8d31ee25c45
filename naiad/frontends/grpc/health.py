"""gRPC's standard health service: Check sends the status once, Watch sends every change of it.

A service that has the name of a model is that model; any other is the server, as under Triton.
"""

from __future__ import annotations

import asyncio

from naiad.frontends.core import Core
from naiad.frontends.grpc.response import reply
from naiad.frontends.grpc.unary import parse
from naiad.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer

WATCH_INTERVAL_S = 0.5
_Serving = HealthCheckResponse.ServingStatus


class Health:
    def __init__(self, core: Core) -> None:
        self._core = core

    def check(self, call: Call, message: Buffer) -> None:
        reply(
            call,
            HealthCheckResponse(status=self.status(parse(HealthCheckRequest, message).service)),
        )

    def watch(self, call: Call, message: Buffer) -> None:
        _Watch(self, call, parse(HealthCheckRequest, message).service).look()

    def status(self, service: str) -> _Serving:
        is_model = bool(service) and any(
            row.name == service for row in self._core.repository_index(ready_only=False)
        )
        is_ready = self._core.is_model_ready(service) if is_model else self._core.is_ready()
        return HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING


class _Watch:
    """One Watch call, which looks at the status every half second until the client goes away."""

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
