"""The module that Triton's Python models import as `triton_python_backend_utils`.

It is also registered as `c_python_backend_utils`. The other files of this folder define its
classes; this file lists the names that model code sees and has the lookups by name.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from naiad.backends.python.call import ResponseIterator
from naiad.backends.python.config import ModelConfig
from naiad.backends.python.control import get_model_dir, is_model_ready, load_model, unload_model
from naiad.backends.python.datatype import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from naiad.backends.python.error import TritonError, TritonModelException
from naiad.backends.python.log import Logger
from naiad.backends.python.metrics import Metric, MetricFamily
from naiad.backends.python.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
)
from naiad.backends.python.response import InferenceResponse
from naiad.backends.python.sender import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponseSender,
)
from naiad.backends.python.tensor import Tensor
from naiad.backends.python.wire_text import as_text
from naiad.ipc.work import SEQUENCE_END, SEQUENCE_START

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = SEQUENCE_START
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = SEQUENCE_END

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


if not TYPE_CHECKING:  # mypy would accept every name

    def __getattr__(name: str) -> Any:
        """Reports an unknown name under the name that models import, with the nearest known
        one."""
        message = f"module 'triton_python_backend_utils' has no attribute '{name}'"
        near = difflib.get_close_matches(name, __all__, 1)
        if near:
            message += f". Did you mean: '{near[0]}'?"
        raise AttributeError(message, name=name)


def get_input_tensor_by_name(
    inference_request: InferenceRequest, name: str | bytes
) -> Tensor | None:
    tensors: list[Tensor] = inference_request._inputs or inference_request._tensors()
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return _named(tensors, name)


def get_output_tensor_by_name(
    inference_response: InferenceResponse, name: str | bytes
) -> Tensor | None:
    return _named(inference_response._outputs, name)


def _named(tensors: Sequence[Tensor], name: str | bytes) -> Tensor | None:
    name = as_text(name)
    return next((tensor for tensor in tensors if tensor._name == name), None)


def get_input_config_by_name(
    model_config: dict[str, Any], name: str | bytes
) -> dict[str, Any] | None:
    return _config_named(model_config, "input", name)


def get_output_config_by_name(
    model_config: dict[str, Any], name: str | bytes
) -> dict[str, Any] | None:
    return _config_named(model_config, "output", name)


def _config_named(
    model_config: dict[str, Any], kind: str, name: str | bytes
) -> dict[str, Any] | None:
    name = as_text(name)
    return next((tensor for tensor in model_config.get(kind, ()) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def register() -> None:
    """Makes the module importable under Triton's names in this process."""
    module = sys.modules[__name__]
    sys.modules["triton_python_backend_utils"] = module
    sys.modules["c_python_backend_utils"] = module
