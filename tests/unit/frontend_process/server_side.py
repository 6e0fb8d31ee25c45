"""The server process as one frontend sees it: a real session, scheduler, execution and responses,
with a channel in place of the worker. The tests play the frontend and the worker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from naiad.core.bundle import Queued
from naiad.core.clock import LoopClock
from naiad.core.model_spec import ModelSpec, ServerMetadata, TensorSpec
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import internal
from naiad.frontend_process.messages import (
    Abandon,
    BundleResponse,
    Infer,
    ReceivedInfer,
    RemoteRequest,
    RemoteResponse,
    RequestDetails,
    Respond,
    ToFrontend,
)
from naiad.frontend_process.remote_core import to_message
from naiad.frontend_process.served_models import Served, bundle_scheduler, is_opaque
from naiad.frontend_process.session import FrontendSession
from naiad.inference import InferenceCore
from naiad.instances.execution import Execution
from naiad.instances.in_flight import InFlight
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.observers import Observers
from naiad.instances.responses import Responses
from naiad.instances.restart import RestartPolicy
from naiad.ipc.framing import Link
from naiad.ipc.messages import Cancel, Execute, Executed, ToEncodingServer
from naiad.ipc.work import WorkError, WorkRequest, WorkResponse
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.model import Model
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.shm.arena import Arena
from tests.fakes import FakeInstance

_RECEIVED = msgspec.msgpack.Decoder(ReceivedInfer)
_ENCODED = msgspec.msgpack.Decoder(ToEncodingServer)


def good(value: int = 0) -> WorkResponse:
    return WorkResponse([Tensor("OUTPUT0", "UINT8", [1, 1], bytes([value]))])


def bad(message: str = "bad") -> WorkResponse:
    return WorkResponse(error=WorkError("INTERNAL", message))


class Worker:
    """Keeps what was sent to it, as a worker would decode it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[WorkRequest]]] = []
        self.cancelled: list[int] = []
        self.link: Link[Any] = Link(_ENCODED, Arena())

    def send(self, message: Any) -> None:
        if isinstance(message, Cancel):
            self.cancelled += message.handles
            return
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Execute)
        requests = list(decoded.requests)
        for bundle in decoded.bundles:
            requests += bundle.requests()
        self.batches.append((decoded.batch, requests))


class Instance(FakeInstance):
    """An instance whose ways out and back are real."""

    def __init__(self, statistics: ModelStatistics) -> None:
        super().__init__()
        self.name = "m_0"
        self.channel = Worker()
        self.in_flight = InFlight()
        self._observers = Observers(self)
        plan = InstancePlan("python", "m", "1", False, 0, RestartPolicy())
        clock = LoopClock(asyncio.get_running_loop())
        self.execution = Execution(
            cast(Any, self), plan, self.in_flight, self._observers, statistics, clock
        )
        self.responses = Responses(
            cast(Any, self.channel), plan, self.in_flight, self._observers, statistics
        )

    def attach(self, observer: Any) -> None:
        self._observers.attach(observer)

    @property
    def is_free(self) -> bool:
        return self.is_serving and not self.in_flight.batches

    @property
    def inflight(self) -> int:
        return self.in_flight.num_awaited

    def execute(self, jobs: Sequence[Queued], on_executed: Any = None) -> None:
        self.execution.execute(jobs, on_executed)

    def respond_all(self, *responses: WorkResponse | None, is_inline: bool = True) -> None:
        """Ends the oldest batch; without responses, each request gets its first input's first
        byte."""
        number, requests = self.channel.batches.pop(0)
        found = list(responses) or [good(request.inputs[0].data[0]) for request in requests]
        message = Executed(number, 1, 2, found, is_inline)
        self.responses.on_encoded(cast(Any, _ENCODED.decode(msgspec.msgpack.encode(message))))

    def die(self, outage: str = "") -> None:
        self.is_serving, self.outage = False, outage
        self.execution.fail_all(internal("its worker process ended"))
        self._observers.notify_state_change()


