"""gRPC's standard health service: Check sends the status once, Watch sends every change of it.

A service that has the name of a model is that model; any other is the server, as under Triton.
Rule: one timer serves all Watch calls. It looks up each watched status once, whatever the number of
      calls, and sends only changes, to a limited number of calls per turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from naiad.errors import NaiadError
from naiad.frontends.grpc.response import reply
from naiad.frontends.grpc.unary import parse
from naiad.keys.api_class import MODEL_READINESS
from naiad.keys.guard import Guard, read_text
from naiad.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import GrpcError, Status

WATCH_INTERVAL_S = 0.5
MAX_SENT_PER_TURN = 200
_Serving = HealthCheckResponse.ServingStatus


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class HealthCore(Protocol):
    """What health needs to know: of the server, or of a router."""

    def repository_index(self, *, ready_only: bool) -> Sequence[_Named]: ...

    def is_ready(self) -> bool: ...

    def is_model_ready(self, name: str, version: str = "") -> bool: ...

    def ask_ready(self, answer: Callable[[bool], None]) -> None: ...

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None: ...


class Health:
    def __init__(self, core: HealthCore, options: GrpcOptions, guard: Guard | None = None) -> None:
        """`guard` is None where nobody needs an API key."""
        self._core = core
        self._guard = guard
        self._watches = Watches(self, options)

    def check(self, call: Call, message: Buffer) -> None:
        def respond(is_ready: bool) -> None:
            if not call.is_done:
                reply(call, HealthCheckResponse(status=_serving(is_ready)))

        service = self._service(call, message)
        if any(row.name == service for row in self._core.repository_index(ready_only=False)):
            self._core.ask_model_ready(service, "", respond)
        else:
            self._core.ask_ready(respond)

    def watch(self, call: Call, message: Buffer) -> None:
        """Raises GrpcError if there are too many Watch calls."""
        self._watches.open(call, self._service(call, message))

    def _service(self, call: Call, message: Buffer) -> str:
        """A model that the client may not know of counts as the server, as other names do."""
        service: str = parse(HealthCheckRequest, message).service
        if service and self._guard is not None:
            gate = self._guard.gate(MODEL_READINESS, read_text(call.head.metadata), service)
            if gate is not None and isinstance(gate.check(call.peer), NaiadError):
                return ""
        return service

    def status(self, service: str) -> _Serving:
        return self.statuses([service])[service]

    def statuses(self, services: Iterable[str]) -> dict[str, _Serving]:
        """Does not run the models' own readiness hooks: a Watch would run them all the time."""
        core = self._core
        names = {row.name for row in core.repository_index(ready_only=False)}
        server = _serving(core.is_ready())
        return {
            service: _serving(core.is_model_ready(service)) if service in names else server
            for service in services
        }


def _serving(is_ready: bool) -> _Serving:
    return HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING


class Watches:
    """The open Watch calls, by the service that they watch."""

    def __init__(self, health: Health, options: GrpcOptions) -> None:
        self._health = health
        self._options = options
        self._by_service: dict[str, set[Watch]] = {}
        self._num_watches = 0
        self._per_connection: Counter[object] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._due: list[tuple[Watch, _Serving]] = []

    def open(self, call: Call, service: str) -> None:
        """Raises GrpcError."""
        options = self._options
        if self._per_connection[call.connection] >= options.max_connection_watches:
            raise _too_many(f"{options.max_connection_watches} Watch calls on one connection")
        if self._num_watches >= options.max_watches:
            raise _too_many(f"{options.max_watches} Watch calls")
        known = self._by_service.get(service)
        status = next(iter(known)).looked_up if known else self._health.status(service)
        watch = Watch(self, call, service, status)
        self._by_service.setdefault(service, set()).add(watch)
        self._num_watches += 1
        self._per_connection[call.connection] += 1
        watch.send(status)
        if self._timer is None:
            self._start_timer()

    def close(self, watch: Watch) -> None:
        watches = self._by_service[watch.service]
        watches.remove(watch)
        if not watches:
            del self._by_service[watch.service]
        self._num_watches -= 1
        self._per_connection[watch.connection] -= 1
        if not self._per_connection[watch.connection]:
            del self._per_connection[watch.connection]
        if not self._by_service and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._start_timer()
        was_due = bool(self._due)
        for service, status in self._health.statuses(self._by_service).items():
            for watch in self._by_service[service]:
                if watch.looked_up == status:
                    break  # all watches of a service have the same status
                watch.looked_up = status
                self._due.append((watch, status))
        if self._due and not was_due:
            self._send_due()

    def _send_due(self) -> None:
        due, self._due = self._due[:MAX_SENT_PER_TURN], self._due[MAX_SENT_PER_TURN:]
        for watch, status in due:
            watch.send(status)
        if self._due:
            asyncio.get_running_loop().call_soon(self._send_due)


class Watch:
    """One Watch call, which lasts until the client or the server goes away."""

    def __init__(self, watches: Watches, call: Call, service: str, looked_up: _Serving) -> None:
        self._watches = watches
        self._call = call
        self.connection = call.connection
        self.service = service
        self.looked_up = looked_up
        """The latest status of the service, which may still be due to be sent."""
        call.on_cancel = self._end
        call.on_stop = self._stop

    def send(self, status: _Serving) -> None:
        data = HealthCheckResponse(status=status).SerializeToString()
        self._call.send([data], len(data))

    def _stop(self) -> None:
        self._end()
        if self.looked_up != HealthCheckResponse.NOT_SERVING:
            self.send(HealthCheckResponse.NOT_SERVING)
        self._call.finish(Status.UNAVAILABLE, "the server is shutting down")

    def _end(self) -> None:
        self._watches.close(self)


def _too_many(what: str) -> GrpcError:
    return GrpcError(Status.RESOURCE_EXHAUSTED, f"the server allows {what}, try again later")
