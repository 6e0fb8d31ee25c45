"""The specification of a model version: the part of a ModelConfig that codecs and validation need.

repository.model builds the structs once per loaded version. They are immutable and read on every
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from naiad.pb.model_config_pb2 import ModelConfig


class TensorSpec(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    """The wire name, such as FP32."""
    dims: list[int]
    """Dims as in config.pbtxt: without the batch dimension, before `reshape`. -1 is variable."""
    shape: list[int]
    """The shape that clients send and see in metadata: `dims` after a -1 if the model batches."""
    is_optional: bool = False
    allow_ragged_batch: bool = False
    labels: list[str] = []
    """The lines of `label_filename`, for classification. Only outputs have labels."""


class ModelSpec(msgspec.Struct, frozen=True):
    name: str
    version: int
    versions: list[int]
    """All versions of this model that are being served."""
    platform: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    is_decoupled: bool = False
    shows_api_key: bool = False
    """The model sees the id and the metadata of the API key of each request."""


class ServerMetadata(msgspec.Struct, frozen=True):
    name: str
    version: str
    extensions: list[str]


class ModelIndex(msgspec.Struct, omit_defaults=True):
    """A row of the repository index. A model that was never loaded has only a name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def shows_api_key(config: ModelConfig) -> bool:
    """True if the config asks that requests tell the model which API key they came with."""
    name = "show_api_key"
    value = config.parameters[name].string_value if name in config.parameters else ""
    return value.strip().lower() in ("true", "1", "yes", "on")
