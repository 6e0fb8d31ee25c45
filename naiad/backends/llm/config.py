"""Inputs and outputs that a language backend adds to a config, and the decoupled policy, unless the
config says otherwise.

In:  LoadArguments.model_config. Out: the completed fields as JSON, for
     Backend.complete_config.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.ipc.work import LoadArguments


def tensor(
    name: str, data_type: str, dims: list[int], *, is_optional: bool = False
) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "data_type": data_type, "dims": dims}
    return {**fields, "optional": True} if is_optional else fields


def complete(
    arguments: LoadArguments, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]
) -> bytes:
    """What the config has already stays as it is written."""
    config: dict[str, Any] = msgspec.json.decode(arguments.model_config)
    fields: dict[str, Any] = {"max_batch_size": 0}
    for kind, ours in (("input", inputs), ("output", outputs)):
        given = config.get(kind) or []
        names = {entry["name"] for entry in given}
        fields[kind] = given + [entry for entry in ours if entry["name"] not in names]
    if not config.get("model_transaction_policy"):
        fields["model_transaction_policy"] = {"decoupled": True}
    return msgspec.json.encode(fields)


def is_decoupled(arguments: LoadArguments) -> bool:
    config: dict[str, Any] = msgspec.json.decode(arguments.model_config)
    return bool((config.get("model_transaction_policy") or {}).get("decoupled"))
