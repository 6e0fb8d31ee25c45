"""The router's RPCs: what it passes on, what it knows itself, and what it refuses.

Rule: the same as for HTTP (naiad.router.http_frontend).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from naiad.core.identity import Identity
from naiad.core.memory_budget import MemoryBudget
from naiad.errors import NaiadError, invalid_arg
from naiad.frontends.grpc.frontend import API_CLASSES, HEALTH_SERVICE, MODEL_INFER, SERVICE
from naiad.frontends.grpc.health import Health
from naiad.frontends.grpc.reflection import Reflection
from naiad.frontends.grpc.response import fail
from naiad.frontends.grpc.unary import unary
from naiad.keys import api_class
from naiad.keys.guard import Entrance, read_text, unknown_model
from naiad.pb import grpc_service_pb2 as pb
from naiad.protocol.v2 import lost_request
from naiad.router.core import RouterCore
from naiad.router.grpc_relay import CallBlocks, GrpcRelay
from naiad.router.grpc_stream import StreamRelay
from naiad.router.http_frontend import IndexRow, RouterKeys, index_rows, not_forwarded
from naiad.router.lost_sequence import lose, tell_by_grpc
from naiad.router.request_fields import grpc_model, grpc_sequence, owner_of
from naiad.router.sequences import SequenceStep
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.endpoint import GrpcEndpoint
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import Method, RequestHead, UnaryHandler
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.protocol import GrpcProtocol

_BY_MODEL = ("ModelMetadata", "ModelConfig", "ModelStatistics")
_ANYWHERE = ("ServerMetadata",)


class GrpcRouter:
    def __init__(self, core: RouterCore, keys: RouterKeys, budget: MemoryBudget) -> None:
        self._core = core
        self._keys = keys
        self._has_keys = keys.guard is not None
        self._blocks = CallBlocks(keys.header_names, keys.replica_key)
        self.endpoint = GrpcEndpoint(
            self._methods(),
            GrpcOptions(),
            make_gate=None if keys.guard is None else self._make_gate,
            budget=budget,
        )

    def protocol_factory(self) -> GrpcProtocol:
        return self.endpoint.protocol_factory()

    def _make_gate(self, method: Method, metadata: dict[str, str]) -> Entrance | None:
        assert self._keys.guard is not None
        return self._keys.guard.gate(method.api, read_text(metadata))

    def _methods(self) -> list[Method]:
        own: dict[str, UnaryHandler] = {
            "ServerLive": unary(pb.ServerLiveRequest, self._live),
            "ServerReady": unary(pb.ServerReadyRequest, self._ready),
            "ModelReady": unary(pb.ModelReadyRequest, self._model_ready, lambda r: str(r.name)),
            "RepositoryIndex": unary(pb.RepositoryIndexRequest, self._index),
            **dict.fromkeys(_BY_MODEL, self._by_model),
            **dict.fromkeys(_ANYWHERE, self._anywhere),
        }
        reflection = Reflection()
        health = Health(FleetHealth(self._core), GrpcOptions(), self._keys.guard)
        return [
            Method(MODEL_INFER, api_class.INFERENCE, unary=self._infer, on_lost=self._on_lost),
            Method(
                f"{SERVICE}ModelStreamInfer",
                api_class.INFERENCE,
                stream=lambda call: StreamRelay(
                    self._core, call, self._blocks, has_keys=self._has_keys
                ),
                on_lost=self._on_lost,
            ),
            *(
                Method(f"{SERVICE}{name}", api, unary=own.get(name) or _refusal(name))
                for name, api in API_CLASSES.items()
            ),
            Method(f"{HEALTH_SERVICE}Check", api_class.HEALTH, unary=health.check),
            Method(f"{HEALTH_SERVICE}Watch", api_class.HEALTH, unary=health.watch),
            *(
                Method(
                    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                    api_class.UNCLASSIFIED,
                    stream=reflection.open,
                )
                for version in ("v1", "v1alpha")
            ),
        ]

    # Calls that are passed on.

    def _infer(self, call: Call, message: Buffer) -> None:
        try:
            model, version = grpc_model(message, is_exact=self._has_keys)
            sequence = grpc_sequence(message, owner_of(call.identity, call.header))
            self._admit(call, model)
            self._core.reserve_tokens(call.admission, model, len(message))
        except NaiadError as error:
            call.lose(message)
            fail(call, error)
            return
        core = self._core
        GrpcRelay(
            core, core.routing(model), model, version, sequence, call, message, self._blocks
        ).begin()

    def _on_lost(
        self, head: RequestHead, message: Buffer, identity: Identity | None, is_compressed: bool
    ) -> None:
        if is_compressed:
            message = lost_request.uncompressed(message)
        owner = owner_of(identity, lambda name: head.metadata.get(name, ""))
        for request in lost_request.in_message(message):
            id, model, version = request.sequence_id, request.model_name, request.model_version
            step = SequenceStep(str(id), owner=owner, raw_id=id)
            lose(
                self._core,
                model,
                step,
                partial(tell_by_grpc, self._blocks, head, model, version, step),
            )

    def _by_model(self, call: Call, message: Buffer) -> None:
        try:
            model, version = grpc_model(message, is_exact=self._has_keys)
            self._admit(call, model)
        except NaiadError as error:
            fail(call, error)
            return
        core = self._core
        GrpcRelay(
            core, core.routing(model), model, version, None, call, message, self._blocks
        ).begin()

    def _anywhere(self, call: Call, message: Buffer) -> None:
        core = self._core
        GrpcRelay(core, core.routing(""), "", "", None, call, message, self._blocks).begin()

    def _admit(self, call: Call, model: str) -> None:
        """Raises NaiadError."""
        admission = call.admission
        if admission is None:
            return
        if not model and not admission.identity.may_see("*"):
            # Statistics of all models would show those that the key may not see.
            raise invalid_arg("the request names no model")
        if model and not admission.identity.may_see(model):
            raise unknown_model(model)
        admission.note_model(model)

    # What the router knows itself.

    def _live(self, request: pb.ServerLiveRequest, identity: Identity | None) -> Message:
        return pb.ServerLiveResponse(live=True)

    def _ready(self, request: pb.ServerReadyRequest, identity: Identity | None) -> Message:
        return pb.ServerReadyResponse(ready=self._core.is_ready)

    def _model_ready(self, request: pb.ModelReadyRequest, identity: Identity | None) -> Message:
        fleet = self._core.fleet
        if not fleet.knows(request.name):
            raise unknown_model(request.name)
        return pb.ModelReadyResponse(
            ready=bool(fleet.candidates(request.name, request.version, is_grpc=True))
        )

    def _index(self, request: pb.RepositoryIndexRequest, identity: Identity | None) -> Message:
        rows = index_rows(self._core, identity, is_ready_only=request.ready)
        index = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[
                index(name=row.name, version=row.version, state=row.state, reason=row.reason)
                for row in rows
            ]
        )


class FleetHealth:
    """What the health service asks, for all replicas together; see HealthCore."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core

    def repository_index(self, *, ready_only: bool) -> list[IndexRow]:
        return index_rows(self._core, None, is_ready_only=ready_only)

    def is_ready(self) -> bool:
        return self._core.is_ready

    def is_model_ready(self, name: str, version: str = "") -> bool:
        core = self._core
        return not core.is_stopping and bool(core.fleet.candidates(name, version, is_grpc=True))

    def ask_ready(self, answer: Callable[[bool], None]) -> None:
        answer(self.is_ready())

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None:
        answer(self.is_model_ready(name, version))


def _refusal(name: str) -> UnaryHandler:
    error = not_forwarded(name)
    return lambda call, message: fail(call, error)
