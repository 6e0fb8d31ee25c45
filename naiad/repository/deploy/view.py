"""A config as the deploy form shows it: the fields that a person fills in.

In:  a ModelConfig as it is written. Out: a ConfigView, ready for JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup


class TensorView(msgspec.Struct, frozen=True):
    name: str
    data_type: str
    dims: list[int]
    optional: bool = False


class GroupView(msgspec.Struct, frozen=True):
    count: int
    """0 if the config does not say it."""
    kind: str
    gpus: list[int]


class BatchingView(msgspec.Struct, frozen=True):
    max_queue_delay_microseconds: int
    preferred_batch_size: list[int]


class ConfigView(msgspec.Struct, frozen=True, kw_only=True):
    backend: str
    """Also when only the model's file tells it; "ensemble" for an ensemble."""
    max_batch_size: int
    inputs: list[TensorView]
    """Empty if the model itself tells them."""
    outputs: list[TensorView]
    instances: list[GroupView]
    batching: BatchingView | None
    parameters: dict[str, str]
    is_sequence: bool = False
    is_ensemble: bool = False


def view_config(config: ModelConfig, backend: str) -> ConfigView:
    batching = None
    if config.HasField("dynamic_batching"):
        batching = BatchingView(
            config.dynamic_batching.max_queue_delay_microseconds,
            list(config.dynamic_batching.preferred_batch_size),
        )
    return ConfigView(
        backend=backend,
        max_batch_size=config.max_batch_size,
        inputs=[_tensor(tensor) for tensor in config.input],
        outputs=[_tensor(tensor) for tensor in config.output],
        instances=[
            GroupView(group.count, ModelInstanceGroup.Kind.Name(group.kind), list(group.gpus))
            for group in config.instance_group
        ],
        batching=batching,
        parameters={name: value.string_value for name, value in config.parameters.items()},
        is_sequence=config.HasField("sequence_batching"),
        is_ensemble=config.HasField("ensemble_scheduling"),
    )


def _tensor(tensor: Any) -> TensorView:
    kind = BY_CONFIG_NUMBER.get(tensor.data_type)
    return TensorView(
        tensor.name,
        "" if kind is None else kind.name,
        list(tensor.dims),
        bool(getattr(tensor, "optional", False)),
    )
