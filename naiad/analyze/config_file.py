"""`-f FILE`: model-analyzer's YAML -> options and the models' own settings. JSON is read without
           any package.

Rule: what the command line says goes before the file. A key that means nothing here is named, and
      ignored if model-analyzer knows it.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec

from naiad.analyze.goal import constraints_of, objectives_of
from naiad.analyze.settings import ModelSpec, ProfileOptions
from naiad.settings.option import OptionError

_ELSEWHERE = """
    collect_cpu_metrics gpus dcgm_disable monitoring_interval duration_seconds perf_analyzer_path perf_analyzer_timeout
    perf_analyzer_cpu_util perf_analyzer_max_auto_adjusts perf_output perf_output_path triton_docker_image triton_docker_mounts
    triton_docker_labels triton_docker_shm_size triton_docker_args triton_install_path client_max_retries reload_model_disable
    always_report_gpu_metrics inference_output_fields gpu_output_fields server_output_fields filename_model_inference
    filename_model_gpu filename_server_only num_top_model_configs plots summarize verbose_csv genai_perf_flags cpu_only verbose quiet
    use_concurrency_formula request_rate_search_enable request_rate log_level triton_server_environment output_formats
    report_model_configs
"""
_KNOWN_ELSEWHERE = frozenset(_ELSEWHERE.split())
_MODEL_KEYS = """
    objectives constraints weighting parameters model_config_parameters perf_analyzer_flags cpu_only triton_server_flags
    genai_perf_flags triton_server_environment
"""


class FileSettings(msgspec.Struct):
    values: dict[str, Any]
    """Fields of ProfileOptions."""
    models: list[ModelSpec]
    notes: list[str]


def read_config_file(path: Path) -> FileSettings:
    """Raises OptionError."""
    document = _load(path)
    fields = {field.name: field for field in msgspec.structs.fields(ProfileOptions)}
    found = FileSettings({}, [], [])
    for key, value in document.items():
        if key == "profile_models":
            found.models = model_specs(value, f"{path}")
        elif key == "objectives":
            found.values[key] = objectives_of(value)
        elif key == "constraints":
            found.values[key] = constraints_of(value)
        elif key in ("bls_composing_models", "cpu_only_composing_models"):
            found.values[key] = list(value) if isinstance(value, list | dict) else [str(value)]
        elif key in fields:
            found.values[key] = _converted(path, key, value, fields[key].type)
        elif key in _KNOWN_ELSEWHERE:
            found.notes.append(f"{path}: '{key}' has no effect here")
        else:
            nearest = difflib.get_close_matches(key, [*fields, "profile_models"], 1)
            hint = f", did you mean '{nearest[0]}'?" if nearest else ""
            raise OptionError(f"{path}: unknown option '{key}'{hint}")
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    document = _json(path, text) if path.suffix == ".json" else _yaml(path, text)
    if not isinstance(document, dict):
        raise OptionError(f"{path}: expected options, 'name: value'")
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
            "a YAML file needs the package 'pyyaml': pip install naiad[analyze]"
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
    """The type without its declaration as an option."""
    return getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind


def numbers_of(value: Any) -> list[int]:
    """4, [1, 2, 4] or {start: 1, stop: 8, step: 1}."""
    if isinstance(value, dict):
        return list(range(int(value["start"]), int(value["stop"]) + 1, int(value.get("step", 1))))
    if isinstance(value, str):
        return [int(part) for part in value.split(",")]
    return [int(part) for part in value] if isinstance(value, list) else [int(value)]


def model_specs(given: Any, where: str) -> list[ModelSpec]:
    """Names, or {name: settings}, or a list of both."""
    if isinstance(given, str):
        return [ModelSpec(name=name.strip()) for name in given.split(",")]
    entries: list[tuple[str, Any]] = []
    for entry in given if isinstance(given, list) else [given]:
        entries += list(entry.items()) if isinstance(entry, dict) else [(str(entry), None)]
    return [_spec(name, settings or {}, where) for name, settings in entries]


def _spec(name: str, given: dict[str, Any], where: str) -> ModelSpec:
    unknown = set(given) - set(_MODEL_KEYS.split())
    if unknown:
        raise OptionError(
            f"{where}: profile_models: {name}: unknown setting '{sorted(unknown)[0]}'"
        )
    parameters = given.get("parameters") or {}
    return ModelSpec(
        name=name,
        objectives=objectives_of(given["objectives"]) if given.get("objectives") else {},
        constraints=constraints_of(given["constraints"]) if given.get("constraints") else {},
        weighting=float(given.get("weighting", 1)),
        batch_sizes=numbers_of(parameters["batch_sizes"]) if "batch_sizes" in parameters else [],
        concurrency=numbers_of(parameters["concurrency"]) if "concurrency" in parameters else [],
        request_rate=[float(value) for value in numbers_of(parameters["request_rate"])]
        if "request_rate" in parameters
        else [],
        model_config_parameters=given.get("model_config_parameters") or {},
        perf_analyzer_flags=given.get("perf_analyzer_flags") or {},
        is_cpu_only=bool(given.get("cpu_only", False)),
    )
