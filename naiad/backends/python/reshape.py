"""Applies `reshape` of a model's config: clients see `dims`, the model sees the shape of `reshape`.

In:  requests before the model gets them, and responses before they are sent. Only the shapes
     change, not the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from naiad.core.reshape import reshaped
from naiad.ipc.work import WorkRequest, WorkResponse, WorkTensor


class Reshapes(msgspec.Struct, frozen=True):
    inputs: dict[str, tuple[list[int], list[int]]]
    """Name -> (the client's dims, the model's dims)."""
    outputs: dict[str, tuple[list[int], list[int]]]
    """Name -> (the model's dims, the client's dims)."""
    num_batch_dims: int

    def to_model(self, requests: Sequence[WorkRequest]) -> None:
        for request in requests:
            self._apply(request.inputs, self.inputs)

    def to_client(self, response: WorkResponse) -> None:
        self._apply(response.outputs, self.outputs)

    def _apply(
        self, tensors: list[WorkTensor], shapes: dict[str, tuple[list[int], list[int]]]
    ) -> None:
        for index, tensor in enumerate(tensors):
            shape = shapes.get(tensor.name)
            if shape is not None:
                tensors[index] = WorkTensor(
                    tensor.name,
                    tensor.datatype,
                    reshaped(tensor.shape, *shape, self.num_batch_dims),
                    tensor.data,
                )


def read_reshapes(config: Mapping[str, Any]) -> Reshapes | None:
    """Reads a ModelConfig from JSON. Returns None if it reshapes no tensor."""
    inputs = {
        io["name"]: (_dims(io["dims"]), _dims(io["reshape"].get("shape", [])))
        for io in config.get("input", ())
        if "reshape" in io
    }
    outputs = {
        io["name"]: (_dims(io["reshape"].get("shape", [])), _dims(io["dims"]))
        for io in config.get("output", ())
        if "reshape" in io
    }
    if not inputs and not outputs:
        return None
    return Reshapes(inputs, outputs, int(int(config.get("max_batch_size", 0)) > 0))


def _dims(dims: Sequence[Any]) -> list[int]:
    return [int(dim) for dim in dims]
