"""What somebody wants to deploy: where the model comes from, and what its config.pbtxt shall say.

In:  JSON of the deploy API. Out: the struct `Spec`, and a ModelConfig with its values.
Rule: None means that the form says nothing about a field: it stays as the file or the model has it.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from naiad.core.datatype import BY_CONFIG_NAME, DATATYPES
from naiad.errors import NaiadError, invalid_arg
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.environment.python_environment import EXECUTION_ENV_PATH, MODEL_DIRECTORY

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])")
NAME_RULE = "2 to 63 lowercase letters, digits and '-', with a letter or digit at both ends"
ENVIRONMENT_FILE = "environment"
"""The file name, without the suffix, of an uploaded archive of a Python environment."""
MAX_TEXT_CHARS = 1 << 20
MAX_INSTANCES = 1024
_KINDS = {
    "KIND_AUTO": ModelInstanceGroup.KIND_AUTO,
    "KIND_CPU": ModelInstanceGroup.KIND_CPU,
    "KIND_GPU": ModelInstanceGroup.KIND_GPU,
    "KIND_MODEL": ModelInstanceGroup.KIND_MODEL,
}


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["files", "checkpoint", "hub", "catalogue", "repository"]
    """files: those of a draft; checkpoint: a folder or a .gguf file on this machine; hub: an id on
    the Hugging Face hub; catalogue: a name of the catalogue; repository: the model that is there
    already."""
    value: str = ""
    """The draft's id, the path, the hub's id, or the name."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    data_type: str
    dims: list[int]
    optional: bool = False


class GroupSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 0
    """0: the backend's default."""
    kind: Literal["KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL"] = "KIND_AUTO"
    gpus: list[int] = []


class BatchingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_queue_delay_microseconds: int = 0
    preferred_batch_size: list[int] = []


class EnvironmentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["server", "requirements", "archive"]
    requirements: str = ""
    """The text of requirements.txt."""
    archive: str = ""
    """The draft's id and the path of an archive among its files; empty for the one that the model
    has already."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Source
    repository: str = ""
    """The location of the repository; empty for the first one that can be written."""
    version: int = 1
    backend: str = ""
    max_batch_size: int | None = None
    inputs: list[TensorSpec] | None = None
    outputs: list[TensorSpec] | None = None
    instances: list[GroupSpec] | None = None
    batching: BatchingSpec | Literal[False] | None = None
    """False: no dynamic batching."""
    parameters: dict[str, str] | None = None
    environment: EnvironmentSpec | None = None
    text: str | None = None
    """The whole text of config.pbtxt. The fields that it could have do not count then."""
    base: str = ""
    """What the edit started from: the hash of config.pbtxt. If the file has changed since, the
    deployment is refused; empty skips this check."""


def check_new_name(name: str) -> None:
    """Raises NaiadError."""
    if NAME.fullmatch(name) is None:
        raise invalid_arg(f"name: '{name}' is not a name for a new model, expected {NAME_RULE}")


def decode_spec(body: bytes) -> Spec:
    """Raises NaiadError, with the field's name."""
    try:
        spec = msgspec.json.decode(body, type=Spec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_arg(f"the body is not valid: {error}") from None
    if spec.version < 1 or spec.version >= 2**31:
        raise invalid_arg(f"version: {spec.version} is not a whole number above 0")
    if len(spec.text or "") > MAX_TEXT_CHARS:
        raise invalid_arg(f"text: it has more than {MAX_TEXT_CHARS} characters")
    return spec


def apply_spec(spec: Spec, config: ModelConfig) -> None:
    """Sets what the spec says in a config as it is written. Raises NaiadError."""
    if spec.backend and not config.platform:
        config.backend = spec.backend
    if spec.max_batch_size is not None:
        config.max_batch_size = _int32(spec.max_batch_size, "max_batch_size")
    for kind, tensors in (("input", spec.inputs), ("output", spec.outputs)):
        if tensors is not None:
            _apply_tensors(config, kind, tensors)
    if spec.instances is not None:
        _apply_groups(config, spec.instances)
    if spec.batching is False:
        config.ClearField("dynamic_batching")
    elif spec.batching is not None:
        batching = config.dynamic_batching
        batching.SetInParent()
        delay = spec.batching.max_queue_delay_microseconds
        if not 0 <= delay < 2**63:
            raise invalid_arg("dynamic_batching: the delay must not be negative")
        batching.max_queue_delay_microseconds = delay
        del batching.preferred_batch_size[:]
        batching.preferred_batch_size.extend(
            _int32(size, "dynamic_batching.preferred_batch_size")
            for size in spec.batching.preferred_batch_size
        )
    if spec.parameters is not None:
        for key in [key for key in config.parameters if key not in spec.parameters]:
            del config.parameters[key]
        for key, value in spec.parameters.items():
            config.parameters[key].string_value = value
    if spec.environment is not None:
        _apply_environment(config, spec.environment)


def _apply_tensors(config: ModelConfig, kind: str, tensors: list[TensorSpec]) -> None:
    """A tensor keeps what the form does not show, such as its labels: the old one of the same name
    counts, else the one at the same place."""
    field = getattr(config, kind)
    old = [type(tensor).FromString(tensor.SerializeToString()) for tensor in field]
    by_name = {tensor.name: tensor for tensor in old}
    del field[:]
    for index, wanted in enumerate(tensors):
        tensor = field.add()
        before = by_name.get(wanted.name) or (old[index] if index < len(old) else None)
        if before is not None:
            tensor.CopyFrom(before)
        tensor.name = wanted.name
        tensor.data_type = _data_type(wanted.data_type, f"{kind}[{index}].data_type")
        if list(tensor.dims) != wanted.dims:
            tensor.ClearField("dims")
            tensor.dims.extend(_int64(dim, f"{kind}[{index}].dims") for dim in wanted.dims)
        if kind == "input":
            tensor.optional = wanted.optional


def _apply_groups(config: ModelConfig, groups: list[GroupSpec]) -> None:
    old = [
        ModelInstanceGroup.FromString(group.SerializeToString()) for group in config.instance_group
    ]
    del config.instance_group[:]
    for index, wanted in enumerate(groups):
        group = config.instance_group.add()
        if index < len(old):
            group.CopyFrom(old[index])
        if not 0 <= wanted.count <= MAX_INSTANCES:
            raise invalid_arg(
                f"instance_group[{index}].count: {wanted.count} is not a number from 1 to "
                f"{MAX_INSTANCES}"
            )
        group.count = wanted.count
        group.kind = _KINDS[wanted.kind]
        group.ClearField("gpus")
        group.gpus.extend(_int32(gpu, f"instance_group[{index}].gpus") for gpu in wanted.gpus)


def _apply_environment(config: ModelConfig, environment: EnvironmentSpec) -> None:
    if environment.kind == "archive":
        if environment.archive:
            path = f"{MODEL_DIRECTORY}/{archive_name(environment)}"
            config.parameters[EXECUTION_ENV_PATH].string_value = path
        elif EXECUTION_ENV_PATH not in config.parameters:
            raise invalid_arg("environment: expected an archive, such as one of conda-pack")
    elif EXECUTION_ENV_PATH in config.parameters:
        del config.parameters[EXECUTION_ENV_PATH]


def archive_name(environment: EnvironmentSpec) -> str:
    """The name of the archive in the model's folder."""
    _, _, suffix = environment.archive.rpartition("/")[2].partition(".tar")
    return f"{ENVIRONMENT_FILE}.tar{suffix}"


def _data_type(text: str, path: str) -> int:
    kind = DATATYPES.get(text) or BY_CONFIG_NAME.get(text)
    if kind is None:
        raise invalid_arg(f"{path}: '{text}' is not one of {', '.join(DATATYPES)}")
    return kind.config_number


def _int32(value: int, path: str) -> int:
    if not -(2**31) <= value < 2**31:
        raise _too_large(value, path)
    return value


def _int64(value: int, path: str) -> int:
    if not -(2**63) <= value < 2**63:
        raise _too_large(value, path)
    return value


def _too_large(value: int, path: str) -> NaiadError:
    return invalid_arg(f"{path}: {value} is too large")
