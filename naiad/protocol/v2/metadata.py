"""Metadata and statistics of the server and its models, and the repository index, as JSON.

Key names and order are Triton's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.core.health import ServerHealth
from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata, TensorSpec
from naiad.core.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics

_ENCODER = msgspec.json.Encoder()


def encode_server_metadata(metadata: ServerMetadata) -> bytes:
    return _ENCODER.encode(metadata)


def encode_health(health: ServerHealth) -> bytes:
    """Naiad's own: Triton has no such response."""
    return _ENCODER.encode(health)


def encode_model_metadata(spec: ModelSpec) -> bytes:
    return _ENCODER.encode(
        {
            "name": spec.name,
            "versions": [str(version) for version in spec.versions],
            "platform": spec.platform,
            "inputs": [_tensor(tensor) for tensor in spec.inputs.values()],
            "outputs": [_tensor(tensor) for tensor in spec.outputs.values()],
        }
    )


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def encode_index(rows: list[ModelIndex]) -> bytes:
    return _ENCODER.encode(rows)


def encode_statistics(models: list[ModelStatistics]) -> bytes:
    return _ENCODER.encode({"model_stats": [_model_statistics(model) for model in models]})


def _model_statistics(model: ModelStatistics) -> dict[str, Any]:
    durations: dict[str, Duration] = {
        "success": model.success,
        "fail": model.fail,
        "queue": model.queue,
        "compute_input": model.compute_input,
        "compute_infer": model.compute_infer,
        "compute_output": model.compute_output,
        "cache_hit": model.cache_hit,
        "cache_miss": model.cache_miss,
    }
    responses: dict[str, ResponseStatistics] = {
        str(index): response for index, response in sorted(model.responses.items())
    }
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": model.last_inference_ms,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": durations,
        "response_stats": responses,
        "batch_stats": [
            _batch_statistics(size, batch) for size, batch in sorted(model.batch.items())
        ],
        "memory_usage": [],
    }


def _batch_statistics(batch_size: int, batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "compute_input": batch.compute_input,
        "compute_infer": batch.compute_infer,
        "compute_output": batch.compute_output,
    }
