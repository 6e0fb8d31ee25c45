"""Reads the file of `-f FILE`: model-analyzer's YAML, or the same as JSON.

In:  a path. Out: values of ProfileOptions, and the settings of each model.
Rule: a key that model-analyzer knows but that has no effect here is ignored with a note. Any other
      unknown key is an error. Only YAML needs an additional package.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec

from naiad.analyze.goal import constraints_of, objectives_of
from naiad.analyze.settings import AnalyzedModel, ProfileOptions
from naiad.core.install_advice import install_command
from naiad.settings.option import OptionError

_KEYS_WITHOUT_EFFECT = """
    collect_cpu_metrics gpus dcgm_disable monitoring_interval duration_seconds perf_analyzer_path
    perf_analyzer_timeout perf_analyzer_cpu_util perf_analyzer_max_auto_adjusts perf_output
    perf_output_path triton_docker_image triton_docker_mounts triton_docker_labels
    triton_docker_shm_size triton_docker_args triton_install_path client_max_retries
    reload_model_disable always_report_gpu_metrics inference_output_fields gpu_output_fields
    server_output_fields filename_model_inference filename_model_gpu filename_server_only
    num_top_model_configs plots summarize verbose_csv genai_perf_flags cpu_only verbose quiet
    use_concurrency_formula request_rate_search_enable request_rate log_level
    triton_server_environment output_formats report_model_configs
"""
WITHOUT_EFFECT = frozenset(_KEYS_WITHOUT_EFFECT.split())
"""Keys of model-analyzer that have no effect in Naiad."""
_MODEL_SETTINGS = """
    objectives constraints weighting parameters model_config_parameters perf_analyzer_flags
    cpu_only triton_server_flags genai_perf_flags triton_server_environment
"""
_MODEL_KEYS = frozenset(_MODEL_SETTINGS.split())


class FileSettings(msgspec.Struct):
    values: dict[str, Any]
    """Values of ProfileOptions by field."""
    models: list[AnalyzedModel]
    notes: list[str]


def read_config_file(path: Path) -> FileSettings:
    """Reads the file. Raises OptionError if it is invalid."""
    document = _load(path)
    fields = {field.name: field for field in msgspec.structs.fields(ProfileOptions)}
    settings = FileSettings({}, [], [])
    for key, value in document.items():
        if key == "profile_models":
            settings.models = model_specs(value, f"{path}")
        elif key == "objectives":
            settings.values[key] = objectives_of(value)
        elif key == "constraints":
            settings.values[key] = constraints_of(value)
        elif key in ("bls_composing_models", "cpu_only_composing_models"):
            settings.values[key] = list(value) if isinstance(value, list | dict) else [str(value)]
        elif key in fields:
            settings.values[key] = _converted(path, key, value, fields[key].type)
        elif key in WITHOUT_EFFECT:
            settings.notes.append(f"{path}: '{key}' has no effect in naiad analyze")
        else:
            nearest = difflib.get_close_matches(key, [*fields, "profile_models"], 1)
            hint = f", did you mean '{nearest[0]}'?" if nearest else ""
            raise OptionError(f"{path}: unknown option '{key}'{hint}")
    return settings


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    document = _json(path, text) if path.suffix == ".json" else _yaml(path, text)
    if not isinstance(document, dict):
        raise OptionError(f"{path}: expected options of the form 'name: value'")
    return document


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{path}: {error}") from None


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise OptionError(
            f"reading a YAML file needs the package 'pyyaml': {install_command('analyze')}"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OptionError(f"{path}: {error}") from None


def _converted(path: Path, key: str, value: Any, kind: Any) -> Any:
    plain = _plain(kind)
    try:
        return (
            numbers_of(value) if plain == list[int] else msgspec.convert(value, plain, strict=False)
        )
    except msgspec.ValidationError as error:
        raise OptionError(f"{path}: {key}: {error}") from None
    except (TypeError, ValueError, KeyError):
        raise OptionError(f"{path}: {key}: expected numbers, got {value!r}") from None


def _plain(kind: Any) -> Any:
    """Returns the type without the Annotated that declares the option."""
    return getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind


def numbers_of(value: Any) -> list[int]:
    """Reads 4, [1, 2, 4] or {start: 1, stop: 8, step: 1}."""
    if isinstance(value, dict):
        return list(range(int(value["start"]), int(value["stop"]) + 1, int(value.get("step", 1))))
    if isinstance(value, str):
        return [int(part) for part in value.split(",")]
    return [int(part) for part in value] if isinstance(value, list) else [int(value)]


def model_specs(value: Any, where: str) -> list[AnalyzedModel]:
    """Reads profile_models: names, {name: settings}, or a list of both."""
    if isinstance(value, str):
        return [AnalyzedModel(name=name.strip()) for name in value.split(",")]
    entries: list[tuple[str, Any]] = []
    for entry in value if isinstance(value, list) else [value]:
        entries += list(entry.items()) if isinstance(entry, dict) else [(str(entry), None)]
    return [_spec(name, settings or {}, where) for name, settings in entries]


def _spec(name: str, settings: dict[str, Any], where: str) -> AnalyzedModel:
    unknown = settings.keys() - _MODEL_KEYS
    if unknown:
        raise OptionError(
            f"{where}: profile_models: {name}: unknown setting '{sorted(unknown)[0]}'"
        )
    parameters = settings.get("parameters") or {}

    def numbers(key: str) -> list[int]:
        return numbers_of(parameters[key]) if key in parameters else []

    return AnalyzedModel(
        name=name,
        objectives=objectives_of(settings["objectives"]) if settings.get("objectives") else {},
        constraints=constraints_of(settings["constraints"]) if settings.get("constraints") else {},
        weighting=float(settings.get("weighting", 1)),
        batch_sizes=numbers("batch_sizes"),
        concurrency=numbers("concurrency"),
        request_rate=[float(rate) for rate in numbers("request_rate")],
        model_config_parameters=settings.get("model_config_parameters") or {},
        perf_analyzer_flags=settings.get("perf_analyzer_flags") or {},
        is_cpu_only=bool(settings.get("cpu_only", False)),
    )
