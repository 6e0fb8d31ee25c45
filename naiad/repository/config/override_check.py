"""What the config of a load request may change, and which models it may name.

In:  the config of the request and the one that would be loaded without it, completed alike. Out:
     nothing, or OverrideRefusedError with the fields.
Rules: where a request may not bring files, its config is data: only the fields in OPEN may differ,
       because any other field may choose what code runs, with which files, and where. A new field
       is closed until it is listed. A reference to another model needs the right to that model,
       unless the operator has written it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from google.protobuf.message import Message

from naiad.errors import Code, NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.autocomplete import COMPLETED
from naiad.repository.config.source_map import entry_path

BLS_PARAMETER = "tensorrt_llm_model_name"
"""Names the language model behind a BLS model, which OpenAI's routes then use."""
FACTS = ("loaded_engine", "loaded_weights", "loaded_kv_cache")
"""Parameters that the server shows in the config of a language model. None of them is a setting."""
MAX_SHOWN = 3
_QUEUE = (
    "timeout_action",
    "default_timeout_microseconds",
    "allow_timeout_override",
    "max_queue_size",
)
OPEN = frozenset(
    {
        "max_batch_size",
        "dynamic_batching",
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.preserve_ordering",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy",
        *(f"dynamic_batching.default_queue_policy.{name}" for name in _QUEUE),
        "dynamic_batching.priority_queue_policy",
        *(f"dynamic_batching.priority_queue_policy.{name}" for name in _QUEUE),
        "sequence_batching.max_sequence_idle_microseconds",
        "sequence_batching.direct.max_queue_delay_microseconds",
        "sequence_batching.direct.minimum_slot_utilization",
        "sequence_batching.oldest.max_candidate_sequences",
        "sequence_batching.oldest.preferred_batch_size",
        "sequence_batching.oldest.max_queue_delay_microseconds",
        "sequence_batching.oldest.preserve_ordering",
        "ensemble_scheduling.max_inflight_requests",
        "instance_group.count",
        "response_cache",
        "response_cache.enable",
    }
)
"""The fields that may differ. A message in the list may be there or not; its own fields count
separately."""


class OverrideRights(msgspec.Struct, frozen=True):
    """What the sender of a load request may do with its config."""

    may_change_all: bool = True
    may_name: Callable[[str], bool] | None = None
    """Whether the sender may use the model of this name. None: every model."""


FULL_RIGHTS = OverrideRights()


class OverrideRefusedError(NaiadError):
    """The sender of a load request may not load this config. Its text is for the sender."""


def require_references(
    config: ModelConfig, read_own: Callable[[], ModelConfig], rights: OverrideRights
) -> None:
    """`read_own` returns the operator's config, or raises NaiadError if there is none. Raises
    OverrideRefusedError, with Triton's text for a model that does not exist."""
    if rights.may_name is None:
        return
    hidden = [name for name in _references(config) if not rights.may_name(name)]
    if not hidden:
        return
    with contextlib.suppress(NaiadError):
        if _graph(read_own()) == _graph(config):
            return
    raise OverrideRefusedError(
        Code.NOT_FOUND, f"Request for unknown model: '{hidden[0]}' is not found"
    )


def require_open(config: ModelConfig, own: ModelConfig, *, completes: bool = False) -> bool:
    """Raises OverrideRefusedError if another field differs. `completes` means that the model will
    complete both configs: True is returned if they must be compared again then."""
    refused: list[str] = []
    is_later = False
    for path in _differences(_comparable(config), _comparable(own), "", ""):
        if completes and path.partition(".")[0].partition("[")[0] in COMPLETED:
            is_later = True
        else:
            refused.append(path)
            if len(refused) == MAX_SHOWN:
                break
    if refused:
        raise OverrideRefusedError(
            Code.UNSUPPORTED,
            f"the config of a load request may not change {', '.join(refused)} of model "
            f"'{config.name}': only max_batch_size, batching, queues, the count of instances and "
            "the response cache may differ from the config in the repository; start the server "
            "with '--allow-file-override=true' to allow the rest",
        )
    return is_later


def drop_facts(config: ModelConfig) -> None:
    """A config that the server has shown may be sent back."""
    for name in FACTS:
        config.parameters.pop(name, None)


def _references(config: ModelConfig) -> set[str]:
    names = {step.model_name for step in config.ensemble_scheduling.step}
    if BLS_PARAMETER in config.parameters:
        names.add(config.parameters[BLS_PARAMETER].string_value)
    return names - {""}


def _graph(config: ModelConfig) -> tuple[list[Any], str]:
    named = config.parameters.get(BLS_PARAMETER)
    return list(config.ensemble_scheduling.step), named.string_value if named else ""


def _comparable(config: ModelConfig) -> ModelConfig:
    """Without what the server fills in by itself: the names of groups that have none, and whether
    an ensemble is decoupled."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    if copy.HasField("ensemble_scheduling"):
        copy.ClearField("model_transaction_policy")
    for index, group in enumerate(copy.instance_group):
        if group.name in (config.name, f"{config.name}_{index}"):
            group.name = ""
    return copy


def _differences(one: Message, other: Message, shown: str, place: str) -> Iterator[str]:
    """The paths of closed fields that differ. `shown` is the path with indices, for people;
    `place` the path of field names."""
    for field in one.DESCRIPTOR.fields:
        name = f"{place}{field.name}"
        path = f"{shown}{field.name}"
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if _is_map(field):
            yield from _map_differences(field, mine, theirs, path, name)
        elif field.is_repeated:
            yield from _list_differences(field, mine, theirs, path, name)
        elif field.message_type is not None:
            if one.HasField(field.name) != other.HasField(field.name) and name not in OPEN:
                yield path
            else:
                yield from _differences(mine, theirs, f"{path}.", f"{name}.")
        elif name not in OPEN and (mine != theirs or _has_other_choice(field, one, other)):
            yield path


def _map_differences(field: Any, mine: Any, theirs: Any, path: str, name: str) -> Iterator[str]:
    is_message = field.message_type.fields_by_name["value"].message_type is not None
    for key in sorted({*mine, *theirs}):
        where = entry_path(path, key)
        if name not in OPEN and ((key in mine) != (key in theirs)):
            yield where
        elif is_message:
            # A map of messages has no `get` without a default of its own.
            yield from _differences(_entry(mine, key), _entry(theirs, key), f"{where}.", f"{name}.")
        elif name not in OPEN and mine[key] != theirs[key]:
            yield where


def _entry(entries: Any, key: Any) -> Message:
    message: Message = entries[key] if key in entries else entries.GetEntryClass()().value
    return message


def _list_differences(field: Any, mine: Any, theirs: Any, path: str, name: str) -> Iterator[str]:
    if name in OPEN:
        return
    if field.message_type is None or len(mine) != len(theirs):
        if list(mine) != list(theirs):
            yield path
        return
    for index, (left, right) in enumerate(zip(mine, theirs, strict=True)):
        yield from _differences(left, right, f"{path}[{index}].", f"{name}.")


def _has_other_choice(field: Any, one: Message, other: Message) -> bool:
    """`zero_data: false` is not the same as no choice at all."""
    return bool(field.containing_oneof) and one.HasField(field.name) != other.HasField(field.name)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
