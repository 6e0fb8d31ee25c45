"""Which calls a frontend handles, and which it forwards to the server process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from naiad.core.memory_budget import MemoryBudget
from naiad.frontend_process.grpc_endpoint import ForwardedStream, FrontendGrpc
from naiad.frontend_process.messages import GRPC, MethodKind, Models, OpenCall
from naiad.frontend_process.remote_core import ModelTable, RemoteCore, ServingCore
from naiad.frontends.grpc.frontend import MODEL_INFER, MODEL_STREAM_INFER
from naiad.frontends.grpc.stream_infer import RequestStream
from naiad.keys.api_class import INFERENCE, UNCLASSIFIED
from naiad.keys.guard import Guard
from naiad.shm.arena import Arena
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from tests.fakes.keys import KeyRing

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
KINDS = [
    MethodKind(MODEL_INFER, INFERENCE, False, True),
    MethodKind(MODEL_STREAM_INFER, INFERENCE, True, True),
    MethodKind(REFLECTION, UNCLASSIFIED, True, False),
]
SESSION = {"cookie": "naiad_session=abc"}


class Endpoint:
    def __init__(self, guard: Guard | None = None, *, is_namespacing: bool = False) -> None:
        self.sent: list[Any] = []
        arena = Arena()
        self.models = ModelTable(cast(Any, None), arena)
        self.grpc = FrontendGrpc(
            RemoteCore(GRPC, self.models, cast(Any, None), arena),
            ServingCore(GRPC, self.models, cast(Any, None), arena),
            self.models,
            GrpcOptions(),
            KINDS,
            MemoryBudget(),
            cast(Any, SimpleNamespace(send=self.sent.append)),
            guard,
            is_namespacing=is_namespacing,
        )

    def method(self, path: str) -> Method:
        return self.grpc.endpoint.methods[path.encode()]

    def open(self, path: str = MODEL_STREAM_INFER, metadata: dict[str, str] | None = None) -> Any:
        """The handler of a new call."""
        method, metadata = self.method(path), metadata or {}
        make_gate = self.grpc.endpoint.make_gate
        gate = None if make_gate is None else make_gate(method, metadata)
        call = SimpleNamespace(
            head=SimpleNamespace(metadata=metadata, gate=gate),
            method=method,
            connection=object(),
            deadline_ns=0,
            receive_start_ns=0,
            peer=None,
            admission=None,
        )
        assert method.stream is not None
        return method.stream(cast(Any, call))


def test_a_stream_of_requests_is_handled_here() -> None:
    endpoint = Endpoint()
    assert isinstance(endpoint.open(), RequestStream)
    assert endpoint.sent == []


def test_streams_of_other_methods_are_forwarded() -> None:
    endpoint = Endpoint()
    assert isinstance(endpoint.open(REFLECTION), ForwardedStream)
    assert [type(message) for message in endpoint.sent] == [OpenCall]


def test_streams_are_forwarded_while_traces_are_sampled() -> None:
    endpoint = Endpoint()
    endpoint.models.update(Models(1, [], is_traced=True))
    assert isinstance(endpoint.open(), ForwardedStream)
    endpoint.models.update(Models(2, []))
    assert isinstance(endpoint.open(), RequestStream)


def test_streams_are_forwarded_where_a_name_may_mean_several_models() -> None:
    assert isinstance(Endpoint(is_namespacing=True).open(), ForwardedStream)


@pytest.mark.parametrize("metadata", [{}, {"x-api-key": "any"}])
def test_the_guard_of_the_frontend_asks_for_keys(metadata: dict[str, str]) -> None:
    endpoint = Endpoint(KeyRing().guard())
    assert isinstance(endpoint.open(metadata=metadata), RequestStream)


def test_sessions_of_the_console_are_known_to_the_server_process_only() -> None:
    endpoint = Endpoint(KeyRing().guard())
    assert isinstance(endpoint.open(metadata=SESSION), ForwardedStream)
