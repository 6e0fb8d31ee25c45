"""The tensors of a language backend: how a config declares them, how a request's inputs are read,
how outputs are built.

In:  LoadArguments.model_config; the input tensors of one request. Out: config fields as JSON for
     Backend.complete_config; scalars, strings and lists; output tensors.
Rule: a batch dimension of 1 makes no difference when an input is read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments, WorkRequest

# The config.


def tensor(
    name: str, data_type: str, dims: list[int], *, is_optional: bool = False
) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "data_type": data_type, "dims": dims}
    return {**fields, "optional": True} if is_optional else fields


def complete(
    arguments: LoadArguments, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]
) -> bytes:
    """Adds the tensors that the config lacks, and the decoupled policy if the config has no
    policy. Everything that the config already has stays as it is."""
    config: dict[str, Any] = msgspec.json.decode(arguments.model_config)
    fields: dict[str, Any] = {"max_batch_size": 0}
    for kind, ours in (("input", inputs), ("output", outputs)):
        entries = config.get(kind) or []
        names = {entry["name"] for entry in entries}
        fields[kind] = entries + [entry for entry in ours if entry["name"] not in names]
    if not config.get("model_transaction_policy"):
        fields["model_transaction_policy"] = {"decoupled": True}
    return msgspec.json.encode(fields)


def is_decoupled(arguments: LoadArguments) -> bool:
    config: dict[str, Any] = msgspec.json.decode(arguments.model_config)
    return bool((config.get("model_transaction_policy") or {}).get("decoupled"))


# Inputs.


class Inputs:
    def __init__(self, request: WorkRequest) -> None:
        self._tensors = {tensor.name: tensor for tensor in request.inputs}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.as_numpy()

    def texts(self, name: str) -> list[str]:
        array = self.array(name)
        if array is None:
            return []
        return [_decoded(name, element) for element in array.ravel().tolist()]

    def text(self, name: str) -> str | None:
        """Returns the only string of the tensor, or None if the request does not have it. Raises
        NaiadError if it has several."""
        value = self.scalar(name)
        return None if value is None else _decoded(name, value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.scalar(name)
        return default if value is None else bool(value)

    def scalar(self, name: str) -> Any:
        array = self.array(name)
        if array is None:
            return None
        if array.size != 1:
            raise invalid_arg(f"input '{name}' has {array.size} elements, expected 1")
        return array.ravel()[0] if array.dtype == np.object_ else array.ravel()[0].item()

    def integers(self, name: str) -> list[int] | None:
        array = self.array(name)
        return None if array is None else [int(value) for value in array.ravel().tolist()]


def _decoded(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid_arg(f"input '{name}' is not UTF-8 text") from None


# Outputs.


def text_tensor(name: str, values: list[str]) -> Tensor:
    return Tensor(name, "BYTES", [len(values)], encode_byte_strings(values))


def number_tensor(
    name: str, datatype: str, values: list[int] | list[float], shape: list[int] | None = None
) -> Tensor:
    dtype = {"INT32": np.int32, "UINT32": np.uint32, "INT64": np.int64, "FP32": np.float32}[
        datatype
    ]
    return Tensor(
        name,
        datatype,
        [len(values)] if shape is None else shape,
        np.asarray(values, dtype).tobytes(),
    )