class Models:
    def __init__(self, served: Served) -> None:
        self.served: Served | None = served

    def current(self, item: Any) -> Served | None:
        return self.served

    def name_of(self, item: Any) -> str:
        return "m"


class ServerSide:
    def __init__(self, max_batch_size: int = 8, num_instances: int = 1, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        self.statistics = ModelStatistics("m", 1)
        self.instances = [Instance(self.statistics) for _ in range(num_instances)]
        self.instance = self.instances[0]
        self.scheduler = DynamicScheduler(
            self.instances, BatchRule(max_batch_size), LoopClock(loop), self.statistics, **options
        )
        inputs = {"INPUT0": TensorSpec("INPUT0", "UINT8", [1], [-1, 1])}
        spec = ModelSpec("m", 1, [1], "python", max_batch_size, inputs, {})
        model = Model(spec, ModelConfig(), self.statistics, [], self.scheduler, Arena())
        repository = SimpleNamespace(is_model_ready=lambda name, version: True)
        self.core = InferenceCore(cast(Any, repository), ServerMetadata("", "", []))
        self.models = Models(Served(model, "m", is_opaque(model), bundle_scheduler(model)))
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.session = FrontendSession(
            loop,
            ours,
            1,
            self.core,
            cast(Any, self.models),
            {},
            Arena(),
            cast(Any, None),
            cast(Any, None),
            cast(Any, None),
            lambda *_: None,
        )
        self._link: Link[Any] = Link(msgspec.msgpack.Decoder(ToFrontend), Arena())
        self.bundles: list[BundleResponse] = []
        """The responses that came as bundles."""

    # The frontend.

    def send(self, *handles: int, **details: Any) -> None:
        """Sends requests whose input is the number of their handle, as one message."""
        self.send_message(to_message([self.request(handle, **details) for handle in handles]))

    def request(self, handle: int, batch_size: int = 1, **details: Any) -> RemoteRequest:
        tensor = Tensor("INPUT0", "UINT8", [batch_size, 1], bytes([handle % 256] * batch_size))
        more = RequestDetails("m", **details) if details else None
        return RemoteRequest(handle, 1, batch_size, 1, False, True, f"id{handle}", [tensor], more)

    def send_message(self, message: Infer) -> None:
        self.session._on_message(_RECEIVED.decode(msgspec.msgpack.encode(message)))

    def abandon(self, *handles: int) -> None:
        self.session._on_message(Abandon(list(handles)))

    async def turn(self) -> None:
        """Long enough for everything that waits for a turn of the loop."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def responses(self) -> dict[int, int | str]:
        """What has come since the last call: handle -> the byte of the output, or the message of
        the error."""
        found: dict[int, int | str] = {}
        while True:
            await self.turn()
            try:
                data = self._theirs.recv(1 << 20)
            except BlockingIOError:
                return found
            for message in self._link.feed(memoryview(data)):
                assert isinstance(message, Respond)
                self._collect(message, found)

    def _collect(self, message: Respond, found: dict[int, int | str]) -> None:
        for response in message.responses:
            assert response.handle not in found
            found[response.handle] = _value(response)
        for bundle in message.bundles:
            self.bundles.append(bundle)
            for handle, outputs in zip(bundle.handles, bundle.outputs, strict=True):
                assert handle not in found
                found[handle] = outputs[0].data[0]

    # The state of the server.

    @property
    def is_at_rest(self) -> bool:
        return (
            not self.session.num_requests
            and not self.scheduler.inflight()
            and not self.statistics.pending_request_count
            and not any(one.in_flight.jobs for one in self.instances)
        )

    def close(self) -> None:
        self.session.close("done")
        self._theirs.close()


def _value(response: RemoteResponse) -> int | str:
    assert response.is_final
    if response.error is not None:
        return response.error.message
    return response.outputs[0].data[0]
