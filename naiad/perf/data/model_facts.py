"""Describes a model: its tensors, its batching and how it responds.

In:  metadata and configuration as JSON objects, from either protocol. Out: ModelFacts. No I/O.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TensorFacts(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    """Shape without the batch dimension; -1 for a dynamic dimension."""
    is_optional: bool = False
    is_shape_tensor: bool = False


class ModelFacts(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[TensorFacts, ...] = ()
    max_batch_size: int = 0
    is_decoupled: bool = False
    is_sequence: bool = False
    is_ensemble: bool = False
    has_response_cache: bool = False
    composing: tuple[tuple[str, str], ...] = ()
    """Model and version of the steps of an ensemble at all levels, and of the models of
    --bls-composing-models."""
    has_statistics: bool = True

    def input(self, name: str) -> TensorFacts | None:
        return next((tensor for tensor in self.inputs if tensor.name == name), None)


def model_facts(
    metadata: dict[str, Any], config: dict[str, Any], version: str, extensions: list[str]
) -> ModelFacts:
    max_batch_size = int(config.get("max_batch_size", 0))
    declared = {entry["name"]: entry for entry in config.get("input", [])}
    inputs = tuple(
        _tensor(entry, max_batch_size, declared.get(entry["name"], {}))
        for entry in metadata.get("inputs", [])
    )
    outputs = tuple(_tensor(entry, max_batch_size, {}) for entry in metadata.get("outputs", []))
    return ModelFacts(
        metadata["name"],
        version,
        inputs,
        outputs,
        max_batch_size,
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        is_sequence="sequence_batching" in config,
        is_ensemble="ensemble_scheduling" in config,
        has_response_cache=bool(config.get("response_cache", {}).get("enable", False)),
        has_statistics="statistics" in extensions,
    )


def ensemble_steps(config: dict[str, Any]) -> list[tuple[str, str]]:
    steps = config.get("ensemble_scheduling", {}).get("step", [])
    versions = [(step["model_name"], str(step.get("model_version", -1))) for step in steps]
    return [(name, "" if version == "-1" else version) for name, version in versions]


def _tensor(entry: dict[str, Any], max_batch_size: int, declared: dict[str, Any]) -> TensorFacts:
    is_shape_tensor = bool(declared.get("is_shape_tensor", False))
    shape = tuple(int(dimension) for dimension in entry.get("shape", []))
    if max_batch_size > 0 and not is_shape_tensor:
        shape = shape[1:]
    return TensorFacts(
        entry["name"],
        entry["datatype"],
        shape,
        bool(declared.get("optional", False)),
        is_shape_tensor,
    )
