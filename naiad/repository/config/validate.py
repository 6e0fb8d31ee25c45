"""The rules that a completed ModelConfig must meet to be loaded, in Triton's order and with
Triton's messages.

In:  a ModelConfig after autocomplete, and the positions of its fields. Out: every broken rule; an
     empty list means that the model may be loaded.
Rule: only this configuration is read. Rules that need an ensemble's models are in ensemble_fit,
      rules that need files in check.
"""

from __future__ import annotations

from pathlib import Path

from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.files.safe_path import path_inside
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config import ConfigOptions, ModelConfigFile
from naiad.repository.config.problem import InvalidConfigError, Problem, ProblemList
from naiad.repository.config.source_map import SourceMap, entry_path
from naiad.repository.config.validate_batching import check_dynamic_batching
from naiad.repository.config.validate_ensemble import ENSEMBLE_PLATFORM, check_ensemble_scheduling
from naiad.repository.config.validate_instances import check_instance_groups
from naiad.repository.config.validate_io import check_batch_io, check_tensors, dims_text
from naiad.repository.config.validate_sequence import check_sequence_batching
from naiad.repository.config.worker_settings import check_worker_settings

# A backend in this table works only with its own platforms; any other backend accepts any platform.
_PLATFORMS = {
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
    "tensorflow": ("tensorflow_graphdef", "tensorflow_savedmodel"),
}


def require_files_inside(file: ModelConfigFile) -> None:
    """Raises InvalidConfigError if the config names a file outside the model's folder. Runs before
    any code of the model does: a load request may bring the config."""
    found = ProblemList(file.lines)
    _check_file_names(file.config, found)
    if found.problems:
        raise InvalidConfigError(found.problems)


def require_valid(
    file: ModelConfigFile, options: ConfigOptions, *, is_complete: bool = True
) -> None:
    """Raises InvalidConfigError."""
    problems = validate_config(
        file.config, lines=file.lines, options=options, is_complete=is_complete
    )
    if not problems and file.misnamed is not None:
        problems = [file.misnamed]
    if problems:
        raise InvalidConfigError(problems)


def validate_config(
    config: ModelConfig,
    *,
    lines: SourceMap | None = None,
    options: ConfigOptions | None = None,
    is_complete: bool = True,
) -> list[Problem]:
    """`is_complete` is False while the model itself may still add inputs and outputs."""
    found = ProblemList(lines or SourceMap())
    options = options or ConfigOptions()
    _check_identity(config, found)
    _check_sizes(config, found)
    check_dynamic_batching(config, found)
    check_sequence_batching(config, found)
    check_ensemble_scheduling(config, found)
    _check_cache(config, found)
    _check_metrics(config, found)
    if is_complete:
        check_tensors(config, found)
        check_batch_io(config, found)
    check_instance_groups(config, options, found)
    check_worker_settings(config, found)
    _check_warmup(config, found)
    _check_file_names(config, found)
    return found.problems


def _check_file_names(config: ModelConfig, found: ProblemList) -> None:
    names = {"default_model_filename": config.default_model_filename}
    for capability, name in sorted(config.cc_model_filenames.items()):
        names[entry_path("cc_model_filenames", capability)] = name
    for index, output in enumerate(config.output):
        names[f"output[{index}].label_filename"] = output.label_filename
    for path, name in names.items():
        if name and path_inside(Path(), name) is None:
            found.add(
                "file-outside",
                f"'{name}' is not inside the folder of model '{config.name}'",
                path,
                found=f"'{name}'",
                expected="a path relative to the folder, without '..'",
                fix="move the file into the model's folder",
            )


