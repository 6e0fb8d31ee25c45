"""Completes a configuration with Triton's defaults: backend, file name, version policy, batch
sizes, instance groups.

In:  a ModelConfig as written, and the files in the model's directory. Out: the same message,
     completed in place.
Rule: only missing fields are filled; given values are never changed. validate decides whether the
      result is valid.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config_override import parse_override_dict
from naiad.repository.config.problem import InvalidConfigError, Problem

SEQUENCE_IDLE_DEFAULT_US = 1_000_000
DEFAULT_MAX_BATCH_SIZE = 4
COMPLETED = (
    "max_batch_size",
    "input",
    "output",
    "dynamic_batching",
    "sequence_batching",
    "model_transaction_policy",
)
"""The fields that a model may complete."""


class Framework(msgspec.Struct, frozen=True):
    """A backend, with the model file and the platform that identify it."""

    backend: str
    file_name: str
    platform: str = ""


# In Triton's order: if a version has several of these files, the first row wins.
_FRAMEWORKS = [
    Framework("tensorrt", "model.plan", "tensorrt_plan"),
    Framework("onnxruntime", "model.onnx", "onnxruntime_onnx"),
    Framework("openvino", "model.xml"),
    Framework("pytorch", "model.pt", "pytorch_libtorch"),
    Framework("pytorch", "model.pt2", "torch_aoti"),
    Framework("python", "model.py"),
]
MODEL_FILES = {row.backend: row.file_name for row in reversed(_FRAMEWORKS)}
# A single instance of this backend leaves a core idle; other backends use several threads.
_DEFAULT_CPU_COUNT = {"onnxruntime": 2}
# The kind of the instance group that is added if the config has none. An LLM engine chooses its
# devices itself; other backends use the available GPUs.
_DEFAULT_KIND = {
    "vllm": ModelInstanceGroup.KIND_MODEL,
    "tensorrtllm": ModelInstanceGroup.KIND_MODEL,
    "llm": ModelInstanceGroup.KIND_MODEL,
    "openvino": ModelInstanceGroup.KIND_CPU,
}


def fill_backend(config: ModelConfig, model_name: str, version_files: Collection[str]) -> None:
    """`version_files` are the names in the newest version directory; empty if there is none."""
    if not config.name:
        config.name = model_name
    framework = _recognise(config, version_files)
    if framework:
        config.backend = framework.backend
        config.platform = config.platform or framework.platform
        config.default_model_filename = config.default_model_filename or framework.file_name
    elif not (config.backend or config.platform or config.default_model_filename):
        _fill_backend_from_name(config, model_name)


def _recognise(config: ModelConfig, version_files: Collection[str]) -> Framework | None:
    if config.backend:
        rows = [row for row in _FRAMEWORKS if row.backend == config.backend]
        if not config.platform and not config.default_model_filename:
            present = [row for row in rows if row.file_name in version_files]
            rows = present or rows
        return next(
            (row for row in rows if row.platform == config.platform), rows[0] if rows else None
        )
    if config.platform or config.default_model_filename:
        return next(
            (
                row
                for row in _FRAMEWORKS
                if (row.platform and row.platform == config.platform)
                or row.file_name == config.default_model_filename
            ),
            None,
        )
    return next((row for row in _FRAMEWORKS if row.file_name in version_files), None)


def _fill_backend_from_name(config: ModelConfig, model_name: str) -> None:
    _, _, backend = model_name.partition(".")
    if not backend:
        known = ", ".join(row.file_name for row in _FRAMEWORKS)
        raise InvalidConfigError(
            [
                Problem(
                    code="no-backend",
                    message="Invalid model name: Could not determine backend for model "
                    f"'{model_name}' with no backend in model configuration. "
                    "Expected model name of the form 'model.<backend_name>'.",
                    file=model_name,
                    found="no backend in the configuration and no model file that identifies one",
                    expected='backend: "..." in config.pbtxt, '
                    f"or one of {known} in a version directory",
                    fix=f"for a Python model put model.py into {model_name}/1, "
                    'for another set backend: "<name>" in config.pbtxt',
                )
            ]
        )
    config.backend = backend
    config.default_model_filename = f"model.{backend}"


def fill_defaults(config: ModelConfig) -> None:
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching"):
        _fill_preferred_batch_size(
            config.dynamic_batching.preferred_batch_size, config.max_batch_size
        )
    if config.HasField("sequence_batching"):
        batching = config.sequence_batching
        batching.max_sequence_idle_microseconds = (
            batching.max_sequence_idle_microseconds or SEQUENCE_IDLE_DEFAULT_US
        )
        if batching.HasField("oldest"):
            _fill_preferred_batch_size(batching.oldest.preferred_batch_size, config.max_batch_size)
    if not config.HasField("ensemble_scheduling"):
        for memory in ("input_pinned_memory", "output_pinned_memory"):
            if not config.optimization.HasField(memory):
                getattr(config.optimization, memory).enable = True


def _fill_preferred_batch_size(preferred: Any, max_batch_size: int) -> None:
    if not preferred and max_batch_size > 0:
        preferred.append(max_batch_size)


def fill_instance_groups(config: ModelConfig, gpus: Sequence[int]) -> None:
    """`gpus` are the ids of the devices that may be used. Ensembles have no instances."""
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        config.instance_group.add(
            name=config.name, kind=_DEFAULT_KIND.get(config.backend, ModelInstanceGroup.KIND_AUTO)
        )
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            has_gpus = bool(gpus) and set(group.gpus) <= set(gpus)
            group.kind = ModelInstanceGroup.KIND_GPU if has_gpus else ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            group.count = (
                _DEFAULT_CPU_COUNT.get(config.backend, 1)
                if group.kind == ModelInstanceGroup.KIND_CPU
                else 1
            )
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)


def default_max_batch_size(backend_config: dict[str, dict[str, str]], backend: str) -> int:
    """The value of `--backend-config=<backend>,default-max-batch-size=N`, else of the setting for
    all backends (key ""), else Triton's 4."""
    for name in (backend, ""):
        value = backend_config.get(name, {}).get("default-max-batch-size", "")
        if value.isascii() and value.isdigit():
            return int(value)
    return DEFAULT_MAX_BATCH_SIZE


def apply_auto_complete(config: ModelConfig, returned: dict[str, Any]) -> None:
    """Applies what a backend or a model's auto_complete_config returned; other fields of it are
    ignored."""
    found = parse_override_dict({name: returned[name] for name in COMPLETED if name in returned})
    if "max_batch_size" in returned:
        config.max_batch_size = found.max_batch_size
    for name in ("input", "output"):
        if name in returned:
            config.ClearField(name)
            getattr(config, name).MergeFrom(getattr(found, name))
    choice = found.WhichOneof("scheduling_choice")
    if choice and not config.WhichOneof("scheduling_choice"):
        getattr(config, choice).CopyFrom(getattr(found, choice))
    if found.HasField("model_transaction_policy"):
        config.model_transaction_policy.CopyFrom(found.model_transaction_policy)
    fill_defaults(config)
