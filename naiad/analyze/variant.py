"""One way to configure a model: a few changes to its own configuration.

In:  the model's ModelConfig and {dimension: value}. Out: the changed ModelConfig, as JSON for a
     load request or as config.pbtxt. Dimensions are `max_batch_size`, `instance_count`,
     `queue_delay_us`, `parameters.<key>`, or a path such as `dynamic_batching.preferred_batch_size`
     into the configuration.
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
    """Raises OptionError for values that no configuration can have."""
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
    # A server fills in the largest batch as the preferred one: that must grow with it.
    is_filled_in = list(config.dynamic_batching.preferred_batch_size) == [config.max_batch_size]
    config.max_batch_size = value
    if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling"):
        return
    if value == 1 and not config.HasField("dynamic_batching"):
        return
    # Sizes that were preferred before may be larger than a batch can be now.
    preferred = (
        []
        if is_filled_in
        else [size for size in config.dynamic_batching.preferred_batch_size if size <= value]
    )
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
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    try:
        return parse_override_dict(document)
    except InvalidConfigError as error:
        raise OptionError(f"model_config_parameters of '{config.name}': {error}") from None


def override_json(config: ModelConfig) -> str:
    return json.dumps(config_to_dict(config))


def config_text(config: ModelConfig, comment: str) -> str:
    """As config.pbtxt."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + str(text_format.MessageToString(config, use_short_repeated_primitives=True))


def total_instances(config: ModelConfig) -> str:
    """`2:CPU` or `1:GPU`, several joined with /."""
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


def dynamic_batching_words(config: ModelConfig) -> str:
    if not config.HasField("dynamic_batching"):
        return "Disabled"
    delay_us = config.dynamic_batching.max_queue_delay_microseconds
    return f"{delay_us} us" if delay_us else "Enabled"