def _check_identity(config: ModelConfig, found: ProblemList) -> None:
    if not config.name:
        found.add(
            "name-missing",
            "model configuration must specify 'name'",
            "name",
            found="no name",
            expected="the model's name",
        )
    if not config.backend and config.platform != ENSEMBLE_PLATFORM:
        platforms = ", ".join(
            [ENSEMBLE_PLATFORM, *(name for names in _PLATFORMS.values() for name in names)]
        )
        message = f"unexpected platform type '{config.platform}' for {config.name}"
        fix = 'name the backend instead: backend: "python", "onnxruntime", "pytorch", ...'
        found.add(
            "platform-unknown",
            message,
            "platform",
            found=f"platform '{config.platform}'",
            expected=f"one of {platforms}",
            fix=fix,
        )
    elif config.backend and config.platform == ENSEMBLE_PLATFORM:
        message = (
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE_PLATFORM}' "
            "and empty backend type"
        )
        shown = f'backend: "{config.backend}"'
        found.add(
            "ensemble-backend",
            message,
            "backend",
            found=shown,
            expected="no backend",
            fix="remove the backend line",
        )
    elif config.platform not in _PLATFORMS.get(config.backend, (config.platform,)):
        message = (
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}"
        )
        expected = (
            f"platform {' or '.join(_PLATFORMS[config.backend])} with backend {config.backend}"
        )
        shown = f"platform {config.platform}"
        found.add(
            "platform-backend",
            message,
            "platform",
            found=shown,
            expected=expected,
            fix="remove the platform line",
        )


def _check_sizes(config: ModelConfig, found: ProblemList) -> None:
    if config.max_batch_size < 0:
        message = f"'max_batch_size' must be non-negative value for {config.name}"
        expected = (
            "0 (the model does not batch, dims are full shapes) or the largest batch it accepts"
        )
        found.add(
            "max-batch-size",
            message,
            "max_batch_size",
            found=str(config.max_batch_size),
            expected=expected,
        )
    if not config.HasField("version_policy"):
        message = f"must specify 'version policy' for {config.name}"
        found.add(
            "version-policy",
            message,
            "version_policy",
            found="none",
            expected="latest, all or specific",
        )


def _check_cache(config: ModelConfig, found: ProblemList) -> None:
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        message = (
            f"Response Cache does not currently support model {config.name} with 'decoupled' "
            "transaction policy. "
            "Please disable the response cache."
        )
        shown = "response_cache and decoupled"
        found.add(
            "cache-decoupled",
            message,
            "response_cache",
            found=shown,
            expected="one of the two",
            fix="remove response_cache",
        )


def _check_metrics(config: ModelConfig, found: ProblemList) -> None:
    for index, control in enumerate(config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if not control.HasField("metric_identifier"):
            message = "metric control must specify 'metric_identifier'"
            found.add(
                "metric-identifier",
                message,
                path,
                found="none",
                expected='metric_identifier { family: "..." }',
            )
        elif not control.metric_identifier.family:
            message = "metric identifier must specify non-empty 'family'"
            found.add(
                "metric-family",
                message,
                f"{path}.metric_identifier",
                found="no family",
                expected="the name of a metric",
            )
        if not control.HasField("histogram_options"):
            message = "metric control must specify 'histogram_options'"
            found.add(
                "metric-options",
                message,
                path,
                found="none",
                expected="histogram_options { buckets: [ ... ] }",
            )
        elif not control.histogram_options.buckets:
            message = "histogram options must specify non-empty 'buckets'"
            found.add(
                "metric-buckets",
                message,
                f"{path}.histogram_options",
                found="no buckets",
                expected="buckets: [ 0.1, 1, 10 ]",
            )


def _check_warmup(config: ModelConfig, found: ProblemList) -> None:
    if config.HasField("ensemble_scheduling"):
        return
    for index, sample in enumerate(config.model_warmup):
        for name, warm_input in sorted(sample.inputs.items()):
            path = entry_path(f"model_warmup[{index}].inputs", name)
            if any(dim < 0 for dim in warm_input.dims):
                message = (
                    "warmup setting expects all variable-size dimensions are specified for "
                    f"input '{name}'"
                )
                shown = f"dims {dims_text(warm_input.dims)}"
                found.add(
                    "warmup-dims",
                    message,
                    f"{path}.dims",
                    found=shown,
                    expected="real sizes, without the batch dimension",
                )
            if warm_input.data_type not in BY_CONFIG_NUMBER:
                message = (
                    f"warmup setting must specify 'data_type' for input '{name}' in sample "
                    f"'{sample.name}' for {config.name}"
                )
                found.add(
                    "warmup-type",
                    message,
                    path,
                    found="no data_type",
                    expected="the input's data type",
                )
