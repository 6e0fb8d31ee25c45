"""Applies the values of a variant to a model's configuration.

In:  the model's ModelConfig and {dimension: value}. A dimension is `max_batch_size`,
     `instance_count`, `queue_delay_us`, `parameters.<key>`, or a path into the configuration such
     as `dynamic_batching.preferred_batch_size`.
Out: the changed ModelConfig, as JSON for a load request or as the text of a config.pbtxt.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import text_format

from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config_json import config_to_dict
from naiad.repository.config.config_override import parse_override_dict
from naiad.repository.config.problem import InvalidConfigError
from naiad.settings.option import OptionError

Values = dict[str, Any]


def changed_config(
    config: ModelConfig, values: Values, *, is_cpu_only: bool = False
) -> ModelConfig:
    """Returns a changed copy of `config`. Raises OptionError if a value is invalid."""
    changed = ModelConfig()
    changed.CopyFrom(config)
    paths: dict[str, Any] = {}
    for name, value in values.items():
        match name:
            case "max_batch_size":
                _set_batch_size(changed, int(value))
            case "instance_count":
                _set_instances(changed, int(value), is_cpu_only)
            case "queue_delay_us":
                changed.dynamic_batching.max_queue_delay_microseconds = int(value)
            case _ if name.startswith("parameters."):
                changed.parameters[name.removeprefix("parameters.")].string_value = str(value)
            case _:
                paths[name] = value
    return _with_paths(changed, paths) if paths else changed


def _set_batch_size(config: ModelConfig, value: int) -> None:
    # The server sets preferred_batch_size to max_batch_size by default, so it must follow it.
    is_filled_in = list(config.dynamic_batching.preferred_batch_size) == [config.max_batch_size]
    config.max_batch_size = value
    if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling"):
        return
    if value == 1 and not config.HasField("dynamic_batching"):
        return
    # Preferred sizes above the new maximum are invalid.
    sizes = [] if is_filled_in else config.dynamic_batching.preferred_batch_size
    preferred = [size for size in sizes if size <= value]
    del config.dynamic_batching.preferred_batch_size[:]
    config.dynamic_batching.preferred_batch_size.extend(preferred)
    config.dynamic_batching.SetInParent()


def _set_instances(config: ModelConfig, count: int, is_cpu_only: bool) -> None:
    if not config.instance_group:
        config.instance_group.add(
            kind=ModelInstanceGroup.KIND_CPU if is_cpu_only else ModelInstanceGroup.KIND_AUTO
        )
    for group in config.instance_group:
        group.count = count
        if is_cpu_only:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]


def _with_paths(config: ModelConfig, paths: dict[str, Any]) -> ModelConfig:
    document = config_to_dict(config)
    for path, value in paths.items():
        *parents, last = path.split(".")
        node = document
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    try:
        return parse_override_dict(document)
    except InvalidConfigError as error:
        raise OptionError(f"model_config_parameters of '{config.name}': {error}") from None


def override_json(config: ModelConfig) -> str:
    return json.dumps(config_to_dict(config))


def config_text(config: ModelConfig, comment: str) -> str:
    """Returns the text of a config.pbtxt that begins with a comment."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + str(text_format.MessageToString(config, use_short_repeated_primitives=True))


def total_instances(config: ModelConfig) -> str:
    """Returns the number and kind of instances, e.g. `2:CPU` or `1:CPU/1:GPU`."""
    names = {
        ModelInstanceGroup.KIND_CPU: "CPU",
        ModelInstanceGroup.KIND_GPU: "GPU",
        ModelInstanceGroup.KIND_MODEL: "MODEL",
    }
    groups = [
        f"{group.count * max(1, len(group.gpus))}:{names.get(group.kind, 'AUTO')}"
        for group in config.instance_group
    ]
    return "/".join(groups) or "1:AUTO"


def dynamic_batching_text(config: ModelConfig) -> str:
    if not config.HasField("dynamic_batching"):
        return "Disabled"
    delay_us = config.dynamic_batching.max_queue_delay_microseconds
    return f"{delay_us} us" if delay_us else "Enabled"
