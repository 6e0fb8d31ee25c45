"""The response cache: what it keeps, under which key, and what every kind of cache can do.

The key covers everything that a model's response may depend on: model, version, inputs with their
shapes, parameters. It also covers the API key, so that a client cannot find out what another one
has asked. A cached response serves requests for the same outputs or for some of them. (Triton's key
covers only the names and bytes of the inputs, and Triton returns the outputs that the first request
asked for.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor

Key: TypeAlias = bytes


class CachedResponse(msgspec.Struct, array_like=True, frozen=True):
    outputs: list[Tensor]
    """The cache owns their data, and nobody writes to it."""
    parameters: dict[str, ParameterValue]
    requested: list[str] = []
    """The outputs that the request asked for; the model may have left some out."""

    def select(self, names: list[str]) -> list[Tensor] | None:
        """These outputs, in this order; None when the response was not made for all of them."""
        if not set(names) <= set(self.requested):
            return None
        by_name = {tensor.name: tensor for tensor in self.outputs}
        return [by_name[name] for name in names if name in by_name]

    @property
    def num_bytes(self) -> int:
        """Roughly how much memory the response needs."""
        return 200 + sum(len(tensor.data) + len(tensor.name) + 100 for tensor in self.outputs)


class ResponseCache(Protocol):
    def look_up(self, key: Key, on_lookup: Callable[[CachedResponse | None], None]) -> None:
        """Calls back exactly once, perhaps before it returns. A cache that does not respond counts
        as a miss."""
        ...

    def insert(self, key: Key, response: CachedResponse) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def cache_key(request: InferRequest, spec: ModelSpec) -> Key:
    digest = hashlib.sha256()
    parts = [spec.name, str(spec.version)]
    if request.identity is not None:
        parts.append(f"key {request.identity.key_id}")
    parts += [f"{name}={value!r}" for name, value in sorted(request.parameters.items())]
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        parts += [tensor.name, tensor.datatype, str(tensor.shape), str(len(tensor.data))]
    digest.update("\0".join(f"{len(part)}:{part}" for part in parts).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        digest.update(tensor.data)
    return digest.digest()


def keep(response: InferResponse, requested: list[str]) -> CachedResponse:
    """Copies the tensors: their memory belongs to a worker, and others may write to it."""
    outputs = [
        Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))
        for tensor in response.outputs
    ]
    return CachedResponse(outputs, response.parameters, requested)
