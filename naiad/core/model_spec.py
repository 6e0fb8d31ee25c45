"""What a request to one model version must look like: the part of a ModelConfig that codecs and
validation need, as plain structs.

In:  built once per loaded version by repository.model. Out: read per request; immutable.
"""

from __future__ import annotations

import msgspec


class TensorSpec(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    """Wire name, e.g. FP32."""
    dims: list[int]
    """As in config.pbtxt: without the batch dimension, before `reshape`; -1 is variable."""
    shape: list[int]
    """What clients send and see in metadata: `dims` with a leading -1 when the model batches."""
    is_optional: bool = False
    allow_ragged_batch: bool = False
    labels: list[str] = []
    """Lines of `label_filename`, for classification; outputs only."""


class ModelSpec(msgspec.Struct, frozen=True):
    name: str
    version: int
    versions: list[int]
    """All versions of this model that serve."""
    platform: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    is_decoupled: bool = False


class ServerMetadata(msgspec.Struct, frozen=True):
    name: str
    version: str
    extensions: list[str]


class ModelIndex(msgspec.Struct, omit_defaults=True):
    """A row of the repository index; a model that was never loaded has only its name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
