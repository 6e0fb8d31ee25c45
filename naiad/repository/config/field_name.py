"""A field that does not exist: what the user probably meant, or where that field belongs.

In: the name and the message it was written in. Out: a sentence, or nothing when no guess is good.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

from naiad.repository.config.nearest import nearest

# Written by people who know the thing under another name.
_MEANT = {
    "inputs": "input",
    "outputs": "output",
    "instance_groups": "instance_group",
    "datatype": "data_type",
    "dtype": "data_type",
    "type": "data_type",
    "shape": "dims",
    "dim": "dims",
    "batch_size": "max_batch_size",
    "max_batchsize": "max_batch_size",
    "parameter": "parameters",
    "ensemble": "ensemble_scheduling",
    "steps": "step",
    "warmup": "model_warmup",
    "decoupled_mode": "decoupled",
    "max_queue_delay_us": "max_queue_delay_microseconds",
    "max_queue_delay_ms": "max_queue_delay_microseconds",
    "max_queue_delay": "max_queue_delay_microseconds",
    "max_sequence_idle": "max_sequence_idle_microseconds",
    "preferred_batch_sizes": "preferred_batch_size",
    "gpu": "gpus",
    "optional_input": "optional",
}


def unknown_field_fix(name: str, around: Descriptor) -> str:
    fields = around.fields_by_name
    for candidate in (_MEANT.get(name, ""), name):
        if candidate in fields:
            return f"did you mean '{candidate}'?"
        places = _places(candidate, around.file.message_types_by_name.get("ModelConfig"))
        if candidate and places:
            return f"'{candidate}' belongs in " + " or ".join(places)
    near = nearest(name, fields)
    return f"did you mean '{near}'?" if near else ""


def _places(name: str, root: Descriptor | None) -> list[str]:
    """Every message of a configuration that has a field of this name, as `dynamic_batching { }`; at
    most three."""
    found: list[str] = []
    waiting = [("", root)] if root else []
    while waiting:
        path, message = waiting.pop(0)
        if message.GetOptions().map_entry:
            continue
        if name in message.fields_by_name:
            found.append(f"{path} {{ }}" if path else "the top level")
        inner = [
            (field.name, field.message_type)
            for field in message.fields
            if field.message_type is not None
        ]
        waiting.extend(
            (f"{path}.{field_name}" if path else field_name, kind) for field_name, kind in inner
        )
    return found if len(found) <= 3 else []
