"""Suggestions for misspelt names: the name that the user probably meant, or where a field belongs.

In:  a name that does not exist, and the names that do. Out: a name or a sentence, or an empty
     string if no guess is good enough.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from google.protobuf.descriptor import Descriptor

# Names of data types in other frameworks, and in other parts of the format.
_ALIASES = {
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_INT": "TYPE_INT32",
    "TYPE_LONG": "TYPE_INT64",
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_STR": "TYPE_STRING",
    "TYPE_BOOLEAN": "TYPE_BOOL",
}
# Names of fields that users know from elsewhere.
_FIELD_ALIASES = {
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


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to `name`; empty if none is similar enough."""
    names = list(known)
    for candidate in (name, name.upper()):
        if candidate in names:
            return candidate
        if _ALIASES.get(candidate) in names:
            return _ALIASES[candidate]
    by_lower = {candidate.lower(): candidate for candidate in names}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else ""


def unknown_field_fix(name: str, around: Descriptor) -> str:
    fields = around.fields_by_name
    for candidate in (_FIELD_ALIASES.get(name, ""), name):
        if candidate in fields:
            return f"did you mean '{candidate}'?"
        places = _places(candidate, around.file.message_types_by_name.get("ModelConfig"))
        if candidate and places:
            return f"'{candidate}' belongs in " + " or ".join(places)
    near = nearest(name, fields)
    return f"did you mean '{near}'?" if near else ""


def _places(name: str, root: Descriptor | None) -> list[str]:
    """The messages of a configuration that have a field of this name, as `dynamic_batching { }`.
    Empty if there are more than three."""
    found: list[str] = []
    unvisited = [("", root)] if root else []
    while unvisited:
        path, message = unvisited.pop(0)
        if message.GetOptions().map_entry:
            continue
        if name in message.fields_by_name:
            found.append(f"{path} {{ }}" if path else "the top level")
        inner = [
            (field.name, field.message_type)
            for field in message.fields
            if field.message_type is not None
        ]
        unvisited.extend(
            (f"{path}.{field_name}" if path else field_name, kind) for field_name, kind in inner
        )
    return found if len(found) <= 3 else []
