"""The RPCs of the model repository: index, load, unload."""

from __future__ import annotations

from functools import partial

from naiad.core.identity import Identity
from naiad.core.model_name import trim_name
from naiad.errors import invalid_arg, unsupported
from naiad.frontends.core import ModelControl
from naiad.frontends.grpc.unary import SlowCalls, unary
from naiad.frontends.visible import visible
from naiad.keys.forwarded import forwarding_field
from naiad.pb import grpc_service_pb2 as pb
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import UnaryHandler
from naiad.transport.grpc.options import INT32_MAX


class RepositoryControl:
    def __init__(self, core: ModelControl, slow: SlowCalls) -> None:
        self._core = core
        self._slow = slow

    def handlers(self) -> dict[str, UnaryHandler]:
        return {
            "RepositoryIndex": unary(pb.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": self._handle_load,
            "RepositoryModelUnload": self._slow.unary(
                pb.RepositoryModelUnloadRequest, self._unload, _model_name
            ),
        }

    def _index(
        self, request: pb.RepositoryIndexRequest, identity: Identity | None
    ) -> pb.RepositoryIndexResponse:
        _refuse_repository_name(request.repository_name)
        rows = visible(self._core.repository_index(ready_only=request.ready), identity)
        return pb.RepositoryIndexResponse(
            models=[
                pb.RepositoryIndexResponse.ModelIndex(
                    name=row.name, version=row.version, state=row.state, reason=row.reason
                )
                for row in rows
            ]
        )

    def _handle_load(self, call: Call, message: Buffer) -> None:
        load = partial(self._load, forwarding_field(call.head.metadata))
        # It may hold whole files.
        self._slow.unary(pb.RepositoryModelLoadRequest, load, _model_name, INT32_MAX)(call, message)

    async def _load(
        self, forwarding: str, request: pb.RepositoryModelLoadRequest, identity: Identity | None
    ) -> pb.RepositoryModelLoadResponse:
        _refuse_repository_name(request.repository_name)
        parameters: dict[str, str | bytes] = {}
        for name, parameter in request.parameters.items():
            if name == "config":
                if parameter.WhichOneof("parameter_choice") != "string_param":
                    raise invalid_arg(
                        f"invalid value type for load parameter '{name}', expected string_param."
                    )
                parameters[name] = parameter.string_param
            elif name.startswith("file:"):
                if parameter.WhichOneof("parameter_choice") != "bytes_param":
                    raise invalid_arg(
                        f"invalid value type for load parameter '{name}', expected bytes_param."
                    )
                parameters[name] = parameter.bytes_param
            else:
                raise invalid_arg(f"unrecognized load parameter '{name}'.")
        await self._core.load_model(
            request.model_name, parameters, identity=identity, forwarding=forwarding
        )
        return pb.RepositoryModelLoadResponse()

    async def _unload(
        self, request: pb.RepositoryModelUnloadRequest, identity: Identity | None
    ) -> pb.RepositoryModelUnloadResponse:
        _refuse_repository_name(request.repository_name)
        unload_dependents = False
        parameter = request.parameters.get("unload_dependents")
        if parameter is not None:
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise invalid_arg(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            unload_dependents = parameter.bool_param
        await self._core.unload_model(request.model_name, unload_dependents=unload_dependents)
        return pb.RepositoryModelUnloadResponse()


def _model_name(request: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest) -> str:
    return trim_name(request.model_name)


def _refuse_repository_name(name: str) -> None:
    if name:
        raise unsupported("'repository_name' specification is not supported")
